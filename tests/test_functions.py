"""What the functions for DataFrames and SQL give for a batch of values."""

import pyarrow as pa
import pytest

from testkit.inlong_msg import container, snappy
from tubemq_spark.errors import InLongMsgError
from tubemq_spark.functions import _parse, _parse_in_sql, parse_inlong_msg
from tubemq_spark.options import ParseMode
from tubemq_spark.source import inlong

SOUND = container(1, [("a=1", [(b"one", b""), (b"two", b"")]), ("b=2", [(b"three", b"")])], 1500)
PACKED = container(2, [("a=1", [(b"x" * 50, b""), (b"", b"")])], compress=snappy)
EMPTY = container(0, [])
JUNK = b"no container"


def lists(bodies, mode=ParseMode.PERMISSIVE):
    made = _parse(pa.array(bodies, pa.binary()), mode)
    made.validate(full=True)
    return [
        None if found is None else [message["value"] for message in found]
        for found in made.to_pylist(maps_as_pydicts="strict")
    ]


def test_the_function_gives_a_list_for_each_body():
    bodies = [SOUND, None, EMPTY, JUNK, PACKED]
    assert lists(bodies) == [[b"one", b"two", b"three"], None, [], [None], [b"x" * 50, b""]]
    assert lists(bodies, ParseMode.DROPMALFORMED)[3] == []
    assert lists([]) == []
    assert lists([None, None]) == [None, None]
    with pytest.raises(InLongMsgError, match="The body is not a sound InLongMsg"):
        lists(bodies, ParseMode.FAILFAST)


def test_the_function_takes_slices_and_other_kinds_of_bytes():
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        made = _parse(pa.array([JUNK, SOUND, PACKED], kind)[1:2], ParseMode.FAILFAST)
        assert [message["value"] for message in made[0].as_py()] == [b"one", b"two", b"three"]


def test_the_function_may_unpack_in_several_parts(monkeypatch):
    monkeypatch.setattr(inlong, "TARGET_ROWS", 2)
    assert lists([PACKED, None, JUNK, SOUND]) == [[b"x" * 50, b""], None, [None], [b"one", b"two", b"three"]]


def test_what_no_array_can_hold_is_refused(monkeypatch):
    monkeypatch.setattr("tubemq_spark.functions._LARGEST_ARRAY", 10)
    with pytest.raises(InLongMsgError, match="maxRecordsPerBatch"):
        lists([SOUND])


def test_sql_names_the_mode_in_a_second_argument():
    bodies = pa.array([JUNK, JUNK], pa.binary())
    assert _parse_in_sql(bodies)[0].as_py()[0]["_corrupt_record"] == JUNK
    assert _parse_in_sql(bodies, pa.array(["dropmalformed"] * 2))[0].as_py() == []
    assert len(_parse_in_sql(bodies[:0], pa.array([], pa.string()))) == 0
    for modes in (["FAILFAST", "PERMISSIVE"], [None, None], ["strict", "strict"]):
        with pytest.raises(ValueError, match="Option 'mode' is"):
            _parse_in_sql(bodies, pa.array(modes))


def test_an_unknown_mode_is_refused_at_once():
    with pytest.raises(ValueError, match="must be PERMISSIVE, DROPMALFORMED or FAILFAST"):
        parse_inlong_msg("value", "lenient")
