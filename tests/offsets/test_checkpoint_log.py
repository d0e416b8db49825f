"""How far a stream has come, read from the files of its checkpoint."""

import json

import pytest
from hypothesis import given, strategies as st

from tests.offsets import strategies as own
from tests.offsets.strategies import tp
from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.offsets.checkpoint_log import OffsetLog, Progress, UnknownLogError, progress
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.source_offset import SourceOffset, StartToken

ZERO, ONE = tp("demo/1:0"), tp("demo/1:10000")
SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"1"}}'
KAFKA = '{"demo":{"0":17}}'


def line(offset):
    return json.dumps(offset.to_json())


def read_log(text):
    return OffsetLog.parse(text).of_ours()


def log(*lines, version="v1"):
    return "\n".join((version, SETTINGS, *lines))


@given(st.lists(own.source_offsets(), max_size=3))
def test_every_source_of_ours_is_found_by_its_number(offsets):
    assert read_log(log(*map(line, offsets))) == {str(number): one for number, one in enumerate(offsets)}


def test_other_sources_are_passed_over():
    mine = SourceOffset({ZERO: 28})
    delta = '{"sourceVersion":1,"reservoirId":"x","reservoirVersion":3}'
    assert read_log(log(KAFKA, "-", delta, "5", line(mine))) == {"4": mine}
    assert read_log(log(KAFKA)) == {}
    assert read_log(log()) == {}


def test_sources_may_have_names():
    mine, other = SourceOffset({ZERO: 28}), SourceOffset({ONE: 56})
    text = log(f"clicks:{line(mine)}", "late:-", f"kafka:{KAFKA}", f"views:{line(other)}", version="v2")
    assert read_log(text) == {"clicks": mine, "views": other}


@pytest.mark.parametrize("text", ["", "v9\n{}\n", '{"v":1}', "garbage"])
def test_other_files_are_refused(text):
    with pytest.raises(UnknownLogError, match="not with v1 or v2"):
        read_log(text)


def test_a_newer_offset_is_refused():
    with pytest.raises(OffsetFormatError) as refused:
        read_log(log('{"v":3,"topics":{}}'))
    assert refused.value.condition == "TUBEMQ_OFFSETS_VERSION"


def test_a_finished_micro_batch_is_where_the_stream_stands():
    end = SourceOffset({ZERO: 280})
    assert progress({}, {"0": end}, finished=True) == {"0": Progress({ZERO: 280}, {ZERO: 280})}


def test_a_micro_batch_under_way_is_not_counted():
    before, end = SourceOffset({ZERO: 280}), SourceOffset({ZERO: 560, ONE: 28}, {ONE: 0})
    expected = Progress({ZERO: 280, ONE: 0}, {ZERO: 560, ONE: 28})
    assert progress({"0": before}, {"0": end}, finished=False) == {"0": expected}


def test_the_first_micro_batch_says_itself_where_it_begins():
    end = SourceOffset({ZERO: 560}, {ZERO: 140})
    for before in ({}, {"0": StartToken(Edge.LATEST)}):
        assert progress(before, {"0": end}, finished=False) == {"0": Progress({ZERO: 140}, {ZERO: 560})}


def test_a_source_that_has_not_begun_stands_nowhere():
    token = StartToken(Edge.EARLIEST)
    assert progress({}, {"0": token}, finished=False) == {"0": Progress({}, {})}


def test_offsets_without_a_beginning_are_refused():
    with pytest.raises(OffsetFormatError, match="does not say where demo/1:0 begins"):
        progress({}, {"0": SourceOffset({ZERO: 28})}, finished=False)


def test_a_file_is_written_as_it_was_read():
    mine, other = line(SourceOffset({ZERO: 28})), line(SourceOffset({ONE: 56}, {ONE: 0}))
    for text in (
        log(KAFKA, "-", mine, other),
        log(f"clicks:{mine}", "late:-", f"kafka:{KAFKA}", f"views:{other}", version="v2"),
    ):
        assert OffsetLog.parse(text).text == text
        assert OffsetLog.parse(text + "\n").text == text


def test_a_watermark_is_taken_out_and_the_settings_stay():
    settings = OffsetLog.parse(log(KAFKA).replace('"batchWatermarkMs":0', '"batchWatermarkMs":7')).settings
    assert settings["batchWatermarkMs"] == 7
    fresh = OffsetLog.parse(log(KAFKA)).without_watermark(5)
    assert (fresh.settings["batchWatermarkMs"], fresh.planned_ms) == (0, 5)
    assert fresh.settings["conf"] == settings["conf"]


def test_settings_that_are_not_json_are_refused():
    with pytest.raises(UnknownLogError, match="whose second line is 'garbage', not Spark's settings as JSON"):
        OffsetLog.parse("v1\ngarbage\n-")
    assert OffsetLog.parse("v1\n\n-").planned_ms is None
