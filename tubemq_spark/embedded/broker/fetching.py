"""Reading for a fetch: where it starts, what the consumer may see now, and what it gets.

The answers without messages are those of BrokerServiceServer, MsgMemStore and MsgFileStore, what may be seen
is that of MessageStore. The answer with messages (GetMessageResponseB2C) is assembled from bytes: protobuf
needs 2 us and two copies per message. Here the varints around all payloads are encoded at once, and the
payloads are copied straight from the block that they were read into. The result is what protobuf writes.
"""

import dataclasses
import functools
import itertools
import logging
from typing import Final

import numpy as np

from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules
from tubemq_spark.embedded.broker.groups import GrantedLease, GroupPosition, OffsetKey
from tubemq_spark.embedded.broker.state import BrokerState, error_text
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.log.reading import LogBatch, ReadLimits, Records
from tubemq_spark.embedded.log.records import INDEX_ENTRY, RECORD_HEADER, LogBounds
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.scheduler import monotonic_ms, wall_ms
from tubemq_spark.protocol import varints
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.pb import broker_pb2 as pb

_FLUSHED_ONLY: Final = 1
"""At this level and below, a consumer sees only what is flushed to the disk."""

_USUAL_ENTRIES: Final = 1000
_LEAST_ENTRIES, _MOST_ENTRIES = 8000, 13_500
_FILTERED_FACTOR: Final = 3
_SLOW_FACTOR: Final = 10
_FAR_BEHIND_BYTES: Final = 14 << 30
"""With this much left to read (twice defaultDeduceReadSize), a read returns at most half as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """One consumer's view of a store."""

    level: int
    """1: what is flushed to the disk; 2 and 3: everything. TubeMQ's levels 2 and 3 differ in what they show
    of the messages in memory; here there are none."""
    filtered: bool

    @classmethod
    def of(cls, priority: int, *, filtered: bool) -> "View":
        """Return the view of a priority such as 301: hundreds without a filter, units with a filter."""
        return cls(priority % 100 if filtered else priority // 100, filtered)

    @property
    def files_only(self) -> bool:
        """Whether it shows only what is flushed to the disk."""
        return self.level <= _FLUSHED_ONLY

    def end(self, bounds: LogBounds) -> int:
        """Return the offset where what the consumer may see ends."""
        return bounds.flushed if self.files_only else bounds.latest

    def slow(self, bounds: LogBounds, start: int, end: int, partitions: int) -> bool:
        """Whether a consumer that read from one offset to another should fetch less often.

        That is so for a consumer with a filter that reads from files, near the end of what is flushed.
        """
        if not self.filtered or end == start or (self.level > _FLUSHED_ONLY and start >= bounds.flushed):
            return False
        entries = min(max(_USUAL_ENTRIES * partitions, _LEAST_ENTRIES), _MOST_ENTRIES)
        return bounds.flushed - end < entries * _FILTERED_FACTOR * _SLOW_FACTOR * INDEX_ENTRY.size


def read_bytes(allowed: int, data_end: int, bounds: LogBounds, transfer_bytes: int) -> int:
    """Return how many bytes one read may return: less than allowed if the consumer is far behind.

    ``data_end`` is where its last read ended in the data log.
    """
    if bounds.data_latest - data_end >= _FAR_BEHIND_BYTES:
        return min(allowed, transfer_bytes // 2)
    return allowed


NOTHING: Final = -1
"""The offset and the lag in answers that have none."""


def fetch_failure(code: int, text: str, min_limit_time: int = 0) -> pb.GetMessageResponseB2C:
    """Return an answer without messages; ``min_limit_time`` is in ms, and has a meaning with 452 only."""
    return pb.GetMessageResponseB2C(
        success=False,
        errCode=code,
        errMsg=text,
        currOffset=NOTHING,
        minLimitTime=min_limit_time,
        escFlowCtrl=False,
        currDataDlt=NOTHING,
    )


def nothing_at(start: int, bounds: LogBounds, view: View) -> pb.GetMessageResponseB2C:
    """Say why there is nothing to read at an offset: it has expired (301) or does not exist yet (404)."""
    if start < bounds.earliest:
        text = "current offset is exceed min offset!"
        return fetch_failure(ErrCode.MOVED, text, _java_int(bounds.data_latest))
    text = (
        "current offset is exceed max file offset"
        if view.files_only
        else "Request offset reached cache maxOffset"
    )
    return not_found(text, bounds.data_latest)


def not_found(text: str, wait: int) -> pb.GetMessageResponseB2C:
    """Return a 404; ``wait`` is what Java leaves in a field that clients must ignore."""
    return fetch_failure(ErrCode.NOT_FOUND, text, _java_int(wait))


def _java_int(value: int) -> int:
    """Return the result of a Java cast from long to int."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


_TAGS: Final = bytes((0x20, 0x22, 0x08, 0x10, 0x1A))
"""Flag of the previous message; then a message, its id, its checksum and the length of its payload."""
_FIELD_OF_ZERO: Final = 2
"""Bytes of a tag with the value 0."""

_FRONT: Final = pb.GetMessageResponseB2C(
    success=True, errCode=ErrCode.SUCCESS, errMsg="OK!"
).SerializePartialToString()


def encode_found(batch: LogBatch, start: int, visible_end: int, bounds: LogBounds, *, slow: bool) -> bytes:
    """Return the serialised answer.

    ``start`` is where the read began, ``visible_end`` where what the consumer may see ends; ``slow`` asks it
    to fetch less often.
    """
    back = pb.GetMessageResponseB2C(
        currOffset=start,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=bounds.data_latest - batch.data_end,
        requireSlow=slow,
        maxOffset=visible_end,
    ).SerializePartialToString()
    return b"".join((_FRONT, *_messages(batch.records), back))


def _messages(records: Records) -> list[bytes | memoryview]:
    """Return the messages (TransferedMessage): the payloads, and the bytes before, between and after them."""
    inside = np.column_stack((records.message_ids, records.checksums, records.sizes, records.flags))
    lengths = varints.sizes(inside).sum(axis=1) + inside.shape[1] + records.sizes
    # A flag follows its payload, so it is in the row of the next message: then there is one piece between
    # two payloads. The first row has no message before it, and the last one none after it.
    rows = np.zeros((len(inside) + 1, len(_TAGS)), np.int64)
    rows[1:, 0] = records.flags
    rows[:-1, 1] = lengths
    rows[:-1, 2:] = inside[:, :-1]
    data, ends = varints.encode_rows(_TAGS, rows)
    cuts = [_FIELD_OF_ZERO, *ends.tolist()]
    cuts[-1] -= (len(_TAGS) - 1) * _FIELD_OF_ZERO
    pieces: list[bytes | memoryview] = [b""] * (2 * len(records) + 1)
    pieces[::2] = [data[start:end] for start, end in itertools.pairwise(cuts)]
    pieces[1::2] = records.payloads
    return pieces


logger = logging.getLogger(__name__)

_NO_RULES: Final = FlowRules()

FetchResponse = pb.GetMessageResponseB2C | bytes
"""The answer to a fetch; one with messages is already serialised."""


def read_messages(
    state: BrokerState,
    store: Store,
    partition: OffsetKey,
    lease: GrantedLease,
    position: GroupPosition,
    request: pb.GetMessageRequestC2B,
) -> FetchResponse:
    """Return the messages that come next, or why there are none; the position moves, so hold its lock."""
    settings, bounds, allowance = state.settings, store.bounds, lease.allowance
    start = position.begin_read(
        manual=request.manualCommitOffset,
        last_consumed=request.lastPackConsumed,
        bounds=bounds,
        update=settings.update_consumer_offsets,
    )
    if start is None:
        return not_found("The request offset reached maxOffset!", NOTHING)
    cluster = state.controls.cluster
    wait_ms = allowance.wait_ms(
        _rules_of(cluster.flow_rules) if cluster.flow_control else _NO_RULES,
        bounds.data_latest,
        settings.transfer_bytes,
        monotonic_ms(),
        clock_ms=wall_ms(),
        escape=request.escFlowCtrl,
    )
    if wait_ms is not None:
        text = "RpcServer consume speed limit!"
        return fetch_failure(ErrCode.SERVER_CONSUME_SPEED_LIMIT, text, wait_ms)
    view = View.of(state.query_priority(lease), filtered=bool(lease.key_codes))
    visible_end = view.end(bounds)
    limits = ReadLimits(
        visible_end,
        read_bytes(allowance.read_bytes, allowance.data_end, bounds, settings.transfer_bytes),
        settings.max_entries,
        lease.key_codes,
        settings.halving_quirk,
    )
    batch = _read_batch(state, store, partition, start, limits)
    if batch is None:
        # The bounds are asked for again: files may have expired in the meantime.
        return nothing_at(start, store.bounds, view)
    position.end_read(batch.next_offset - start, manual=request.manualCommitOffset, empty=not batch.records)
    if not batch.records and settings.moving_404:
        return not_found("Can't found Message by index!", bounds.data_latest)
    stored_bytes = int(batch.records.sizes.sum()) + RECORD_HEADER.size * len(batch.records)
    allowance.count(batch.data_end, stored_bytes)
    spec = state.catalog.get(partition.topic)
    slow = view.slow(bounds, start, batch.next_offset, 1 if spec is None else spec.partitions)
    return encode_found(batch, start, visible_end, bounds, slow=slow)


def _read_batch(
    state: BrokerState, store: Store, partition: OffsetKey, start: int, limits: ReadLimits
) -> LogBatch | None:
    try:
        batch = store.read(partition.partition_id, start, limits)
    except OSError as error:
        logger.info("%s cannot be read: %s", partition, error)
        state.reads.count_error(error)
        text = f"Get message failure, errMsg={error_text(error)}"
        raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, text) from error
    state.reads.count_success()
    return batch


@functools.lru_cache(maxsize=8)
def _rules_of(text: str) -> FlowRules:
    try:
        return parse_rules(text)
    except RuleError as error:
        logger.warning("the flow control rules are not applied because they cannot be parsed: %s", error)
        return _NO_RULES
