"""A task hands over what it has before it waits for its broker, fetches ahead, and ends with its reader."""

import contextlib
import threading
import time
import zoneinfo

import pyarrow as pa
import pytest

from testkit.readers import Requests
from tests.source.rows import PARTITION, fetched
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.receive_buffer import keep_freed_memory
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.source import task
from tubemq_spark.source.arrow import TARGET_BYTES, BatchBuilder
from tubemq_spark.source.schema import arrow_schema, default_schema
from tubemq_spark.source.task import _Account, _record_batches
from tubemq_spark.spark.edge import spare_collector
from tubemq_spark.testing.client import TopicClient

WAIT_SECONDS = 10
SCHEMA = default_schema(include_attributes=False)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def batches():
    return BatchBuilder(arrow_schema(SCHEMA), zoneinfo.ZoneInfo("UTC"))


def rows(*values):
    return fetched([(value, None) for value in values])


NOTHING = FetchedBatch.empty(PARTITION, 0)
"""What a cluster tells when it waits for its broker."""


def handed_over(builder, *ranges, clock=time.monotonic):
    """Return the values of each record batch that comes of some ranges."""
    found = []
    for fetches in ranges:
        found += _record_batches(builder, iter(fetches), exact_offsets=True, clock=clock)
    return [batch.column("value").to_pylist() for batch in [*found, *builder.finish()]]


def test_quick_fetches_are_put_together(batches, clock):
    fetches = [rows(b"a"), rows(b"b"), rows(b"c")]
    assert handed_over(batches, fetches, clock=clock) == [[b"a", b"b", b"c"]]


def test_small_ranges_are_put_together(batches, clock):
    ranges = [rows(b"a")], [], [rows(b"b"), rows(b"c")]
    assert handed_over(batches, *ranges, clock=clock) == [[b"a", b"b", b"c"]]


def test_a_reader_that_has_to_wait_hands_over_what_it_has(batches, clock):
    fetches = [NOTHING, rows(b"a"), rows(b"b"), NOTHING, NOTHING, rows(b"c")]
    assert handed_over(batches, fetches, clock=clock) == [[b"a", b"b"], [b"c"]]


def test_rows_that_come_slowly_do_not_wait_for_a_full_batch(batches, clock):
    def broker():
        for value in (b"a", b"b", b"c", b"d", b"e"):
            clock.now += 0.04
            yield rows(value)

    assert handed_over(batches, broker(), clock=clock) == [[b"a", b"b", b"c", b"d"], [b"e"]]


def test_a_task_says_in_one_line_what_it_did_and_waited_for(batches, clock, caplog):
    """Every second is somewhere: at the broker, at Spark, or in the task's own work."""
    range_ = OffsetRange(PARTITION, 0, 28)
    request = RangeRequest(range_, Route(Endpoint("broker", 1), 0), own_store=True)
    account = _Account([request, request], clock)

    def broker():
        for fetch in (rows(b"a", b"a"), NOTHING, rows(b"bc", b"bc")):
            clock.now += 1
            yield fetch
        clock.now += 0.5

    def task():
        yield from _record_batches(batches, account.fetched(broker()), exact_offsets=True, clock=clock)
        clock.now += 10
        yield from batches.finish()

    nbytes = 0
    for batch in account.handed_over(task()):
        nbytes += batch.nbytes
        clock.now += 5
    with caplog.at_level("INFO", "tubemq_spark.source.task"):
        account.log()
    (line,) = caplog.messages
    assert line == (
        f"{range_} and 1 more: 4 rows, {nbytes} bytes, 2 fetches; "
        "3.500 s waiting for the broker, 10.000 s for Spark, of 23.500 s"
    )


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, settings=EmbeddedSettings(max_entries=4)) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(10)))
        yield server


def reader_of(server, **options):
    """Return a reader of a topic, and its tasks."""
    reader = TubeMQDataSource(
        {"tubemq.master.servers": server.master, "subscribe": "demo", **options}
    ).reader(SCHEMA)
    return reader, reader.partitions()


def reading(server, **options):
    reader, (partition,) = reader_of(server, **options)
    return reader.read(partition)


PATIENT = {"tubemq.rpcTimeoutMs": "600000"}


def test_the_line_comes_at_the_end_of_each_task_also_of_one_that_is_cancelled(server, caplog):
    reader, (partition,) = reader_of(server, **PATIENT)
    caplog.set_level("INFO", "tubemq_spark.source.task")
    assert sum(batch.num_rows for batch in reader.read(partition)) == 10
    with server.faults.hold(Method.GET_MESSAGE, skip=1) as held:
        cancelled = reader.read(partition)
        next(cancelled)
        assert held.wait_for_hits()
        cancelled.close()
        held.release()
    lines = [one.getMessage() for one in caplog.records if one.name == "tubemq_spark.source.task"]
    assert [line.partition("bytes")[0].rpartition(",")[0] for line in lines] == [
        "demo/1:0 [0, 280): 10 rows",
        "demo/1:0 [0, 280): 4 rows",
    ]


def test_where_the_line_is_not_shown_nothing_is_counted(server, monkeypatch):
    monkeypatch.setattr(task, "_Account", None)
    assert sum(batch.num_rows for batch in reading(server)) == 10


def test_a_frozen_broker_holds_back_no_row_and_no_cancelled_job(server):
    """The rows that are there come before the answer that does not, and who stops reading does not wait."""
    rows = reading(server, **PATIENT)
    with server.faults.hold(Method.GET_MESSAGE, skip=1) as held:
        assert next(rows).column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
        assert held.wait_for_hits()
        closing = threading.Thread(target=rows.close)
        closing.start()
        closing.join(WAIT_SECONDS)
        assert not closing.is_alive()
        held.release()


def test_closing_a_reading_gives_its_lease_back(server):
    """LIMIT and cancelled jobs close the generator."""
    rows = reading(server)
    next(rows)
    rows.close()
    assert server.faults.forget_leases() == 0


def test_nothing_is_asked_before_the_first_row_is(server, monkeypatch):
    requests = Requests(monkeypatch)
    rows = reading(server)
    asked = requests.counts.total()
    rows.close()
    assert requests.counts.total() == asked


def cluster_of(server):
    return open_cluster(ClusterConfig(ClientConfig((Endpoint.parse(server.master),), "etl")), for_task=True)


def whole(layout, topic, count):
    return layout.request(OffsetRange(TopicPartition(topic, 1, 0), 0, 28 * count), own_store=True)


def test_an_error_comes_behind_the_batches_before_it(server):
    server.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST, "never", skip=2)
    cluster, found = cluster_of(server), []
    request = whole(cluster.layout(["demo"]), "demo", 10)
    with pytest.raises(RpcError, match="never"):
        found.extend(batch.columns.ordinals.tolist() for batch in cluster.read_range(request, fail_on_loss))
    assert found == [[0, 1, 2, 3]]
    assert server.faults.forget_leases() == 0


def test_an_error_reaches_spark(server):
    server.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST, "never", skip=1)
    with pytest.raises(RpcError, match="never"):
        list(reading(server))
    assert server.faults.forget_leases() == 0


def test_a_task_goes_only_a_little_ahead(monkeypatch):
    """Two batches wait for Spark, one is being confirmed, and one is on its way."""
    with EmbeddedTubeMQ(
        topics={"demo": (1, 1), "other": (1, 1)}, settings=EmbeddedSettings(max_entries=4)
    ) as server:
        with TopicClient(server.master, "etl") as client:
            for topic in ("demo", "other"):
                client.send(topic, *(b"%d" % number for number in range(100)))
        cluster = cluster_of(server)
        layout = cluster.layout(["demo", "other"])
        requests = Requests(monkeypatch)

        with contextlib.closing(cluster.read_range(whole(layout, "demo", 100), fail_on_loss)) as ahead:
            next(ahead)
            # Meanwhile the same loop reads all of another topic.
            others = cluster.read_range(whole(layout, "other", 100), fail_on_loss)
            assert sum(len(batch.columns) for batch in others) == 100
            assert 1 < requests.fetched.count(("demo", 0)) <= 5


def test_the_ranges_of_a_task_are_read_one_after_the_other():
    with EmbeddedTubeMQ(topics={"demo": (5, 1)}) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(50)))
        table = pa.Table.from_batches(reading(server)).to_pydict()

    assert sorted(map(int, table["value"])) == list(range(50))
    assert len(set(zip(table["partition"], table["offset"], strict=True))) == 50
    assert table["partition"] == sorted(table["partition"])


def test_a_task_prepares_its_process_for_many_large_pieces(server):
    """Collections are short, and freed memory of three batches is used again."""
    prepared = keep_freed_memory, spare_collector
    for function in prepared:
        function.cache_clear()
    assert list(reading(server))

    hits = [function.cache_info().hits for function in prepared]
    keep_freed_memory(3 * TARGET_BYTES)
    spare_collector()
    assert [function.cache_info().hits for function in prepared] == [count + 1 for count in hits]


def test_a_task_reads_over_a_connection_that_serves_the_next_task(monkeypatch):
    """The driver's looks into many partitions share one connection per broker."""
    taken, take = [], Connections.take

    async def noted(*of):
        taken.append(await take(*of))
        return taken[-1]

    monkeypatch.setattr(Connections, "take", noted)
    with EmbeddedTubeMQ(topics={"demo": (3, 1)}) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(30)))
        reader, partitions = reader_of(server)
        reader_of(server, startingTimestamp="0", startingOffsetsByTimestampStrategy="latest")
        assert taken == []
        for _ in range(2):
            assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 30
        assert len(set(taken)) == 1
