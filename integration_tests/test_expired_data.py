"""Data that the Java broker removed before the index that points to it."""

import dataclasses
import json

import pytest

from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ServerSettings
from integration_tests.rig.messages import assert_same_rows, client_config, cluster_of, produce_numbers
from integration_tests.rig.queries import Collected, losses, numbers, read, read_stream, run, start
from integration_tests.rig.servers import await_files, server_of
from integration_tests.rig.store_check import first_offset_from, logs
from testkit.readers import Requests
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import DataLossError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecorder
from tubemq_spark.source.schema import default_schema
from tubemq_spark.testing.client import TopicClient

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(600)]

TOPIC = "expiring"
PARTITION = TopicPartition(TOPIC, 1, 0)
MESSAGE_BYTES = 2048
LEAST_LEFT_BYTES = 1 << 20
"""So much must be in the last file of the data, the one that never expires."""
MOST_LEFT_BYTES = 3 << 20
"""So much more would let a further file begin."""
EXPIRY_SECONDS = 240
"""The broker looks for what is older than 20 s once a minute."""
PATIENCE_SECONDS = 120
STORES = 17


@pytest.fixture
def cluster():
    """Data in files of 2000 messages, an index in files of 200 000 entries."""
    require_real_tubemq()
    settings = ServerSettings(max_segment_bytes=4 << 20, max_index_segment_bytes=200_000 * INDEX_ENTRY_BYTES)
    properties = {"deletePolicy": "delete,20s", "memCacheMsgSizeInMB": 16}
    with RealTubeMQ({TOPIC: TopicSpec(properties=properties)}, settings=settings) as running:
        yield running


class Store:
    """The topic's one store."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.count = 0

    def produce(self, count):
        """Send so many messages and wait until they are in files."""
        produce_numbers(
            self._cluster.master, TOPIC, range(self.count, self.count + count), width=MESSAGE_BYTES
        )
        self.count += count
        await_files(self._cluster, 1, TOPIC)

    @property
    def directory(self):
        return self._cluster.brokers[1].data / f"{TOPIC}-0"

    def first_left(self):
        """Return the offset of the first message in the last file of the data."""
        begin, _ = logs(self.directory)[1].last_file
        return first_offset_from(self.directory, begin)

    def bytes_left(self):
        return logs(self.directory)[1].last_file[1]

    def first_readable(self):
        """Return the first offset that the broker gives a message for."""
        client = cluster_of(client_config(self._cluster.master))
        held = OffsetBounds(0, self.count * INDEX_ENTRY_BYTES)
        return client.first_readable(client.layout([TOPIC]), {PARTITION: held})[PARTITION]


@pytest.fixture
def cluster_that_forgets():
    """Data and index in files of 2000 messages each, which are removed together."""
    require_real_tubemq()
    settings = ServerSettings(max_segment_bytes=4 << 20, max_index_segment_bytes=2_000 * INDEX_ENTRY_BYTES)
    properties = {"deletePolicy": "delete,20s", "memCacheMsgSizeInMB": 16}
    with RealTubeMQ({TOPIC: TopicSpec(properties=properties)}, settings=settings) as running:
        yield running


def test_a_member_of_a_group_is_told_what_expired_before_it_was_read(cluster_that_forgets, record_property):
    """While it holds the partition, and before it came; the group goes on with what is left."""
    store = Store(cluster_that_forgets)
    store.produce(20_000)
    losses = LossRecorder()
    consumer = ConsumerConfig(consume_position=ConsumePosition.FIRST)
    config = dataclasses.replace(
        client_config(cluster_that_forgets.master, "forgetful"), heartbeat_period_ms=1_000, consumer=consumer
    )
    admin = cluster_that_forgets.brokers[1].admin

    def earliest():
        return admin.pubinfo([TOPIC])[TOPIC, 0].earliest

    def next_batch(member):
        batch = next(filter(None, (member.fetch(1_000) for _ in range(PATIENCE_SECONDS))))
        return batch, member.confirm(batch).offset

    with TubeMQClient(config) as client:
        with client.group_consumer(TOPIC, on_loss=losses) as member:
            _, position = next_batch(member)
            first = earliest()
            wait_until(
                lambda: earliest() > max(first, position),
                timeout_s=EXPIRY_SECONDS,
                what="retention",
                poll_s=2,
            )
            batch, end = next_batch(member)
        (loss,) = losses.records
        assert (loss.loss, loss.start, loss.end) == (Loss.EXPIRED, position, batch.offset)

        store.produce(20_000)
        wait_until(lambda: earliest() > end, timeout_s=EXPIRY_SECONDS, what="retention again", poll_s=2)
        with pytest.raises(DataLossError, match=f"EXPIRED.*{end}"), client.group_consumer(TOPIC) as member:
            next_batch(member)
    record_property("expired", loss.end - loss.start)


def test_a_new_stream_reads_what_is_left_and_tells_of_no_loss(spark, cluster, tmp_path, record_property):
    """In small micro-batches, and again after a restart, though the index begins with what is gone."""
    store = Store(cluster)
    store.produce(20_000)
    while not LEAST_LEFT_BYTES <= store.bytes_left() <= MOST_LEFT_BYTES:
        store.produce(700)
    first = store.first_left()
    wait_until(lambda: store.first_readable() == first, timeout_s=EXPIRY_SECONDS, what="retention", poll_s=2)
    assert cluster.brokers[1].admin.pubinfo([TOPIC])[TOPIC, 0].earliest == 0

    stream = read_stream(spark, server_of(cluster), TOPIC, maxOffsetsPerTrigger="100")
    sink = Collected()
    query = start(stream, sink, tmp_path, processingTime="0 seconds")
    wait_until(lambda: len(sink.batches) >= 2, timeout_s=PATIENCE_SECONDS, what="two micro-batches")
    query.stop()
    before = list(sink.batches)
    run(stream, sink, tmp_path)

    batches = dict(sink.batches)
    assert len(before) < len(batches)
    assert all(batches[number] == rows for number, rows in before)
    rows = [row for number in batches for row in batches[number]]
    assert_same_rows(rows, range(first // INDEX_ENTRY_BYTES, store.count))

    ledger = tmp_path / "losses"
    options = {
        "startingOffsets": json.dumps({TOPIC: {"1:0": INDEX_ENTRY_BYTES}}),
        "failOnDataLoss": "false",
        "lossLedger": str(ledger),
    }
    assert numbers(read(spark, server_of(cluster), TOPIC, **options)) == rows
    missing = first // INDEX_ENTRY_BYTES - 1
    # The index still has them: the broker passes over them and gives what comes next in the same answer.
    ((place, start_offset, end_offset, *rest),) = losses(spark, ledger)
    assert (place, start_offset, *rest) == (str(PARTITION), INDEX_ENTRY_BYTES, missing, "SKIPPED", None)
    assert end_offset >= first
    record_property("messages", store.count)
    record_property("readable", len(rows))
    record_property("micro-batches", len(batches))


def test_only_logs_that_lost_data_are_read_to_plan(record_property, monkeypatch):
    """Of one store of many, a file of the data is gone, as retention takes it, and its index is whole."""
    require_real_tubemq()
    with RealTubeMQ({TOPIC: TopicSpec(stores=STORES)}) as cluster:
        store = Store(cluster)
        with TopicClient(cluster.master, "sender") as client:
            client.send(TOPIC, *[b"x" * MESSAGE_BYTES] * 4_000, partition=(1, 0))
            for number in range(1, STORES):
                client.send(TOPIC, b"x", partition=(1, 10_000 * number))
        await_files(cluster, 1, TOPIC)
        cluster.stop_broker(1)
        min(store.directory.glob("*.tube")).unlink()
        cluster.start_broker(1)
        begins = {
            place: bounds.earliest for place, bounds in cluster.brokers[1].admin.pubinfo([TOPIC]).items()
        }
        assert set(begins.values()) == {0}

        requests = Requests(monkeypatch)
        servers = {"tubemq.master.servers": cluster.master, "tubemq.master.web": cluster.master_web}
        reader = TubeMQDataSource({**servers, "subscribe": TOPIC}).reader(
            default_schema(include_attributes=False)
        )
        starts = {
            work.range.partition.partition_id: work.range.start
            for task in reader.partitions()
            for work in task.requests
        }

        first = first_offset_from(store.directory, logs(store.directory)[1].start)
        assert first > 0
        assert starts == {10_000 * number: 0 for number in range(STORES)} | {0: first}
        assert set(requests.fetched) == {(TOPIC, 0)}
        record_property("fetches", len(requests.fetched))
        record_property("bytes", requests.bytes)
