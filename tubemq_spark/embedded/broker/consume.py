"""Consumers at a broker: register, unregister, heartbeat, fetch, commit (BrokerServiceServer)."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tubemq_spark.embedded.broker.fetch_answer import encode_found
from tubemq_spark.embedded.broker.fetch_failures import NOTHING, fetch_failure, not_found, nothing_at
from tubemq_spark.embedded.broker.flow_control import Allowance, FlowRules, RuleError, parse_rules
from tubemq_spark.embedded.broker.leases import GrantedLease
from tubemq_spark.embedded.broker.offsets import NO_WISH, GroupPosition, Seat
from tubemq_spark.embedded.broker.state import BrokerState, has_partition
from tubemq_spark.embedded.broker.visibility import View, read_bytes
from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required, trimmed
from tubemq_spark.embedded.log.bounds import StoreBounds
from tubemq_spark.embedded.log.reading import Batch, ReadLimits
from tubemq_spark.embedded.log.records import RECORD_HEADER
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol import infostrings
from tubemq_spark.protocol.constants import UNDEFINED, Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import java_hash
from tubemq_spark.protocol.pb import broker_pb2 as pb

logger = logging.getLogger(__name__)

_NO_RULES: Final = FlowRules()


class ConsumerHandlers:
    """Answers methods 15 to 18."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.operations: Mapping[int, Operation[Any]] = {
            Method.PARTITION_REGISTER: Operation(pb.RegisterRequestC2B, self.register, _register_failure),
            Method.PARTITION_HEARTBEAT: Operation(pb.HeartBeatRequestC2B, self.heartbeat, _heartbeat_failure),
            Method.GET_MESSAGE: Operation(pb.GetMessageRequestC2B, self.fetch, fetch_failure),
            Method.COMMIT_OFFSET: Operation(pb.CommitOffsetRequestC2B, self.commit, _commit_failure),
        }

    def register(self, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        """Give a partition to a consumer, or take it back."""
        self._state.check_running("StoreService")
        self._state.check_token(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        topic, _ = self._state.topic(request.topicName)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        seat = Seat(group, topic, request.partitionId)
        if request.opType == OpType.REGISTER:
            return self._take(seat, client_id, request)
        if request.opType == OpType.UNREGISTER:
            return self._give_back(seat, client_id, commit=request.readStatus == 0)
        raise RefusedError(ErrCode.BAD_REQUEST, f"Invalid request:{request.opType}")

    def heartbeat(self, request: pb.HeartBeatRequestC2B) -> pb.HeartBeatResponseB2C:
        """Renew the leases that a consumer holds, and name those it does not hold."""
        self._state.check_running("StoreService")
        self._state.check_token(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        priority = _query_priority(request)
        failures = []
        for text in request.partitionInfo:
            # TubeMQ compares neither broker nor address with its own.
            held = infostrings.parse_partition(text)
            lease = self._state.leases.find(Seat(group, held.topic, held.partition_id))
            if lease is None:
                failures.append(f"{int(ErrCode.HB_NO_NODE)}:{_full_name(held)}")
            elif lease.client_id != client_id:
                failures.append(f"{int(ErrCode.DUPLICATE_PARTITION)}:{_full_name(held)}")
            else:
                self._state.leases.renew(lease)
                lease.query_priority = priority
        return pb.HeartBeatResponseB2C(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            hasPartFailure=bool(failures),
            failureInfo=failures,
            requireAuth=False,
        )

    def fetch(self, request: pb.GetMessageRequestC2B) -> pb.GetMessageResponseB2C | bytes:
        """Return messages of a partition, from where its group stands."""
        self._state.check_reads()
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        topic, spec = self._state.topic(request.topicName)
        seat = Seat(group, topic, request.partitionId)
        with self._held(seat, client_id, _not_registered(client_id), self._held_by_other) as (
            position,
            lease,
        ):
            self._state.leases.renew(lease)
            if spec.status > TopicStatus.SOFT_DELETED:
                place = f"topic={topic},partitionId={seat.partition_id} of Broker={self._state.broker_id}"
                text = f"[Partition Closed] Partition has been closed, for {place}"
                raise RefusedError(ErrCode.FORBIDDEN, text)
            store = self._open(
                seat, f"Get the store of topic {topic} in partition {seat.partition_id} failure!"
            )
            return self._read_from(store, seat, lease, position, request)

    def commit(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        """Confirm, or drop, what a consumer has fetched."""
        self._state.check_running("StoreService")
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        topic, _ = self._state.open_partition(request.topicName, request.partitionId)
        seat = Seat(group, topic, request.partitionId)
        absent = RefusedError(ErrCode.UNAUTHORIZED, "The partition not registered by consumers")
        with self._held(seat, client_id, absent, _committed_by_other) as (position, lease):
            consumed = request.lastPackConsumed if request.HasField("lastPackConsumed") else True
            committed = position.commit(consumed=consumed)
        return pb.CommitOffsetResponseB2C(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            currOffset=committed,
            maxOffset=self._end_told(lease, self._state.store(seat, "").bounds),
        )

    def expire_leases(self) -> None:
        """Free the partitions of consumers that were not heard of; what they fetched is not confirmed."""
        for seat in self._state.leases.expired():
            with self._state.offsets.locked(seat) as position:
                lease = self._state.leases.find(seat)
                if lease is not None and self._state.leases.has_expired(lease):
                    self._state.leases.end(seat)
                    position.drop_in_flight()
                    logger.info("%s of consumer %s timed out", _key(seat), lease.client_id)

    def forget_idle_groups(self) -> None:
        """Forget where groups stand that have not moved for long, unless they have consumers."""
        busy = {seat.group for seat in self._state.leases.all()}
        for group in self._state.offsets.forget_idle(self._state.settings.group_expiry_ms, busy):
            logger.info("the offsets of group %s were forgotten: it has not moved for long", group)

    @contextlib.contextmanager
    def _held(
        self,
        seat: Seat,
        client_id: str,
        absent: RefusedError,
        by_other: Callable[[Seat, str, str], RefusedError],
    ) -> Iterator[tuple[GroupPosition, GrantedLease]]:
        """Lock a seat that a consumer holds.

        Raises:
            RefusedError: ``absent`` when nobody holds it, what ``by_other`` makes when somebody else does.
        """
        if self._state.leases.find(seat) is None:
            raise absent
        with self._state.offsets.locked(seat) as position:
            lease = self._state.leases.find(seat)
            if lease is None:
                raise absent
            if lease.client_id != client_id:
                raise by_other(seat, lease.client_id, client_id)
            yield position, lease

    def _take(self, seat: Seat, client_id: str, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        types = {trimmed("filterCondStr", item) for item in request.filterCondStr} - {""}
        wish = request.currOffset if request.HasField("currOffset") else NO_WISH
        with self._state.offsets.locked(seat) as position:
            self._check_free(seat, position, client_id)
            # Before the store is looked at: who asks for a partition that is not there holds it all the same.
            lease = self._new_lease(client_id, types, _query_priority(request))
            self._state.leases.grant(seat, lease)
            try:
                bounds = self._open_for_register(seat).bounds
            except RefusedError:
                self._state.leases.keep_for_a_while(seat, lease)
                raise
            start = position.register(request.readStatus, wish, bounds)
        logger.info("%s registered by %s, from %d (wished %d)", _key(seat), client_id, start, wish)
        return pb.RegisterResponseB2C(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            currOffset=start,
            maxOffset=self._end_told(lease, bounds),
        )

    def _new_lease(self, client_id: str, types: set[str], priority: int) -> GrantedLease:
        key_codes = frozenset(java_hash(item) for item in types)
        allowance = Allowance(self._state.settings.first_transfer_bytes)
        return GrantedLease(client_id, key_codes, priority, allowance)

    def _open_for_register(self, seat: Seat) -> Store:
        failure = "Register broker failure!, exception is "
        spec = self._state.catalog.get(seat.topic)
        if spec is None or not has_partition(spec, seat.partition_id):
            valid = "" if spec is None else f"0,{spec.partitions - 1}"
            wrong = f"Wrong partition value {seat.partition_id},valid partitions in ({valid})"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure + wrong)
        return self._state.store(seat, failure)

    def _open(self, seat: Seat, failure: str) -> Store:
        """Return the store of a partition, or refuse (500) with a text."""
        spec = self._state.catalog.get(seat.topic)
        if spec is None or not has_partition(spec, seat.partition_id):
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure)
        try:
            return self._state.stores.open(seat.topic, seat.partition_id // PARTITIONS_PER_STORE)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("the store of %s cannot be opened", _key(seat))
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure) from error

    def _check_free(self, seat: Seat, position: GroupPosition, client_id: str) -> None:
        lease = self._state.leases.find(seat)
        if lease is None or lease.client_id == client_id:
            return
        if self._state.leases.has_expired(lease):
            # Who finds a dead consumer removes it and is turned away all the same.
            position.drop_in_flight()
            self._state.leases.end(seat)
            text = f"Remove Invalid Consumer Register {lease.client_id}#{_key(seat)}"
        else:
            text = f"Partition {self._state.broker_id}#{_key(seat)} has been registered by {lease.client_id}"
        raise RefusedError(ErrCode.PARTITION_OCCUPIED, f"[Duplicated Register] {text}")

    def _give_back(self, seat: Seat, client_id: str, *, commit: bool) -> pb.RegisterResponseB2C:
        absent = RefusedError(
            ErrCode.HB_NO_NODE, f"UnRegistered Consumer {client_id}, you have to register firstly!"
        )
        with self._held(seat, client_id, absent, self._kept_by_other) as (position, _):
            if commit and position.recorded:
                position.commit(consumed=True)
            position.drop_in_flight()
            self._state.leases.end(seat)
        return pb.RegisterResponseB2C(success=True, errCode=ErrCode.SUCCESS, errMsg="OK!", currOffset=NOTHING)

    def _kept_by_other(self, seat: Seat, owner: str, client_id: str) -> RefusedError:
        text = f"[Duplicated Request]Partition {_key(seat)} has been consumed by {owner}"
        text = f"{text};Current consumer {client_id}, broker={self._state.host}"
        return RefusedError(ErrCode.DUPLICATE_PARTITION, text)

    def _read_from(
        self,
        store: Store,
        seat: Seat,
        lease: GrantedLease,
        position: GroupPosition,
        request: pb.GetMessageRequestC2B,
    ) -> pb.GetMessageResponseB2C | bytes:
        """Find out where to read, and whether the consumer may now; then read."""
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
            wall_ms(),
            escape=request.escFlowCtrl,
        )
        if wait_ms is not None:
            text = "RpcServer consume speed limit!"
            return fetch_failure(ErrCode.SERVER_CONSUME_SPEED_LIMIT, text, wait_ms)
        return self._read(store, seat, lease, position, start, manual=request.manualCommitOffset)

    def _read(
        self,
        store: Store,
        seat: Seat,
        lease: GrantedLease,
        position: GroupPosition,
        start: int,
        *,
        manual: bool,
    ) -> pb.GetMessageResponseB2C | bytes:
        bounds, view = store.bounds, self._view(lease)
        visible_end = view.end(bounds)
        try:
            batch = store.read(seat.partition_id, start, self._limits(lease, visible_end, bounds))
        except OSError as error:
            logger.info("%s cannot be read: %s", _key(seat), error)
            self._state.reads.count_error(error)
            text = f"Get message failure, errMsg={error}"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, text) from error
        self._state.reads.count_success()
        if batch is None:
            # Looked at anew: files may have expired since.
            return nothing_at(start, store.bounds, view)
        position.end_read(batch.next_offset - start, manual=manual, empty=not batch.records)
        if not batch.records and self._state.settings.moving_404:
            return not_found("Can't found Message by index!", bounds.data_latest)
        lease.allowance.count(batch.data_end, _stored_bytes(batch))
        slow = view.slow(bounds, start, batch.next_offset, self._partitions(seat.topic))
        return encode_found(batch, start, visible_end, bounds, slow=slow)

    def _held_by_other(self, seat: Seat, owner: str, client_id: str) -> RefusedError:
        place = f"Partition={_key(seat)} of Broker={self._state.broker_id}"
        text = f"[Duplicated Request] {place} has been consumed by {owner};Current consumer {client_id}"
        return RefusedError(ErrCode.DUPLICATE_PARTITION, text)

    def _view(self, lease: GrantedLease) -> View:
        return View.of(self._priority(lease), filtered=bool(lease.key_codes))

    def _priority(self, lease: GrantedLease) -> int:
        """Return what a consumer may see: by what it says itself, else as the cluster is set."""
        cluster = self._state.controls.cluster.query_priority
        return lease.query_priority if lease.query_priority > 0 else cluster

    def _end_told(self, lease: GrantedLease, bounds: StoreBounds) -> int:
        """Return where a store ends for registers and commits, which take the priority as it is.

        So they tell the end on the disk for 1 alone, not for 101 (BrokerServiceServer.getRealQryPriorityId).
        """
        return bounds.flushed if self._priority(lease) <= 1 else bounds.latest

    def _flow_rules(self) -> FlowRules:
        cluster = self._state.controls.cluster
        return _rules_of(cluster.flow_rules) if cluster.flow_control else _NO_RULES

    def _partitions(self, topic: str) -> int:
        spec = self._state.catalog.get(topic)
        return 1 if spec is None else spec.partitions

    def _limits(self, lease: GrantedLease, visible_end: int, bounds: StoreBounds) -> ReadLimits:
        settings, allowance = self._state.settings, lease.allowance
        return ReadLimits(
            visible_end,
            read_bytes(allowance.read_bytes, allowance.data_end, bounds, settings.transfer_bytes),
            settings.max_entries,
            lease.key_codes,
            settings.halving_quirk,
        )


@functools.lru_cache(maxsize=8)
def _rules_of(text: str) -> FlowRules:
    try:
        return parse_rules(text)
    except RuleError as error:
        logger.warning("flow control rules do not apply, they cannot be read: %s", error)
        return _NO_RULES


def _key(seat: Seat) -> str:
    return f"{seat.group}:{seat.topic}:{seat.partition_id}"


def _query_priority(request: pb.RegisterRequestC2B | pb.HeartBeatRequestC2B) -> int:
    return request.qryPriorityId if request.HasField("qryPriorityId") else UNDEFINED


def _not_registered(client_id: str) -> RefusedError:
    text = f"UnRegistered Consumer:{client_id}, you have to register firstly!"
    return RefusedError(ErrCode.HB_NO_NODE, text)


def _committed_by_other(_seat: Seat, owner: str, _client_id: str) -> RefusedError:
    text = f"The partition has been registered by other consumer: {owner}"
    return RefusedError(ErrCode.UNAUTHORIZED, text)


def _full_name(held: infostrings.PartitionInfo) -> str:
    return infostrings.format_partition(held.broker_id, held.endpoint, held.topic, held.partition_id)


def _stored_bytes(batch: Batch) -> int:
    """Return the size of a batch's messages in the data log."""
    return int(batch.records.sizes.sum()) + RECORD_HEADER.size * len(batch.records)


def _register_failure(code: int, text: str) -> pb.RegisterResponseB2C:
    return pb.RegisterResponseB2C(success=False, errCode=code, errMsg=text, currOffset=NOTHING)


def _heartbeat_failure(code: int, text: str) -> pb.HeartBeatResponseB2C:
    return pb.HeartBeatResponseB2C(success=False, errCode=code, errMsg=text)


def _commit_failure(code: int, text: str) -> pb.CommitOffsetResponseB2C:
    return pb.CommitOffsetResponseB2C(success=False, errCode=code, errMsg=text, currOffset=NOTHING)
