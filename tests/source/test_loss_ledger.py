"""What is passed over is in the ledger before anybody gets what comes behind it, and only once."""

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from testkit.views import read_view
from tests.micro_batches import enter_micro_batch
from tests.source.fake_cluster import partition
from tests.source.rows import fetched
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, FolderError, LedgerFormatError, OptionError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.ledger import Origin
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder
from tubemq_spark.source import loss_ledger
from tubemq_spark.source.loss_ledger import LossesOfTask, LossLedger
from tubemq_spark.source.schema import default_schema
from tubemq_spark.testing.client import TopicClient

SCHEMA = default_schema(include_attributes=False)
ALL = ReadAllAvailable()
QUERY = "8c6c57a9-6bb4-4f3c-a1a7-2a3b0ad8c6f5"


class Ledger:
    """A folder, and what is in it."""

    def __init__(self, folder):
        self.folder = folder

    @property
    def files(self):
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []

    def rows(self, *columns):
        """Return some columns of the view, made as Spark makes it."""
        rows = read_view({"view": "losses", "lossLedger": str(self.folder)})
        return [tuple(row[column] for column in columns) for row in rows] if columns else rows

    @property
    def gaps(self):
        return self.rows("topic", "brokerId", "partition", "startOffset", "endOffset", "rows", "reason")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "losses")


@pytest.fixture
def in_task(monkeypatch):
    """Make what follows look as if it ran in a task of a micro-batch."""

    def enter(batch_id, query_id=QUERY):
        enter_micro_batch(monkeypatch, batch_id, query_id)

    return enter


def source(ledger, **options):
    given = {
        "tubemq.master.servers": "master:8715",
        "subscribe": "demo",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
        "lossLedger": str(ledger.folder),
    }
    return TubeMQDataSource(given | options)


def stream(ledger, **options):
    """Return a stream reader, made and copied as Spark does."""
    return pickle.loads(pickle.dumps(source(ledger, **options).streamReader(SCHEMA)))


def without_marks(offset):
    return {**{key: value for key, value in offset.items() if key != "marks"}, "v": 1}


def at(**offsets):
    """Return an offset of a checkpoint: of the partitions ``p0``, ``p10000`` and so on of broker 1."""
    return {"v": 1, "topics": {"demo": {f"1:{name[1:]}": 28 * rows for name, rows in offsets.items()}}}


# The driver.


def test_the_driver_writes_what_the_start_passes_over(cluster, clock, ledger):
    cluster.earliest = 84
    begin = json.dumps({"demo": {"1:0": 28, "1:10000": -2, "1:20000": 0, "1:20001": 84}})
    one = stream(ledger, startingOffsets=begin)
    one.latestOffset(one.initialOffset(), ALL)

    assert ledger.gaps == [
        ("demo", 1, 0, 28, 84, 2, "EXPIRED"),
        ("demo", 1, 20_000, 0, 84, None, "EXPIRED"),
    ]
    assert set(ledger.rows("consumerGroup", "queryId", "batchId")) == {("tubemq_spark-demo", None, None)}


def test_a_gap_has_no_row_count_when_message_types_are_filtered(cluster, clock, ledger):
    cluster.partitions, cluster.earliest = {partition(0)}, 84
    one = stream(ledger, startingOffsets='{"demo":{"1:0":28}}', messageTypes="order")
    one.latestOffset(one.initialOffset(), ALL)

    assert ledger.gaps == [("demo", 1, 0, 28, 84, None, "EXPIRED")]


def test_a_query_that_starts_again_from_the_same_offset_writes_nothing_new(cluster, clock, ledger):
    """It ended before Spark had written down the offset; retention has gone on meanwhile."""
    cluster.partitions, begin = {partition(0)}, '{"demo":{"1:0":28}}'
    for earliest in (84, 84, 112):
        cluster.earliest = earliest
        one = stream(ledger, startingOffsets=begin)
        one.latestOffset(one.initialOffset(), ALL)

    assert ledger.gaps == [("demo", 1, 0, 28, 112, 3, "EXPIRED")]
    assert len(ledger.files) == 2


def test_a_loss_that_a_task_will_meet_is_not_written_by_the_driver(cluster, clock, ledger):
    """It knows the query, the micro-batch, and how far retention has come by then."""
    cluster.partitions, cluster.earliest = {partition(0)}, 84
    one = stream(ledger)
    end = one.latestOffset(at(p0=1), ALL)

    assert ledger.files == []
    (task,) = one.partitions(at(p0=1), end)
    assert str(task.requests[0].range) == "demo/1:0 [28, 140)"


def test_a_log_that_went_back_is_written_by_planning_and_not_again_by_a_replay(cluster, clock, ledger):
    cluster.partitions = {partition(0)}
    start = at(p0=8)
    one = stream(ledger)
    end = one.latestOffset(start, ALL)
    one.partitions(start, end)
    for _ in range(2):
        stream(ledger).partitions(start, end)

    assert ledger.gaps == [("demo", 1, 0, 140, 224, None, "MOVED_BACK")]
    assert len(ledger.files) == 1


def test_a_log_that_moves_back_twice_has_two_gaps(cluster, clock, ledger):
    """Offsets of a log that went back are used again, so a gap may have those of an earlier one."""
    cluster.partitions = {partition(0)}
    one = stream(ledger)
    end = one.latestOffset(at(p0=8), ALL)
    clock[0] += 100
    one.latestOffset(at(p0=7), ALL)

    assert without_marks(end) == at(p0=5)
    assert sorted(ledger.gaps) == [
        ("demo", 1, 0, 140, 196, None, "MOVED_BACK"),
        ("demo", 1, 0, 140, 224, None, "MOVED_BACK"),
    ]


def test_a_partition_that_is_gone_when_its_range_is_planned_is_written_by_a_task(
    cluster, clock, ledger, in_task
):
    """As it would be if it had gone a moment later, while the task was reading."""
    cluster.partitions = {partition(0), partition(10_000)}
    one = stream(ledger)
    start = at(p0=0, p10000=3)
    end = one.latestOffset(start, ALL)
    cluster.partitions = {partition(0)}
    in_task(3)
    for _ in range(2):
        clock[0] += 100
        one = stream(ledger)
        *_, task = one.partitions(start, end)
        assert ledger.files == [] or len(ledger.files) == 1
        assert values(one, [pickle.loads(pickle.dumps(task))]) == []

    assert ledger.gaps == [("demo", 1, 10_000, 84, 196, 4, "PARTITION_REMOVED")]
    assert ledger.rows("queryId", "batchId") == [(QUERY, 3)]
    assert "demo/1:10000" in task.value


def test_a_partition_that_is_gone_before_is_a_gap_of_unknown_length(cluster, clock, ledger):
    cluster.partitions = {partition(0)}
    one = stream(ledger)
    clock[0] += 100
    start = at(p0=0, p10000=3)
    end = one.latestOffset(start, ALL)
    while "1:10000" in end["topics"]["demo"]:
        clock[0] += 100
        end = one.latestOffset(start, ALL)
    one.partitions(start, end)

    assert ledger.gaps == [("demo", 1, 10_000, 84, 84, None, "PARTITION_REMOVED")]


def test_an_offset_that_passes_over_a_loss_is_not_returned_before_it_is_written(cluster, clock, ledger):
    cluster.partitions = {partition(0)}
    one = stream(ledger)
    one.latestOffset(at(p0=5), ALL)
    ledger.folder.rmdir()
    with pytest.raises(FolderError, match="lossLedger"):
        one.latestOffset(at(p0=8), ALL)
    with pytest.raises(FolderError, match="lossLedger"):
        one.partitions(at(p0=8), at(p0=5))
    ledger.folder.mkdir()

    assert without_marks(one.latestOffset(at(p0=8), ALL)) == at(p0=5)
    assert len(ledger.gaps) == 1


def test_a_folder_that_cannot_be_written_to_is_refused_when_the_query_starts(cluster, clock, ledger):
    ledger.folder.write_text("a file")
    for ask in (
        lambda: stream(ledger).latestOffset(stream(ledger).initialOffset(), ALL),
        lambda: stream(ledger).partitions(at(p0=0), at(p0=5)),
        lambda: source(ledger).reader(SCHEMA).partitions(),
    ):
        with pytest.raises(FolderError, match=r"lossLedger.*cannot be written to"):
            ask()


def test_a_ledger_of_a_query_that_fails_on_losses_is_not_even_made(cluster, clock, ledger, caplog):
    one = stream(ledger, failOnDataLoss="true")
    with pytest.raises(DataLossError):
        one.latestOffset(at(p0=8, p10000=0, p20000=0, p20001=0), ALL)

    assert not ledger.folder.exists()
    assert "'lossLedger' has no effect" in caplog.text


def test_what_was_written_is_not_written_again_while_it_is_remembered(ledger, monkeypatch):
    monkeypatch.setattr(loss_ledger, "_REMEMBERED_FILES", 1)
    written = LossLedger(source(ledger)._options.for_stream_read())
    written.prepare()

    def write(end):
        written.write([LossRecord(Loss.EXPIRED, partition(0), 0, end)], Origin("group", "read"))
        names = ledger.files
        for name in names:
            (ledger.folder / name).unlink()
        return len(names)

    assert [write(28), write(28), write(56), write(56), write(28)] == [1, 0, 1, 0, 1]


def test_idle_questions_write_nothing(cluster, clock, ledger):
    one = stream(ledger)
    end = one.latestOffset(one.initialOffset(), ALL)
    for _ in range(5):
        clock[0] += 10
        assert one.latestOffset(end, ReadMaxRows(10)) == end
    assert ledger.files == []


def test_a_batch_read_writes_what_its_start_passes_over(cluster, ledger):
    cluster.partitions, cluster.earliest = {partition(0)}, 84
    reader = source(ledger, startingOffsets='{"demo":{"1:0":28}}').reader(SCHEMA)
    reader.partitions()

    assert ledger.gaps == [("demo", 1, 0, 28, 84, 2, "EXPIRED")]


# Tasks.


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": TopicSpec(1, 1), "shared": TopicSpec(1, 2)}, brokers=2) as running:
        yield running


def send(server, topic, *values, place=(1, 0)):
    with TopicClient(server.master, "sender") as client:
        client.send(topic, *values, partition=place)


def planned(server, ledger, topic="demo", **options):
    """Return a stream's reader with the tasks of all its rows, of which the first seven then expire."""
    send(server, topic, *"abcdefg")
    one = stream(ledger, **{"tubemq.master.servers": server.master, "subscribe": topic, **options})
    begin = one.initialOffset()
    tasks = one.partitions(begin, one.latestOffset(begin, ALL))
    server.apply_retention(topic, older_than_ms=0)
    return one, pickle.loads(pickle.dumps(tasks))


def values(reader, tasks):
    return [row["value"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_task_writes_what_it_passes_over_with_its_query_and_micro_batch(server, ledger, in_task):
    one, tasks = planned(server, ledger)
    in_task(3)

    assert values(one, tasks) == []
    assert ledger.gaps == [("demo", 1, 0, 0, 196, 7, "EXPIRED")]
    assert ledger.rows("consumerGroup", "queryId", "batchId") == [("tubemq_spark-demo", QUERY, 3)]
    assert ledger.rows("time")[0][0].utcoffset().total_seconds() == 0


def test_attempts_of_a_task_write_its_losses_once(server, ledger, in_task):
    """A task that is repeated, a twin, a restarted query, a further action on a micro-batch."""
    one, tasks = planned(server, ledger)
    in_task(3)
    for _ in range(3):
        values(one, tasks)

    assert len(ledger.files) == 1
    assert ledger.gaps == [("demo", 1, 0, 0, 196, 7, "EXPIRED")]


def test_tasks_that_share_a_range_add_up_to_one_gap(server, ledger, in_task):
    one, tasks = planned(server, ledger, minPartitions="3")
    in_task(0)
    values(one, tasks)

    assert len(tasks) == 3
    assert len(ledger.files) == 3
    assert ledger.gaps == [("demo", 1, 0, 0, 196, 7, "EXPIRED")]


def test_a_loss_ends_where_the_range_does(server, ledger, in_task):
    """What comes behind is for the next micro-batch to tell, and must not be counted twice."""
    one, _ = planned(server, ledger)
    tasks = one.partitions(at_both(0), at_both(4))
    in_task(1)
    values(one, tasks)
    tasks = one.partitions(at_both(4), at_both(7))
    in_task(2)
    values(one, tasks)

    assert sorted(ledger.rows("batchId", "startOffset", "endOffset", "rows")) == [
        (1, 0, 112, 4),
        (2, 112, 196, 3),
    ]


def at_both(rows):
    return {"v": 1, "topics": {"demo": {"1:0": 28 * rows, "2:0": 0}}}


def test_rows_of_a_shared_store_are_not_counted(server, ledger, in_task):
    one, tasks = planned(server, ledger, "shared")
    in_task(0)
    values(one, tasks)

    assert sorted(ledger.gaps) == [
        ("shared", 1, 0, 0, 196, None, "EXPIRED"),
        ("shared", 1, 1, 0, 196, None, "EXPIRED"),
    ]


def test_rows_behind_a_loss_come_only_when_it_is_written(server, ledger, in_task):
    one, _ = planned(server, ledger)
    send(server, "demo", "h")
    more = one.partitions(one.initialOffset(), {**at_both(8), "from": {"demo": {"1:0": 0, "2:0": 0}}})
    in_task(0)
    ledger.folder.rmdir()
    with pytest.raises(FolderError, match=r"lossLedger.*cannot be written to"):
        values(one, more)
    ledger.folder.mkdir()

    assert values(one, more) == [b"h"]
    assert ledger.gaps == [("demo", 1, 0, 0, 196, 7, "EXPIRED")]


def test_the_losses_before_a_batch_are_written_before_it(ledger):
    """Of a loss that reaches back, what was read before is not lost."""
    options = source(ledger)._options.for_stream_read()
    losses = LossesOfTask(LossRecorder(), LossLedger(options), Origin("group", "read"))
    LossLedger(options).prepare()

    def batches():
        losses(LossRecord(Loss.EXPIRED, partition(0), 0, 28))
        yield fetched([(b"x", None)], 28)
        losses(LossRecord(Loss.SKIPPED, partition(0), 0, 112))

    for _ in losses.recorded(batches(), OffsetRange(partition(0), 0, 84)):
        assert ledger.rows("startOffset", "endOffset", "reason") == [(0, 28, "EXPIRED")]
    assert ledger.rows("startOffset", "endOffset", "reason") == [(0, 28, "EXPIRED"), (56, 84, "SKIPPED")]


def test_a_batch_read_s_tasks_and_driver_write_as_one(server, ledger):
    """Its actions repeat its tasks."""
    send(server, "demo", *"abcdefg")
    options = {"tubemq.master.servers": server.master}
    reader = source(ledger, **options).reader(SCHEMA)
    copied = pickle.loads(pickle.dumps(reader))
    tasks = reader.partitions()
    server.apply_retention("demo", older_than_ms=0)
    for _ in range(3):
        values(copied, tasks)
    assert ledger.rows("startOffset", "endOffset", "rows", "queryId", "batchId") == [(0, 196, 7, None, None)]


# The view.


def test_a_ledger_that_is_not_there_is_an_error_and_an_empty_one_is_empty(ledger):
    with pytest.raises(FolderError, match=r"lossLedger.*cannot be read"):
        ledger.rows()
    ledger.folder.mkdir()
    assert ledger.rows() == []


def test_a_file_that_is_no_ledger_is_named(ledger):
    ledger.folder.mkdir()
    (ledger.folder / "mine.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(LedgerFormatError, match=r"losses/mine\.jsonl, line 1 is not a ledger of losses"):
        ledger.rows()


def test_the_view_needs_the_ledger_and_no_cluster():
    with pytest.raises(OptionError, match="Option 'lossLedger' must be specified for the view 'losses'"):
        TubeMQDataSource({"view": "losses"}).reader(SCHEMA)
    with pytest.raises(OptionError, match="'subscribe' has no effect in the view 'losses'"):
        TubeMQDataSource({"view": "losses", "lossLedger": "/x", "subscribe": "demo"}).reader(SCHEMA)


@pytest.mark.parametrize(
    "text", ["losses", "http://host/losses", "s3://key:S3cret@", "s9://key:S3cret@bucket/x"]
)
def test_a_bad_place_is_refused_at_once_and_shows_no_credentials(text):
    with pytest.raises(
        OptionError, match=r"Option 'lossLedger' is .* but must be an absolute path"
    ) as refused:
        TubeMQDataSource({"lossLedger": text})
    assert "S3cret" not in str(refused.value)


def test_credentials_are_neither_in_options_nor_in_errors():
    """The object store's own words say what it was given: a parameter that it does not know."""
    options = {"lossLedger": "s3://AKIAKEY:S3cret@bucket/x?region=eu-1&unknown=T0k3n", "view": "losses"}
    source = TubeMQDataSource(options)
    shown = repr(source._options) + repr(source._options.for_view())
    with pytest.raises(FolderError, match=r"s3://\*\*\*@bucket/x\?\*\*\*") as failed:
        source.reader(source.schema()).partitions()

    assert "***" in shown
    assert not [word for word in ("S3cret", "AKIAKEY", "T0k3n") if word in shown + str(failed.value)]
