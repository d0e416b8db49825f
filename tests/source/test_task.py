"""A thread fetches ahead of Spark, hands over what it has before it waits, and ends with whoever reads."""

import threading
import zoneinfo

import pyarrow as pa
import pytest
from tubemq_spark.net.kept_channels import KeptChannels, process_channels

from tests.source.rows import PARTITION, fetched
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route
from tubemq_spark.net.memory import keep_freed_memory
from tubemq_spark.protocol.constants import Method
from tubemq_spark.source import task
from tubemq_spark.source.arrow import TARGET_BYTES, BatchBuilder
from tubemq_spark.source.schema import arrow_schema, default_schema
from tubemq_spark.source.task import _Account, _ahead, _Feed, _Reading
from tubemq_spark.spark.worker import spare_collector
from tubemq_spark.testing.client import TopicClient

WAIT_SECONDS = 10
SCHEMA = default_schema(include_attributes=False)


def running():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tubemq-read-")]


def ahead(batches):
    def read(feed):
        for batch in batches:
            feed.put(batch)

    return _ahead(read, name="tubemq-read-test")


def test_rows_read_ahead_come_in_their_order():
    assert list(ahead(iter(range(100)))) == list(range(100))
    assert running() == []


def test_no_thread_runs_before_the_first_row_is_asked_for():
    reading = ahead(iter(range(3)))

    assert running() == []
    assert list(reading) == [0, 1, 2]


def test_an_error_comes_behind_the_rows_before_it():
    error = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="here", cause="test")

    def failing():
        yield 1
        yield 2
        raise error

    reading = ahead(failing())
    assert [next(reading), next(reading)] == [1, 2]
    with pytest.raises(TubeMQConnectionError) as raised:
        next(reading)

    assert raised.value is error
    assert running() == []


def test_closing_a_reading_stops_its_thread():
    """LIMIT and cancelled jobs close the generator."""

    def endless():
        while True:
            yield 0

    reading = ahead(endless())
    next(reading)
    assert [thread.daemon for thread in running()] == [True]
    reading.close()

    assert running() == []


def test_the_thread_goes_only_a_little_ahead():
    produced, blocked = [], threading.Event()

    def counting():
        for number in range(100):
            produced.append(number)
            if number == 3:
                blocked.set()
            yield number

    reading = ahead(counting())
    assert next(reading) == 0
    # One is read, two wait in the queue, one is in the thread's hand.
    assert blocked.wait(WAIT_SECONDS)
    assert produced == [0, 1, 2, 3]
    assert next(reading) == 1
    reading.close()


def test_closing_a_reading_does_not_wait_for_a_broker():
    """What waits (for a lease, or for a broker that is away) is told."""
    waiting = threading.Event()

    def patient(feed):
        feed.put(1)
        waiting.set()
        feed.pause(10 * WAIT_SECONDS)

    reading = _ahead(patient, name="tubemq-read-test")
    assert next(reading) == 1
    assert waiting.wait(WAIT_SECONDS)
    reading.close()

    assert running() == []


def test_a_wait_that_is_not_cut_short_ends():
    def patient(feed):
        feed.pause(0.001)
        feed.put(1)

    assert list(_ahead(patient, name="tubemq-read-test")) == [1]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def feed():
    return _Feed()


@pytest.fixture
def reading(feed, clock):
    return _Reading(BatchBuilder(arrow_schema(SCHEMA), zoneinfo.ZoneInfo("UTC")), feed, clock)


def run(reading, *ranges):
    for fetched_batches in ranges:
        reading.add_range(fetched_batches, exact_offsets=True)
    reading.finish()


def rows(*values):
    return fetched([(value, None) for value in values])


def handed_over(feed):
    found = []
    while not feed._items.empty():
        found.append(feed.get().column("value").to_pylist())
    return found


def test_quick_fetches_are_put_together(reading, feed):
    run(reading, iter([rows(b"a"), rows(b"b"), rows(b"c")]))

    assert handed_over(feed) == [[b"a", b"b", b"c"]]


def test_small_ranges_are_put_together(reading, feed):
    run(reading, iter([rows(b"a")]), iter([]), iter([rows(b"b"), rows(b"c")]))

    assert handed_over(feed) == [[b"a", b"b", b"c"]]


def test_a_reader_that_has_to_wait_hands_over_what_it_has(reading, feed):
    def broker():
        yield rows(b"a")
        yield rows(b"b")
        reading.check()
        yield rows(b"c")

    run(reading, broker())

    assert handed_over(feed) == [[b"a", b"b"], [b"c"]]


def test_rows_that_come_slowly_do_not_wait_for_a_full_batch(reading, feed, clock):
    def broker():
        for value in (b"a", b"b", b"c", b"d", b"e"):
            clock.now += 0.04
            yield rows(value)

    run(reading, broker())

    assert handed_over(feed) == [[b"a", b"b", b"c", b"d"], [b"e"]]


def test_a_reader_that_has_to_wait_does_not_wait_for_spark_as_well(reading, feed):
    """While Spark is busy there is no hurry, and the reader's time-outs go on."""

    def broker():
        for value in (b"a", b"b", b"c", b"d"):
            yield rows(value)
            reading.check()
        assert handed_over(feed) == [[b"a"], [b"b"]]

    run(reading, broker())

    assert handed_over(feed) == [[b"c", b"d"]]


def test_a_task_says_in_one_line_what_it_did_and_waited_for(feed, clock, caplog):
    """Every second is somewhere: at the broker, at Spark, or in the task's own work."""
    range_ = OffsetRange(PARTITION, 0, 28)
    request = RangeRequest(range_, Route(Endpoint("broker", 1), 0), own_store=True)
    account = _Account([request, request], clock)
    reading = _Reading(BatchBuilder(arrow_schema(SCHEMA), zoneinfo.ZoneInfo("UTC")), feed, clock, account)
    put = feed.put

    def busy_spark(batch):
        clock.now += 5
        put(batch)

    def broker():
        for value in (b"a", b"bc"):
            clock.now += 1
            yield rows(value, value)
        clock.now += 0.5

    feed.put = busy_spark
    reading.add_range(broker(), exact_offsets=True)
    clock.now += 10
    reading.finish()
    with caplog.at_level("INFO", "tubemq_spark.source.task"):
        account.log()
    nbytes = feed.get().nbytes
    (line,) = caplog.messages
    assert line == (
        f"{range_} and 1 more: 4 rows, {nbytes} bytes, 2 fetches; "
        "2.500 s waiting for the broker, 5.000 s for Spark, of 17.500 s"
    )


def test_the_line_comes_at_the_end_of_each_task_also_of_one_that_is_cancelled(server, caplog):
    options = {"tubemq.master.servers": server.master, "subscribe": "demo", "tubemq.rpcTimeoutMs": "600000"}
    reader = TubeMQDataSource(options).reader(SCHEMA)
    (partition,) = reader.partitions()
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
    reader = TubeMQDataSource({"tubemq.master.servers": server.master, "subscribe": "demo"}).reader(SCHEMA)
    (partition,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 10


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, settings=EmbeddedSettings(max_entries=4)) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(10)))
        yield server


def test_a_frozen_broker_holds_back_no_row_and_no_cancelled_job(server):
    """The rows that are there come before the answer that does not, and who stops reading does not wait."""
    options = {"tubemq.master.servers": server.master, "subscribe": "demo", "tubemq.rpcTimeoutMs": "600000"}
    reader = TubeMQDataSource(options).reader(SCHEMA)
    (partition,) = reader.partitions()
    with server.faults.hold(Method.GET_MESSAGE, skip=1) as held:
        rows = reader.read(partition)
        assert next(rows).column("value").to_pylist() == [b"0", b"1", b"2", b"3"]
        assert held.wait_for_hits()
        closing = threading.Thread(target=rows.close)
        closing.start()
        closing.join(WAIT_SECONDS)
        assert not closing.is_alive()
        held.release()
    assert running() == []


def test_the_ranges_of_a_task_are_read_one_after_the_other():
    with EmbeddedTubeMQ(topics={"demo": (5, 1)}) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(50)))
        options = {"tubemq.master.servers": server.master, "subscribe": "demo"}
        reader = TubeMQDataSource(options).reader(default_schema(include_attributes=False))
        (partition,) = reader.partitions()
        table = pa.Table.from_batches(reader.read(partition)).to_pydict()

    assert sorted(map(int, table["value"])) == list(range(50))
    assert len(set(zip(table["partition"], table["offset"], strict=True))) == 50
    assert table["partition"] == sorted(table["partition"])


def test_a_task_prepares_its_process_for_many_large_pieces(server):
    """Collections are short, and freed memory of three batches is used again."""
    prepared = keep_freed_memory, spare_collector
    for function in prepared:
        function.cache_clear()
    reader = TubeMQDataSource({"tubemq.master.servers": server.master, "subscribe": "demo"}).reader(SCHEMA)
    (partition,) = reader.partitions()
    assert list(reader.read(partition))

    hits = [function.cache_info().hits for function in prepared]
    keep_freed_memory(3 * TARGET_BYTES)
    spare_collector()
    assert [function.cache_info().hits for function in prepared] == [count + 1 for count in hits]


def test_a_task_reads_over_a_channel_that_serves_the_next_task(monkeypatch):
    """The driver's looks into many partitions share one channel per broker."""
    taken, take = [], KeptChannels.take
    monkeypatch.setattr(KeptChannels, "take", lambda *of: taken.append(take(*of)) or taken[-1])
    with EmbeddedTubeMQ(topics={"demo": (3, 1)}) as server:
        with TopicClient(server.master, "etl") as client:
            client.send("demo", *(b"%d" % number for number in range(30)))
        options = {"tubemq.master.servers": server.master, "subscribe": "demo"}
        reader = TubeMQDataSource(options).reader(default_schema(include_attributes=False))
        partitions = reader.partitions()
        looking = {**options, "startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "latest"}
        TubeMQDataSource(looking).reader(default_schema(include_attributes=False)).partitions()
        assert taken == []
        for _ in range(2):
            assert sum(batch.num_rows for part in partitions for batch in reader.read(part)) == 30
        assert len(set(taken)) == 1
        process_channels().close()
