"""A cluster in memory, for tests of what stands above the boundary: what is sent to it can be read."""

import collections
import contextlib
import itertools
import zlib

from tests.source.rows import columns
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.errcodes import rpc_error
from tubemq_spark.protocol.fetch_columns import FetchedBatch
from tubemq_spark.protocol.payload import empty_value, encode_prefix
from tubemq_spark.protocol.send_batch import MESSAGE_REFUSALS
from tubemq_spark.receipts import Receipt

ROW = 28


class MemoryCluster:
    """Topics on one broker, each given as (stores, partitions per store); receipts perhaps with checksums."""

    def __init__(self, *, checksums=False, **topics):
        self.checksums = checksums
        self.partitions = {
            topic: [TopicPartition(topic, 1, 10_000 * i + j) for i in range(stores) for j in range(each)]
            for topic, (stores, each) in topics.items()
        }
        self.logs = collections.defaultdict(list)  # of each store, (partition, (value, text of attributes))
        self.group = {}  # where the group stands
        self.per_fetch = None  # how many messages a batch has at most; without it all of a range
        self.fetches = 0
        self.expired = collections.Counter()  # how many messages at the beginning of a store are gone

    def layout(self, topics, *, missing_ok=False):
        topics = tuple(topics)
        missing = frozenset(topics) - self.partitions.keys()
        if missing and not missing_ok:
            raise rpc_error(431, f"no topic {sorted(missing)}", peer="memory", during="asking for a layout")
        found = sorted(one for topic in topics for one in self.partitions.get(topic, ()))
        return TopicsLayout(dict.fromkeys(found, Endpoint("memory", 1)), 0, missing)

    def topics(self):
        return set(self.partitions)

    def bounds(self, layout, stores=None, *, flushed=False, timeout_ms=None):
        return StoreBounds({one: self.held(one) for one in (layout.stores if stores is None else stores)}, {})

    def held(self, store):
        return OffsetBounds(ROW * self.expired[store], ROW * len(self.logs[store]))

    def first_readable(self, layout, begins):
        return {partition: self.held(partition.store_id).earliest for partition in begins}

    def group_positions(self, layout):
        return {one: self.group.get(one, self.held(one.store_id).earliest) for one in layout.partitions}

    def move_group(self, layout, positions):
        self.group |= positions
        return {}

    def stored_offsets(self, group=None, topics=()):
        offsets = [one for one in sorted(self.group.items()) if not topics or one[0].topic in topics]
        known = (
            StoredOffset(group or "group", one, offset, 0, self.held(one.store_id).latest, None)
            for one, offset in offsets
        )
        return StoredOffsets(tuple(known), {})

    def read_range(self, request, on_loss, wait=None):
        partition, start, end = request.range.partition, request.range.start, request.range.end
        held = self.held(partition.store_id)
        if start < min(held.earliest, end):
            on_loss(LossRecord(Loss.EXPIRED, partition, start, held.earliest))
            start = min(held.earliest, end)
        if max(start, held.latest) < end:
            on_loss(LossRecord(Loss.TRUNCATED, partition, held.latest, end))
            end = max(start, held.latest)
        rows = (end - start) // ROW
        for first in range(0, rows, self.per_fetch or max(rows, 1)):
            at = start + ROW * first
            until = start + ROW * min(rows, first + (self.per_fetch or rows))
            log = self.logs[partition.store_id][at // ROW : until // ROW]
            self.fetches += 1
            if messages := [message for owner, message in log if owner == partition]:
                yield FetchedBatch(partition, at, until, columns(messages), len(messages) == len(log))

    def refuse_unknown_topic(self, topic):
        if topic not in self.partitions:
            raise ProduceError("TUBEMQ_TOPIC_UNKNOWN", topic=topic)

    def await_publishable(self, topic):
        self.refuse_unknown_topic(topic)

    def sender(self, name=""):
        return MemorySender(self)


class MemorySender(contextlib.AbstractContextManager):
    """Stores a message at once."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._turn, self._offsets = itertools.count(), collections.defaultdict(list)
        self._bodies = collections.defaultdict(list)

    def __exit__(self, *_): ...

    def flush(self): ...

    def send_batch(self, batch, on_refused=None):
        for row in range(len(batch)):
            try:
                self.send(**batch.message(row)._asdict(), foreign=batch.headers.value(row).foreign)
            except TubeMQError as error:
                error.row = row
                if on_refused is None or error.condition not in MESSAGE_REFUSALS:
                    raise
                on_refused(row, error)

    def send(
        self,
        topic,
        value,
        *,
        key=None,
        partition=None,
        attributes=None,
        message_type=None,
        message_time=None,
        foreign=False,
    ):
        self._cluster.refuse_unknown_topic(topic)
        if not value:
            raise empty_value()
        text = encode_prefix(attributes, message_type, message_time, foreign)[4:].decode() or None
        place = self._place(self._cluster.partitions[topic], key, partition)
        log = self._cluster.logs[place.store_id]
        self._offsets[place].append(ROW * len(log))
        self._bodies[place].append(value)
        log.append((place, (value, text)))

    def _place(self, partitions, key, named):
        if named is not None:
            return next(one for one in partitions if (one.broker_id, one.partition_id) == named)
        return partitions[(next(self._turn) if key is None else zlib.crc32(key)) % len(partitions)]

    def receipts(self):
        return [
            Receipt(
                *(place, len(at), at[0], at[-1]),
                bytes=sum(map(len, self._bodies[place])),
                checksum=sum(map(zlib.crc32, self._bodies[place])) if self._cluster.checksums else None,
            )
            for place, at in sorted(self._offsets.items())
        ]
