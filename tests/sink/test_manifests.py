"""Manifests of writes: what is written is written down, and a micro-batch that has one is not sent again."""

import json
import pickle
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from testkit.views import read_view
from tests.memory_cluster import MemoryCluster
from tests.micro_batches import enter_micro_batch
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import FolderError, ManifestFormatError, OptionError, ReplayError
from tubemq_spark.sink import task, writers

QUERY = "3f0b6c1e-5f1d-4b0c-9a55-7d2f0c4b8e11"
SCHEMA = StructType([StructField("value", StringType())])
NAME = f"query-{QUERY}-batch-{{:010}}.json"


@pytest.fixture
def cluster(monkeypatch):
    """The cluster that every task writes to."""
    made = MemoryCluster(demo=(2, 1), dead=(1, 1), checksums=True)
    monkeypatch.setattr(task, "open_cluster", lambda _: made)
    monkeypatch.setattr(writers, "open_cluster", lambda _: made)
    return made


class Writes:
    """Writes as Spark does them: a writer of the driver, copies in tasks, and one that ends the write."""

    def __init__(self, cluster, folder, monkeypatch):
        self._cluster, self.folder, self._monkeypatch = cluster, folder, monkeypatch
        self.given = {"tubemq.master.servers": "master:8715", "topic": "demo", "receiptsPath": str(folder)}

    def source(self, **options):
        return TubeMQDataSource(self.given | options)

    def tasks(self, writer, *values):
        """Run a task for each list of values; return what they tell."""
        return [pickle.loads(pickle.dumps(writer)).write(batches(some)) for some in values]

    def micro_batch(self, number, *values, query=QUERY):
        """Run the tasks of a micro-batch and return their messages."""
        enter_micro_batch(self._monkeypatch, number, query)
        return self.tasks(self.source().streamWriter(SCHEMA, False), *values)

    def commit(self, number, messages):
        self.source().streamWriter(SCHEMA, False).commit(pickle.loads(pickle.dumps(messages)), number)

    def abort(self, number, messages):
        self.source().streamWriter(SCHEMA, False).abort(pickle.loads(pickle.dumps(messages)), number)

    @property
    def files(self):
        return {path.name: json.loads(path.read_text()) for path in sorted(self.folder.iterdir())}

    @property
    def stored(self):
        return sorted(value for log in self._cluster.logs.values() for _, (value, _) in log)

    def view(self, *columns):
        rows = read_view({"view": "receipts", "receiptsPath": str(self.folder)})
        return [tuple(row[column] for column in columns) for row in rows]


@pytest.fixture
def writes(cluster, tmp_path, monkeypatch):
    return Writes(cluster, tmp_path / "receipts", monkeypatch)


def batches(values):
    return iter([pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})])


def test_a_micro_batch_has_a_manifest_of_what_all_its_tasks_stored(writes, caplog):
    caplog.set_level("INFO")
    writes.commit(7, writes.micro_batch(7, ["a", "bb"], [], ["c"]))

    ((name, manifest),) = writes.files.items()
    assert name == NAME.format(7)
    assert {key: manifest[key] for key in ("outcome", "queryId", "batchId", "runId", "rows")} == {
        "outcome": "written",
        "queryId": QUERY,
        "batchId": 7,
        "runId": None,
        "rows": 3,
    }
    assert manifest["options"] == {
        "tubemq.master.servers": "master:8715",
        "topic": "demo",
        "receiptsPath": str(writes.folder),
    }
    assert writes.view("topic", "partition", "firstOffset", "lastOffset", "count", "bytes") == [
        ("demo", 0, 0, 28, 2, 2),
        ("demo", 10_000, 0, 0, 1, 2),
    ]
    assert "micro-batch 7 wrote 3 rows (4 bytes) to 2 partitions" in caplog.messages


def test_a_micro_batch_that_has_a_manifest_is_not_sent_again(writes, caplog):
    """Its driver was killed before Spark had recorded its end."""
    writes.commit(7, writes.micro_batch(7, ["a", "bb"], ["c"]))
    before = writes.files

    again = writes.micro_batch(7, ["c"], ["a", "bb"])
    writes.commit(7, again)

    assert [message.receipts for message in again] == [(), ()]
    assert [message.replayed.rows for message in again] == [1, 2]
    assert writes.stored == [b"a", b"bb", b"c"]
    assert writes.files == before
    (line,) = [message for message in caplog.messages if "were not sent again" in message]
    assert line.startswith(f"micro-batch 7 of query {QUERY} was written before, at ")
    assert line.endswith(" UTC: its 3 rows were not sent again, and its manifest stays as it is")


def test_other_micro_batches_and_queries_are_sent(writes):
    writes.commit(7, writes.micro_batch(7, ["a"]))
    writes.commit(8, writes.micro_batch(8, ["b"]))
    writes.commit(7, writes.micro_batch(7, ["c"], query="another"))

    assert writes.stored == [b"a", b"b", b"c"]
    assert len(writes.files) == 3


def test_a_micro_batch_that_did_not_end_is_sent_again(writes):
    """It is not known which of its rows were stored."""
    writes.micro_batch(7, ["a"])
    writes.commit(7, writes.micro_batch(7, ["a"]))

    assert writes.stored == [b"a", b"a"]
    assert writes.view("count", "firstOffset") == [(1, 28)]


@pytest.mark.parametrize("now", [(["c", "d"], ["e"]), (["a", "x"],), (["a"],)])
def test_other_rows_under_the_same_number_are_an_error(writes, now, caplog):
    """A restored checkpoint has them: they would be lost in silence, also where they are as many."""
    writes.commit(7, writes.micro_batch(7, ["a", "b"]))
    messages = writes.micro_batch(7, *now)

    with pytest.raises(ReplayError) as refused:
        writes.commit(7, messages)
    writes.abort(7, messages)

    text, values = str(refused.value), [value for some in now for value in some]
    checksums = [sum(zlib.crc32(value.encode()) for value in some) for some in (["a", "b"], values)]
    assert (
        f"Before, micro-batch 7 of query {QUERY} was written with 2 rows of checksum {checksums[0]}" in text
    )
    assert f"and now it has {len(values)} rows of checksum {checksums[1]}" in text
    assert f"move {NAME.format(7)} away" in text
    assert "onReplayDiffers=keep" in text
    assert list(writes.files) == [NAME.format(7)]
    assert caplog.messages[-1] == (
        "micro-batch 7 failed; what was sent stays in TubeMQ, at least: 0 rows (0 bytes) to 0 partitions"
    )


@pytest.mark.parametrize("now", [["a", "x"], ["a", "b", "c"]])
def test_a_query_that_does_not_give_the_same_rows_each_time_may_keep_the_first_ones(writes, now, caplog):
    writes.given["onReplayDiffers"] = "keep"
    writes.commit(7, writes.micro_batch(7, ["a", "b"]))
    before = writes.files
    writes.commit(7, writes.micro_batch(7, now))

    assert (writes.stored, writes.files) == ([b"a", b"b"], before)
    told = caplog.messages[-1]
    assert told.startswith(f"micro-batch 7 of query {QUERY} was written with 2 rows of checksum ")
    assert f", and now has {len(now)} rows of checksum " in told


def test_rows_of_which_some_tasks_found_the_manifest_and_others_did_not_are_compared_too(writes):
    """Another run of the query wrote the manifest meanwhile: what this one left out must be there."""
    sent = writes.micro_batch(7, ["a"])
    writes.commit(7, writes.micro_batch(7, ["a"], ["b"]))
    writes.commit(7, [*sent, *writes.micro_batch(7, ["b"])])

    with pytest.raises(ReplayError):
        writes.commit(7, [*sent, *writes.micro_batch(7, ["x"])])


def test_rows_that_another_run_of_the_query_has_sent_meanwhile_are_told(writes, caplog):
    """Two drivers of one query at the same time, which Spark does not always prevent."""
    one, other = writes.micro_batch(7, ["a"]), writes.micro_batch(7, ["a"])
    writes.commit(7, one)
    before = writes.files
    writes.commit(7, other)

    assert writes.files == before
    assert "these are repeats: 1 row (1 byte) to 1 partition" in caplog.messages[-1]


def test_each_run_of_a_batch_write_has_a_manifest(writes):
    """Also of two in one micro-batch, by foreachBatch: they may write other rows, so both are sent."""
    for values in (["a"], ["b"]):
        writer = writes.source().writer(SCHEMA, False)
        pickle.loads(pickle.dumps(writer)).commit(writes.tasks(writer, values))
    enter_micro_batch(writes._monkeypatch, 7, QUERY)
    for values in (["c"], ["d"]):
        writer = writes.source().writer(SCHEMA, False)
        pickle.loads(pickle.dumps(writer)).commit(writes.tasks(writer, values))

    assert writes.stored == [b"a", b"b", b"c", b"d"]
    assert all(name == f"run-{manifest['runId']}.json" for name, manifest in writes.files.items())
    assert sorted(writes.view("queryId", "batchId"), key=str) == [(QUERY, 7)] * 2 + [(None, None)] * 2


def test_a_micro_batch_that_spark_did_not_name_has_none_and_is_told(writes, caplog):
    caplog.set_level("INFO")
    writes.commit(7, writes.tasks(writes.source().streamWriter(SCHEMA, False), ["a"]))

    assert writes.files == {}
    missing, written = caplog.messages[-2:]
    assert "it has no manifest" in missing
    assert written == "micro-batch 7 wrote 1 row (1 byte) to 1 partition"


def test_a_failed_write_has_a_manifest_of_what_is_known(writes):
    """Spark hands over nothing for the tasks that failed; a replay is sent, and has its own manifest."""
    messages = writes.micro_batch(7, ["a", "b"], ["c"])
    writes.abort(7, [messages[0], None])
    writes.commit(7, writes.micro_batch(7, ["a", "b"], ["c"]))

    assert sorted(writes.view("outcome", "batchId", "count")) == [
        ("aborted", 7, 1),
        ("aborted", 7, 1),
        ("written", 7, 1),
        ("written", 7, 2),
    ]
    assert len(writes.stored) == 6


def test_a_failed_run_of_a_batch_write_has_a_manifest_of_what_is_known(writes):
    writer = writes.source().writer(SCHEMA, False)
    pickle.loads(pickle.dumps(writer)).abort([*writes.tasks(writer, ["a"]), None])

    assert writes.view("outcome", "queryId", "count") == [("aborted", None, 1)]
    ((_, manifest),) = writes.files.items()
    assert manifest["runId"]


def test_a_failed_write_that_stored_nothing_has_none(writes):
    writes.source()
    writes.abort(7, [None, None])
    writer = writes.source().writer(SCHEMA, False)
    writer.abort([None])
    assert writes.files == {}


def test_without_the_option_nothing_is_written_down(writes):
    source = TubeMQDataSource({"tubemq.master.servers": "master:8715", "topic": "demo"})
    enter_micro_batch(writes._monkeypatch, 7, QUERY)
    for _ in range(2):
        messages = writes.tasks(source.streamWriter(SCHEMA, False), ["a"])
        source.streamWriter(SCHEMA, False).commit(messages, 7)
        source.streamWriter(SCHEMA, False).abort(messages, 7)
    assert writes.stored == [b"a", b"a"]
    assert not writes.folder.exists()


@pytest.mark.parametrize("kind", ["writer", "streamWriter"])
def test_a_folder_that_cannot_be_written_to_is_refused_on_the_driver(writes, kind):
    writes.folder.write_text("not a folder")
    with pytest.raises(FolderError, match="'receiptsPath' cannot be written to"):
        getattr(writes.source(), kind)(SCHEMA, False)
    assert writes.stored == []


def test_a_task_that_cannot_see_the_folder_fails_and_sends_nothing(writes):
    """It cannot know whether the micro-batch was written before."""
    enter_micro_batch(writes._monkeypatch, 7, QUERY)
    writer = writes.source().streamWriter(SCHEMA, False)
    writes.folder.rmdir()
    with pytest.raises(FolderError, match="'receiptsPath' cannot be read"):
        writes.tasks(writer, ["a"])
    assert writes.stored == []


def test_a_manifest_that_cannot_be_written_fails_the_micro_batch(writes, caplog):
    """Otherwise the write would go unnoticed; the error says what is in TubeMQ."""
    messages = writes.micro_batch(7, ["a"])
    writer = writes.source().streamWriter(SCHEMA, False)
    for path in (writes.folder,):
        path.rmdir()
        path.write_text("not a folder any more")
    with pytest.raises(FolderError):
        writer.commit(messages, 7)
    writer.abort(messages, 7)
    assert "stays in TubeMQ, at least: 1 row" in caplog.messages[-2]
    assert "there is no manifest of what the failed write has stored" in caplog.messages[-1]


def test_a_file_that_is_no_manifest_is_named(writes):
    writes.source().streamWriter(SCHEMA, False)
    (writes.folder / NAME.format(7)).write_text("{}")
    with pytest.raises(ManifestFormatError, match=r"batch-0000000007\.json is not a manifest"):
        writes.micro_batch(7, ["a"])
    with pytest.raises(ManifestFormatError, match=r"receipts/query-.* is not a manifest"):
        writes.view()


def test_values_of_any_kind_are_compared(writes, caplog):
    """Nulls have no value to send, but a replay must not fail over one."""
    schema = StructType([StructField("value", BinaryType())])
    enter_micro_batch(writes._monkeypatch, 7, QUERY)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"\xff", b"x" * 300], pa.binary())})
    for _ in range(2):
        writer = writes.source().streamWriter(schema, False)
        writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([rows.slice(1), rows.slice(0, 1)]))], 7)
    assert writes.stored == [b"x" * 300, b"\xff"]
    assert not [message for message in caplog.messages if message.startswith("the values of")]


def test_dead_letters_are_compared_as_they_were_sent(writes, caplog):
    """A null has a body of its own there."""
    options = {"onError": "deadLetter", "deadLetterTopic": "dead"}
    enter_micro_batch(writes._monkeypatch, 7, QUERY)
    rows = pa.RecordBatch.from_pydict({"value": pa.array(["a", None, "", "b"], pa.string())})
    for _ in range(2):
        writer = writes.source(**options).streamWriter(SCHEMA, False)
        message = pickle.loads(pickle.dumps(writer)).write(iter([rows]))
        writes.source(**options).streamWriter(SCHEMA, False).commit([message], 7)
    assert writes.stored == [b"\0", b"\0", b"a", b"b"]
    assert sorted(writes.view("topic", "count")) == [("dead", 2), ("demo", 1), ("demo", 1)]
    assert not [message for message in caplog.messages if message.startswith("the values of")]


def test_a_manifest_tells_how_the_ids_of_its_rows_begin(writes):
    """Unless rows may have ids of their own."""
    writes.commit(7, writes.micro_batch(7, ["a", "b"], ["c"]))
    ids = {
        re.search(r"messageUid=([^,]+)", attributes)[1]
        for log in writes._cluster.logs.values()
        for _, (_, attributes) in log
    }
    ((_, manifest),) = writes.files.items()
    assert len(ids) == 3
    assert {one[:8] for one in ids} == {manifest["uidPrefix"]}

    writer = writes.source(stampMessageUid="false").writer(SCHEMA, False)
    writer.commit(writes.tasks(writer, ["d"]))
    own = StructType([*SCHEMA.fields, StructField("messageUid", StringType())])
    writer = writes.source().writer(own, False)
    row = pa.RecordBatch.from_pydict({"value": ["e"], "messageUid": ["mine"]})
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([row]))])
    assert sorted(str(one["uidPrefix"]) for one in writes.files.values()) == [
        "None",
        "None",
        manifest["uidPrefix"],
    ]


def test_the_view_needs_the_folder_and_no_cluster():
    with pytest.raises(OptionError, match="Option 'receiptsPath' must be specified for the view 'receipts'"):
        TubeMQDataSource({"view": "receipts"}).reader(SCHEMA)
    with pytest.raises(OptionError, match="'lossLedger' has no effect in the view 'receipts'"):
        TubeMQDataSource({"view": "receipts", "receiptsPath": "/x", "lossLedger": "/y"}).reader(SCHEMA)


def test_kept_manifests_are_shown():
    """What earlier releases have written."""
    folder = Path(__file__).parents[1] / "files" / "manifests"
    rows = read_view({"view": "receipts", "receiptsPath": str(folder)})
    assert {(row["outcome"], row["count"], row["checksum"]) for row in rows} == {
        ("written", 5_000_000, (1 << 53) + 1),
        ("written", 3, 4_000_000_000),
        ("written", 1, 7),
        ("aborted", 3, 4_000_000_000),
    }
    assert {row["uidPrefix"] for row in rows} == {"Zm9vYmFy", None}
    assert {row["time"].isoformat() for row in rows} == {"2026-11-22T20:46:55.123000+00:00"}
