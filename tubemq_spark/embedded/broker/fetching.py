"""Reading for a fetch: where it starts, whether the consumer may read now, and what it gets."""

import functools
import logging
from typing import Final

from tubemq_spark.embedded.broker.fetch_answer import encode_found
from tubemq_spark.embedded.broker.fetch_failures import NOTHING, fetch_failure, not_found, nothing_at
from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules
from tubemq_spark.embedded.broker.leases import GrantedLease
from tubemq_spark.embedded.broker.offsets import GroupPosition, Seat
from tubemq_spark.embedded.broker.services import told
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.broker.visibility import View, read_bytes
from tubemq_spark.embedded.clock import monotonic_ms, wall_ms
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.log.bounds import LogBounds
from tubemq_spark.embedded.log.reading import Batch, ReadLimits
from tubemq_spark.embedded.log.records import RECORD_HEADER
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.flow_rules import FlowRules
from tubemq_spark.protocol.pb import broker_pb2 as pb

logger = logging.getLogger(__name__)

_NO_RULES: Final = FlowRules()

FetchResponse = pb.GetMessageResponseB2C | bytes
"""The answer to a fetch; one with messages is already serialised."""


class FetchReader:
    """Reads for consumers; hold the lock of the seat's position during each call."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state

    def read(
        self,
        store: Store,
        seat: Seat,
        lease: GrantedLease,
        position: GroupPosition,
        request: pb.GetMessageRequestC2B,
    ) -> FetchResponse:
        """Return the messages that come next, or why there are none; the position moves."""
        settings, bounds = self._state.settings, store.bounds
        start = position.begin_read(
            manual=request.manualCommitOffset,
            last_consumed=request.lastPackConsumed,
            bounds=bounds,
            update=settings.update_consumer_offsets,
        )
        if start is None:
            return not_found("The request offset reached maxOffset!", NOTHING)
        wait_ms = lease.allowance.wait_ms(
            self._flow_rules(),
            bounds.data_latest,
            settings.transfer_bytes,
            monotonic_ms(),
            clock_ms=wall_ms(),
            escape=request.escFlowCtrl,
        )
        if wait_ms is not None:
            text = "RpcServer consume speed limit!"
            return fetch_failure(ErrCode.SERVER_CONSUME_SPEED_LIMIT, text, wait_ms)
        return self._read_from(start, store, seat, lease, position, manual=request.manualCommitOffset)

    def _read_from(
        self,
        start: int,
        store: Store,
        seat: Seat,
        lease: GrantedLease,
        position: GroupPosition,
        *,
        manual: bool,
    ) -> FetchResponse:
        bounds = store.bounds
        view = View.of(self._state.query_priority(lease), filtered=bool(lease.key_codes))
        visible_end = view.end(bounds)
        batch = self._read_batch(store, seat, start, self._limits(lease, visible_end, bounds))
        if batch is None:
            # The bounds are asked for again: files may have expired in the meantime.
            return nothing_at(start, store.bounds, view)
        position.end_read(batch.next_offset - start, manual=manual, empty=not batch.records)
        if not batch.records and self._state.settings.moving_404:
            return not_found("Can't found Message by index!", bounds.data_latest)
        lease.allowance.count(batch.data_end, _stored_bytes(batch))
        slow = view.slow(bounds, start, batch.next_offset, self._partition_count(seat.topic))
        return encode_found(batch, start, visible_end, bounds, slow=slow)

    def _read_batch(self, store: Store, seat: Seat, start: int, limits: ReadLimits) -> Batch | None:
        try:
            batch = store.read(seat.partition_id, start, limits)
        except OSError as error:
            logger.info("%s cannot be read: %s", seat, error)
            self._state.reads.count_error(error)
            text = f"Get message failure, errMsg={told(error)}"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, text) from error
        self._state.reads.count_success()
        return batch

    def _limits(self, lease: GrantedLease, visible_end: int, bounds: LogBounds) -> ReadLimits:
        settings, allowance = self._state.settings, lease.allowance
        return ReadLimits(
            visible_end,
            read_bytes(allowance.read_bytes, allowance.data_end, bounds, settings.transfer_bytes),
            settings.max_entries,
            lease.key_codes,
            settings.halving_quirk,
        )

    def _flow_rules(self) -> FlowRules:
        cluster = self._state.controls.cluster
        return _rules_of(cluster.flow_rules) if cluster.flow_control else _NO_RULES

    def _partition_count(self, topic: str) -> int:
        spec = self._state.catalog.get(topic)
        return 1 if spec is None else spec.partitions


@functools.lru_cache(maxsize=8)
def _rules_of(text: str) -> FlowRules:
    try:
        return parse_rules(text)
    except RuleError as error:
        logger.warning("the flow control rules are not applied because they cannot be parsed: %s", error)
        return _NO_RULES


def _stored_bytes(batch: Batch) -> int:
    """Return the size of a batch's messages in the data log."""
    return int(batch.records.sizes.sum()) + RECORD_HEADER.size * len(batch.records)
