"""Consumers at a broker: register, unregister, heartbeat, fetch, commit (BrokerServiceServer)."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tubemq_spark.embedded.catalog import TopicStatus
from tubemq_spark.embedded.dispatch import MAX_NAME_CHARACTERS, Operation, RefusedError, required, trimmed
from tubemq_spark.embedded.leases import Lease
from tubemq_spark.embedded.offsets import NO_WISH, Position, Seat
from tubemq_spark.embedded.reading import Batch, ReadLimits
from tubemq_spark.embedded.settings import BROKER_ID
from tubemq_spark.embedded.state import BrokerState, has_partition
from tubemq_spark.embedded.store import Bounds, Store
from tubemq_spark.protocol import infostrings
from tubemq_spark.protocol.constants import UNDEFINED, Method, OpType, ReadStatus
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import java_hash
from tubemq_spark.protocol.pb import broker_pb2 as pb

logger = logging.getLogger(__name__)

_NOTHING: Final = -1
"""Offsets and lags in answers that carry none."""
_FILES_ONLY: Final = 1
"""Up to this level a consumer sees only what is on the disk."""


class ConsumerHandlers:
    """Answers methods 15 to 18."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.operations: Mapping[int, Operation[Any]] = {
            Method.PARTITION_REGISTER: Operation(pb.RegisterRequestC2B, self.register, _register_failure),
            Method.PARTITION_HEARTBEAT: Operation(pb.HeartBeatRequestC2B, self.heartbeat, _heartbeat_failure),
            Method.GET_MESSAGE: Operation(pb.GetMessageRequestC2B, self.fetch, _fetch_failure),
            Method.COMMIT_OFFSET: Operation(pb.CommitOffsetRequestC2B, self.commit, _commit_failure),
        }

    def register(self, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        """Give a partition to a consumer, or take it back."""
        self._state.check_running("StoreService")
        self._state.check_token(request.authInfo)
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
        self._state.check_token(request.authInfo)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        priority = _query_priority(request)
        failures = []
        for text in request.partitionInfo:
            # TubeMQ compares neither broker nor address with its own.
            held = infostrings.parse_partition(text)
            lease = self._state.leases.find(Seat(group, held.topic, held.partition_id))
            if lease is None:
                failures.append(f"{int(ErrCode.HB_NO_NODE)}:{text}")
            elif lease.client_id != client_id:
                failures.append(f"{int(ErrCode.DUPLICATE_PARTITION)}:{text}")
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

    def fetch(self, request: pb.GetMessageRequestC2B) -> pb.GetMessageResponseB2C:
        """Return messages of a partition, from where its group stands."""
        self._state.check_running("Read StoreService")
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        topic, spec = self._state.topic(request.topicName)
        seat = Seat(group, topic, request.partitionId)
        with self._held(seat, client_id, _not_registered(client_id), _held_by_other) as (position, lease):
            self._state.leases.renew(lease)
            if spec.status > TopicStatus.SOFT_DELETED:
                place = f"topic={topic},partitionId={seat.partition_id} of Broker={BROKER_ID}"
                text = f"[Partition Closed] Partition has been closed, for {place}"
                raise RefusedError(ErrCode.FORBIDDEN, text)
            return self._read(seat, lease, position, request)

    def commit(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        """Confirm, or drop, what a consumer has fetched."""
        self._state.check_running("StoreService")
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        topic, _ = self._state.open_partition(request.topicName, request.partitionId)
        seat = Seat(group, topic, request.partitionId)
        absent = RefusedError(ErrCode.UNAUTHORIZED, "The partition not registered by consumers")
        with self._held(seat, client_id, absent, _committed_by_other) as (position, _):
            consumed = request.lastPackConsumed if request.HasField("lastPackConsumed") else True
            committed = position.commit(consumed=consumed)
        return pb.CommitOffsetResponseB2C(
            success=True,
            errCode=ErrCode.SUCCESS,
            errMsg="OK!",
            currOffset=committed,
            maxOffset=self._state.store(seat, "").bounds.latest,
        )

    def expire_leases(self) -> None:
        """Free the partitions of consumers that were not heard of; what they fetched is not confirmed."""
        for seat in self._state.leases.expired():
            position = self._state.offsets.find_or_add(seat, 0)
            with position.lock:
                lease = self._state.leases.find(seat)
                if lease is not None and self._state.leases.has_expired(lease):
                    self._state.leases.end(seat)
                    position.commit(consumed=False)
                    logger.info("%s of consumer %s timed out", _key(seat), lease.client_id)

    @contextlib.contextmanager
    def _held(
        self,
        seat: Seat,
        client_id: str,
        absent: RefusedError,
        by_other: Callable[[Seat, str, str], RefusedError],
    ) -> Iterator[tuple[Position, Lease]]:
        """Lock a seat that a consumer holds.

        Raises:
            RefusedError: ``absent`` when nobody holds it, what ``by_other`` makes when somebody else does.
        """
        position = self._state.offsets.find(seat)
        if position is None:
            raise absent
        with position.lock:
            lease = self._state.leases.find(seat)
            if lease is None:
                raise absent
            if lease.client_id != client_id:
                raise by_other(seat, lease.client_id, client_id)
            yield position, lease

    def _take(self, seat: Seat, client_id: str, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        types = {trimmed("filterCondStr", item) for item in request.filterCondStr} - {""}
        bounds = self._open_for_register(seat).bounds
        from_start = request.readStatus == ReadStatus.STORED_OR_EARLIEST
        position = self._state.offsets.find_or_add(seat, bounds.earliest if from_start else bounds.latest)
        wish = request.currOffset if request.HasField("currOffset") else NO_WISH
        with position.lock:
            self._check_free(seat, client_id)
            key_codes = frozenset(java_hash(item) for item in types)
            self._state.leases.grant(seat, Lease(client_id, key_codes, _query_priority(request)))
            start = position.register(request.readStatus, wish, bounds)
        logger.info("%s registered by %s, from %d (wished %d)", _key(seat), client_id, start, wish)
        return pb.RegisterResponseB2C(
            success=True, errCode=ErrCode.SUCCESS, errMsg="OK!", currOffset=start, maxOffset=bounds.latest
        )

    def _open_for_register(self, seat: Seat) -> Store:
        failure = "Register broker failure!, exception is "
        spec = self._state.catalog.get(seat.topic)
        if spec is None or not has_partition(spec, seat.partition_id):
            valid = "" if spec is None else f"0,{spec.partitions - 1}"
            wrong = f"Wrong partition value {seat.partition_id},valid partitions in ({valid})"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure + wrong)
        return self._state.store(seat, failure)

    def _check_free(self, seat: Seat, client_id: str) -> None:
        lease = self._state.leases.find(seat)
        if lease is None or lease.client_id == client_id:
            return
        if self._state.leases.has_expired(lease):
            # Who finds a dead consumer removes it and is turned away all the same.
            self._state.leases.end(seat)
            text = f"Remove Invalid Consumer Register {lease.client_id}#{_key(seat)}"
        else:
            text = f"Partition {BROKER_ID}#{_key(seat)} has been registered by {lease.client_id}"
        raise RefusedError(ErrCode.PARTITION_OCCUPIED, f"[Duplicated Register] {text}")

    def _give_back(self, seat: Seat, client_id: str, *, commit: bool) -> pb.RegisterResponseB2C:
        with self._held(seat, client_id, _not_registered(client_id), _held_by_other) as (position, _):
            position.commit(consumed=commit)
            self._state.leases.end(seat)
        return pb.RegisterResponseB2C(
            success=True, errCode=ErrCode.SUCCESS, errMsg="OK!", currOffset=_NOTHING
        )

    def _read(
        self, seat: Seat, lease: Lease, position: Position, request: pb.GetMessageRequestC2B
    ) -> pb.GetMessageResponseB2C:
        store = self._state.store(seat, "Get the store failure! ")
        bounds = store.bounds
        manual = request.manualCommitOffset
        start = position.begin_read(manual=manual, last_consumed=request.lastPackConsumed, bounds=bounds)
        if start is None:
            return _not_found("The request offset reached maxOffset!")
        visible_end = self._visible_end(lease, bounds)
        try:
            batch = store.read(seat.partition_id, start, self._limits(lease, visible_end))
        except OSError as error:
            logger.exception("%s cannot be read", _key(seat))
            text = f"Get message failure, errMsg={error}"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, text) from error
        if batch is None:
            # Looked at anew: files may have expired since.
            return _nothing_at(start, store.bounds, visible_end)
        lease.has_read = True
        position.end_read(batch.next_offset - start, manual=manual, empty=not batch.messages)
        if not batch.messages and self._state.settings.moving_404:
            return _not_found("Can't found Message by index in cache")
        return _found(batch, start, visible_end, bounds)

    def _visible_end(self, lease: Lease, bounds: Bounds) -> int:
        """Return up to where a consumer sees, by its priority: hundreds unfiltered, units filtered."""
        priority = lease.query_priority if lease.query_priority > 0 else self._state.settings.query_priority
        level = priority % 100 if lease.key_codes else priority // 100
        return bounds.flushed if level <= _FILES_ONLY else bounds.latest

    def _limits(self, lease: Lease, visible_end: int) -> ReadLimits:
        settings = self._state.settings
        return ReadLimits(
            visible_end,
            settings.transfer_bytes if lease.has_read else settings.first_transfer_bytes,
            settings.max_entries,
            lease.key_codes,
            settings.halving_quirk,
        )


def _key(seat: Seat) -> str:
    return f"{seat.group}:{seat.topic}:{seat.partition_id}"


def _query_priority(request: pb.RegisterRequestC2B | pb.HeartBeatRequestC2B) -> int:
    return request.qryPriorityId if request.HasField("qryPriorityId") else UNDEFINED


def _not_registered(client_id: str) -> RefusedError:
    text = f"UnRegistered Consumer:{client_id}, you have to register firstly!"
    return RefusedError(ErrCode.HB_NO_NODE, text)


def _held_by_other(seat: Seat, owner: str, client_id: str) -> RefusedError:
    text = f"[Duplicated Request] Partition={_key(seat)} of Broker={BROKER_ID} has been consumed by {owner}"
    return RefusedError(ErrCode.DUPLICATE_PARTITION, f"{text};Current consumer {client_id}")


def _committed_by_other(_seat: Seat, owner: str, _client_id: str) -> RefusedError:
    text = f"The partition has been registered by other consumer: {owner}"
    return RefusedError(ErrCode.UNAUTHORIZED, text)


def _found(batch: Batch, start: int, visible_end: int, bounds: Bounds) -> pb.GetMessageResponseB2C:
    response = pb.GetMessageResponseB2C(
        success=True,
        errCode=ErrCode.SUCCESS,
        errMsg="OK!",
        currOffset=start,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=bounds.data_latest - batch.data_end,
        requireSlow=False,
        maxOffset=visible_end,
    )
    add = response.messages.add
    for message_id, crc, payload, flag in batch.messages:
        add(messageId=message_id, checkSum=crc, payLoadData=payload, flag=flag)
    return response


def _nothing_at(start: int, bounds: Bounds, visible_end: int) -> pb.GetMessageResponseB2C:
    if start < bounds.earliest:
        return _fetch_failure(ErrCode.MOVED, "current offset is exceed min offset!")
    what = "max file offset" if visible_end < bounds.latest else "max offset!"
    return _not_found(f"current offset is exceed {what}")


def _not_found(text: str) -> pb.GetMessageResponseB2C:
    response = _fetch_failure(ErrCode.NOT_FOUND, text)
    # Java fills the field with a leftover here; clients have to ignore it.
    response.minLimitTime = _NOTHING
    return response


def _register_failure(code: int, text: str) -> pb.RegisterResponseB2C:
    return pb.RegisterResponseB2C(success=False, errCode=code, errMsg=text, currOffset=_NOTHING)


def _heartbeat_failure(code: int, text: str) -> pb.HeartBeatResponseB2C:
    return pb.HeartBeatResponseB2C(success=False, errCode=code, errMsg=text)


def _fetch_failure(code: int, text: str) -> pb.GetMessageResponseB2C:
    return pb.GetMessageResponseB2C(
        success=False,
        errCode=code,
        errMsg=text,
        currOffset=_NOTHING,
        minLimitTime=0,
        escFlowCtrl=False,
        currDataDlt=_NOTHING,
    )


def _commit_failure(code: int, text: str) -> pb.CommitOffsetResponseB2C:
    return pb.CommitOffsetResponseB2C(success=False, errCode=code, errMsg=text, currOffset=_NOTHING)
