"""Manifests say the same when they are read back, in this release and in later ones."""

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.cases import in_one_test
from tests.offsets.strategies import partitions
from tubemq_spark.errors import ManifestFormatError
from tubemq_spark.files.manifests import VERSION, Manifest, Outcome, WriteId, manifest_of
from tubemq_spark.model import MicroBatch, TopicPartition
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

KEPT = sorted((Path(__file__).parent / "manifests").glob("*.json"))
"""What releases have written, each under its name."""

NOON = datetime.datetime(2026, 3, 4, 12, tzinfo=datetime.UTC)
BATCH = MicroBatch("c3b1", 7)
RECEIPT = Receipt(TopicPartition("demo", 1, 0), 3, 28, 280, 2, 1, 30, 1 << 60)
MANIFEST = Manifest(Outcome.WRITTEN, WriteId(BATCH), NOON, {"topic": "demo"}, 3, (RECEIPT,))

times = st.integers(0, 10**12).map(lambda ms: NOON + datetime.timedelta(milliseconds=ms))
texts = st.text(max_size=9)
micro_batches = st.builds(MicroBatch, texts.filter(len), st.integers(0, 1 << 40))
writes = st.one_of(
    st.builds(WriteId, micro_batches), st.builds(WriteId, st.none() | micro_batches, texts.filter(len))
)


@st.composite
def receipts(draw):
    first, count = draw(st.integers(0, 1 << 40)), draw(st.integers(1, 1 << 40))
    last = first + draw(st.integers(0, 1 << 40))
    more = [draw(st.integers(0, 9)), draw(st.integers(0, 9)), draw(st.integers(0, 1 << 50))]
    checksum = draw(st.integers(0, CHECKSUM_MODULUS - 1))
    return Receipt(draw(partitions), count, 28 * first, 28 * last, *more, checksum)


manifests = st.builds(
    Manifest,
    st.sampled_from(Outcome),
    writes,
    times,
    st.dictionaries(texts, texts, max_size=3),
    st.integers(0, 1 << 50),
    st.lists(receipts(), max_size=4).map(tuple),
)


@given(manifests)
def test_what_is_written_is_read(manifest):
    assert manifest_of(manifest.text, "file") == manifest


@given(manifests)
def test_the_text_is_canonical(manifest):
    again = json.dumps(json.loads(manifest.text), sort_keys=True, separators=(",", ":"))
    assert manifest.text == again


@given(micro_batches, micro_batches)
def test_names_are_those_of_micro_batches_in_their_order(one, other):
    same = WriteId(one).name == WriteId(other).name
    assert same == (one == other)
    later = WriteId(MicroBatch(one.query_id, one.batch_id % 10**9 + 1)).name
    assert WriteId(MicroBatch(one.query_id, one.batch_id % 10**9)).name < later


def test_a_batch_write_in_a_micro_batch_is_not_that_micro_batch():
    assert WriteId(BATCH, "r1").name == WriteId(None, "r1").name != WriteId(BATCH).name


def test_an_aborted_write_has_another_name_each_time():
    aborted = [
        Manifest(Outcome.ABORTED, WriteId(BATCH), NOON + datetime.timedelta(seconds=n), {}, 0, (RECEIPT,))
        for n in range(3)
    ]
    assert len({one.name for one in (*aborted, MANIFEST)}) == 4


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_what_was_kept_is_read_and_would_be_written_so_again(path):
    """Numbers above 2**53 and names beyond ASCII, too. The format of a version never changes."""
    manifest = manifest_of(path.read_text(), path.name)
    assert (manifest.text, f"{manifest.name}.json") == (path.read_text(), path.name)


def test_there_are_kept_manifests_of_each_kind():
    kept = [manifest_of(path.read_text(), path.name) for path in KEPT]
    assert {(one.outcome, one.write.run_id is None) for one in kept} == {
        (Outcome.WRITTEN, True),
        (Outcome.WRITTEN, False),
        (Outcome.ABORTED, True),
    }
    assert max(len(one.receipts) for one in kept) > 1


@in_one_test(
    ("change", "problem"),
    [
        ({"outcome": "lost"}, "'lost' is not a valid Outcome"),
        ({"v": "x"}, "invalid literal"),
        ({"v": ...}, "KeyError: 'v'"),
        ({"queryId": None}, "neither a micro-batch nor a run"),
        ({"queryId": None, "batchId": None}, "neither a micro-batch nor a run"),
        ({"queryId": 7}, "7 is not a text"),
        ({"batchId": "x"}, "invalid literal"),
        ({"time": "noon"}, "noon"),
        ({"options": 5}, "TypeError"),
        ({"partitions": 5}, "TypeError"),
        ({"partitions": [{}]}, "KeyError: 'topic'"),
        ({"rows": ...}, "KeyError: 'rows'"),
    ],
)
def test_what_is_not_a_manifest_is_refused(change, problem):
    data = {
        name: value for name, value in {**json.loads(MANIFEST.text), **change}.items() if value is not ...
    }
    with pytest.raises(ManifestFormatError, match=r"file is not a manifest of a write: .*") as refused:
        manifest_of(json.dumps(data), "file")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "change", [{"firstOffset": -28}, {"lastOffset": 0}, {"checksum": "x"}, {"count": None}, {"topic": ...}]
)
def test_a_partition_that_makes_no_sense_is_refused(change):
    data = json.loads(MANIFEST.text)
    (one,) = data["partitions"]
    one |= change
    data["partitions"] = [{name: value for name, value in one.items() if value is not ...}]
    with pytest.raises(ManifestFormatError, match="not a manifest"):
        manifest_of(json.dumps(data), "file")


@in_one_test("text", ["", "{", "[]", "7", "null", '"v"', "\x00", '{"v":1}'])
def test_what_is_not_even_json_of_this_form_is_refused(text):
    with pytest.raises(ManifestFormatError, match="file is not a manifest"):
        manifest_of(text, "file")


def test_a_manifest_of_a_later_release_is_refused():
    text = json.dumps({**json.loads(MANIFEST.text), "v": VERSION + 1})
    with pytest.raises(ManifestFormatError, match="file has format version 2, but this release only reads"):
        manifest_of(text, "file")
