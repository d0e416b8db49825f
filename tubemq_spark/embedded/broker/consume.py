"""Consumers at a broker: register, unregister, heartbeat, fetch and commit (BrokerServiceServer).

Below, a partition is one as one group sees it (``OffsetKey``). The broker keeps two things for it:

* its **lease**: which consumer holds it, and until when. It is *free* without a lease and *held* with one. A
  lease whose time is over still holds it until it is ended: by the periodic ``expire_leases``, or by a
  register of another consumer, which is refused all the same;
* its **position**: the committed offset of the group, and how far the holder has read beyond it (*in
  flight*). The committed offset outlives leases and restarts, what is in flight does not.

========== ============ ================================================= ===============
Request    Free         Held by the caller                                Held by another
========== ============ ================================================= ===============
register   granted      granted again, what was in flight is dropped      410
heartbeat  411          lease renewed                                     412
fetch      411          lease renewed; the position moves, and is         412
                        committed first where the mode is automatic
commit     401          in flight becomes committed, or is dropped        401
unregister 411          in flight is committed (read status 0) or         412
                        dropped; the partition is free
expiry                  in flight is dropped; the partition is free
========== ============ ================================================= ===============

Invariants:

1. A lease is granted and ended, and a position changes, only under the lock of the position
   (``OffsetTable.locked``). So fetches of one partition never overlap, and a lease cannot end between the
   check and the read. Only renewing needs no lock: it is one assignment.
2. What is in flight belongs to the lease under which it was read: no later holder can commit it.
3. A request first looks for the lease without the lock, so that one without a lease is refused cheaply and
   leaves no position behind; then it looks again under the lock.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tubemq_spark.embedded.broker.fetching import NOTHING, FetchResponse, fetch_failure, read_messages
from tubemq_spark.embedded.broker.flow_control import Allowance
from tubemq_spark.embedded.broker.groups import NO_OFFSET, GrantedLease, GroupPosition, OffsetKey
from tubemq_spark.embedded.broker.state import BrokerState, has_partition
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.dispatch import (
    MAX_NAME_CHARACTERS,
    OK,
    Operation,
    RefusedError,
    failure,
    required,
    trimmed,
)
from tubemq_spark.embedded.log.records import LogBounds
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.constants import MOST_MESSAGE_TYPES, UNDEFINED, Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import PartitionInfo, format_partition, parse_partition
from tubemq_spark.protocol.payload import java_hash
from tubemq_spark.protocol.pb import broker_pb2 as pb

logger = logging.getLogger(__name__)


class ConsumerHandlers:
    """Answers methods 15 to 18."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        refused = failure(pb.RegisterResponseB2C, success=False, currOffset=NOTHING)
        not_heard = failure(pb.HeartBeatResponseB2C, success=False)
        not_committed = failure(pb.CommitOffsetResponseB2C, success=False, currOffset=NOTHING)
        self.operations: Mapping[int, Operation[Any]] = {
            Method.PARTITION_REGISTER: Operation(pb.RegisterRequestC2B, self.register, refused),
            Method.PARTITION_HEARTBEAT: Operation(pb.HeartBeatRequestC2B, self.heartbeat, not_heard),
            Method.GET_MESSAGE: Operation(pb.GetMessageRequestC2B, self.fetch, fetch_failure),
            Method.COMMIT_OFFSET: Operation(pb.CommitOffsetRequestC2B, self.commit, not_committed),
        }

    def register(self, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        """Grant a partition to a consumer, or take it back from it."""
        self._state.check_running("StoreService")
        self._state.check_token(request.authInfo, producer=False)
        client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
        topic, _ = self._state.topic(request.topicName)
        group = required("groupName", request.groupName, MAX_NAME_CHARACTERS)
        partition = OffsetKey(group, topic, request.partitionId)
        if request.opType == OpType.REGISTER:
            return self._grant(partition, client_id, request)
        if request.opType == OpType.UNREGISTER:
            return self._release(partition, client_id, commit=request.readStatus == 0)
        raise RefusedError(ErrCode.BAD_REQUEST, f"Invalid request:{request.opType}")

    def heartbeat(self, request: pb.HeartBeatRequestC2B) -> pb.HeartBeatResponseB2C:
        """Renew the leases that a consumer holds, and name those that it does not hold."""
        self._state.check_running("StoreService")
        self._state.check_token(request.authInfo, producer=False)
        client_id, group = _caller(request)
        priority = _query_priority(request)
        failures = []
        for text in request.partitionInfo:
            # TubeMQ compares neither the broker nor the address with its own.
            named = parse_partition(text)
            lease = self._state.leases.find(OffsetKey(group, named.topic, named.partition_id))
            if lease is None:
                failures.append(f"{int(ErrCode.HB_NO_NODE)}:{_full_name(named)}")
            elif lease.client_id != client_id:
                failures.append(f"{int(ErrCode.DUPLICATE_PARTITION)}:{_full_name(named)}")
            else:
                self._state.leases.renew(lease)
                lease.query_priority = priority
        return pb.HeartBeatResponseB2C(
            success=True,
            **OK,
            hasPartFailure=bool(failures),
            failureInfo=failures,
            requireAuth=False,
        )

    def fetch(self, request: pb.GetMessageRequestC2B) -> FetchResponse:
        """Return messages of a partition, from the position of its group on."""
        self._state.check_reads()
        client_id, group = _caller(request)
        topic, spec = self._state.topic(request.topicName)
        partition = OffsetKey(group, topic, request.partitionId)
        text = f"UnRegistered Consumer:{client_id}, you have to register firstly!"
        if_free = RefusedError(ErrCode.HB_NO_NODE, text)

        def if_other(owner: str) -> RefusedError:
            place = f"Partition={partition} of Broker={self._state.broker_id}"
            text = f"[Duplicated Request] {place} has been consumed by {owner};Current consumer {client_id}"
            return RefusedError(ErrCode.DUPLICATE_PARTITION, text)

        with self._locked(partition, client_id, if_free, if_other) as (position, lease):
            self._state.leases.renew(lease)
            if spec.status > TopicStatus.SOFT_DELETED:
                place = (
                    f"topic={topic},partitionId={partition.partition_id} of Broker={self._state.broker_id}"
                )
                text = f"[Partition Closed] Partition has been closed, for {place}"
                raise RefusedError(ErrCode.FORBIDDEN, text)
            store = self._open_for_fetch(partition)
            return read_messages(self._state, store, partition, lease, position, request)

    def commit(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        """Commit what a consumer has fetched, or drop it."""
        self._state.check_running("StoreService")
        client_id, group = _caller(request)
        topic, _ = self._state.open_partition(request.topicName, request.partitionId)
        partition = OffsetKey(group, topic, request.partitionId)
        if_free = RefusedError(ErrCode.UNAUTHORIZED, "The partition not registered by consumers")

        def if_other(owner: str) -> RefusedError:
            text = f"The partition has been registered by other consumer: {owner}"
            return RefusedError(ErrCode.UNAUTHORIZED, text)

        with self._locked(partition, client_id, if_free, if_other) as (position, lease):
            consumed = request.lastPackConsumed if request.HasField("lastPackConsumed") else True
            committed = position.commit(consumed=consumed)
        return pb.CommitOffsetResponseB2C(
            success=True,
            **OK,
            currOffset=committed,
            maxOffset=self._reported_end(lease, self._state.store(partition, "").bounds),
        )

    def expire_leases(self) -> None:
        """Free the partitions of consumers that were silent for too long; what they fetched is dropped."""
        for partition in self._state.leases.expired():
            with self._state.offsets.locked(partition) as position:
                lease = self._state.leases.find(partition)
                if lease is not None and self._state.leases.has_expired(lease):
                    self._state.leases.end(partition)
                    position.drop_in_flight()
                    logger.info("the lease of consumer %s on %s timed out", lease.client_id, partition)

    def forget_idle_groups(self) -> None:
        """Forget the offsets of groups that have not moved for a long time and have no consumers."""
        busy = {partition.group for partition in self._state.leases.all()}
        for group in self._state.offsets.forget_idle(self._state.settings.group_expiry_ms, busy):
            logger.info("the offsets of group %s were forgotten: they had not changed for too long", group)

    @contextlib.contextmanager
    def _locked(
        self,
        partition: OffsetKey,
        client_id: str,
        if_free: RefusedError,
        if_other: Callable[[str], RefusedError],
    ) -> Iterator[tuple[GroupPosition, GrantedLease]]:
        """Lock a partition that a consumer holds; ``if_other`` takes the client that holds it instead."""
        if self._state.leases.find(partition) is None:
            raise if_free
        with self._state.offsets.locked(partition) as position:
            lease = self._state.leases.find(partition)
            if lease is None:
                raise if_free
            if lease.client_id != client_id:
                raise if_other(lease.client_id)
            yield position, lease

    def _grant(
        self, partition: OffsetKey, client_id: str, request: pb.RegisterRequestC2B
    ) -> pb.RegisterResponseB2C:
        types = {trimmed("filterCondStr", item) for item in request.filterCondStr} - {""}
        if len(types) > MOST_MESSAGE_TYPES:
            text = f"filterCondStr's item count over max allowed count ({MOST_MESSAGE_TYPES})!"
            raise RefusedError(ErrCode.BAD_REQUEST, text)
        offset = request.currOffset if request.HasField("currOffset") else NO_OFFSET
        with self._state.offsets.locked(partition) as position:
            self._refuse_if_other_holds(partition, position, client_id)
            # Before the store is opened: a consumer of a partition that does not exist holds it nevertheless.
            key_codes = frozenset(java_hash(item) for item in types)
            allowance = Allowance(self._state.settings.first_transfer_bytes)
            lease = GrantedLease(client_id, key_codes, _query_priority(request), allowance)
            self._state.leases.grant(partition, lease)
            try:
                bounds = self._open_for_register(partition).bounds
            except RefusedError:
                self._state.leases.limit_refused(partition, lease)
                raise
            start = position.register(request.readStatus, offset, bounds)
        logger.info("%s registered by %s, from %d (asked for %d)", partition, client_id, start, offset)
        return pb.RegisterResponseB2C(
            success=True,
            **OK,
            currOffset=start,
            maxOffset=self._reported_end(lease, bounds),
        )

    def _open_for_register(self, partition: OffsetKey) -> Store:
        failure = "Register broker failure!, exception is "
        spec = self._state.catalog.get(partition.topic)
        if spec is None or not has_partition(spec, partition.partition_id):
            valid = "" if spec is None else f"0,{spec.partitions - 1}"
            wrong = f"Wrong partition value {partition.partition_id},valid partitions in ({valid})"
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure + wrong)
        return self._state.store(partition, failure)

    def _open_for_fetch(self, partition: OffsetKey) -> Store:
        failure = f"Get the store of topic {partition.topic} in partition {partition.partition_id} failure!"
        spec = self._state.catalog.get(partition.topic)
        if spec is None or not has_partition(spec, partition.partition_id):
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure)
        try:
            return self._state.stores.open(partition.topic, partition.partition_id // PARTITIONS_PER_STORE)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("the store of %s cannot be opened", partition)
            raise RefusedError(ErrCode.INTERNAL_SERVER_ERROR, failure) from error

    def _refuse_if_other_holds(self, partition: OffsetKey, position: GroupPosition, client_id: str) -> None:
        lease = self._state.leases.find(partition)
        if lease is None or lease.client_id == client_id:
            return
        if self._state.leases.has_expired(lease):
            # The register that finds a dead consumer removes it, and is refused all the same.
            position.drop_in_flight()
            self._state.leases.end(partition)
            text = f"Remove Invalid Consumer Register {lease.client_id}#{partition}"
        else:
            text = f"Partition {self._state.broker_id}#{partition} has been registered by {lease.client_id}"
        raise RefusedError(ErrCode.PARTITION_OCCUPIED, f"[Duplicated Register] {text}")

    def _release(self, partition: OffsetKey, client_id: str, *, commit: bool) -> pb.RegisterResponseB2C:
        if_free = RefusedError(
            ErrCode.HB_NO_NODE, f"UnRegistered Consumer {client_id}, you have to register firstly!"
        )

        def if_other(owner: str) -> RefusedError:
            text = f"[Duplicated Request]Partition {partition} has been consumed by {owner}"
            text = f"{text};Current consumer {client_id}, broker={self._state.host}"
            return RefusedError(ErrCode.DUPLICATE_PARTITION, text)

        with self._locked(partition, client_id, if_free, if_other) as (position, _):
            if commit and position.recorded:
                position.commit(consumed=True)
            position.drop_in_flight()
            self._state.leases.end(partition)
        return pb.RegisterResponseB2C(success=True, **OK, currOffset=NOTHING)

    def _reported_end(self, lease: GrantedLease, bounds: LogBounds) -> int:
        """Return the end of a store as registers and commits report it.

        They take the priority as it is, not by its digits: only priority 1 gets the end of what is flushed,
        not 101 (BrokerServiceServer.getRealQryPriorityId).
        """
        return bounds.flushed if self._state.query_priority(lease) <= 1 else bounds.latest


def _caller(
    request: pb.HeartBeatRequestC2B | pb.GetMessageRequestC2B | pb.CommitOffsetRequestC2B,
) -> tuple[str, str]:
    """Return the client id and the group that a request names."""
    client_id = required("clientId", request.clientId, MAX_NAME_CHARACTERS)
    return client_id, required("groupName", request.groupName, MAX_NAME_CHARACTERS)


def _query_priority(request: pb.RegisterRequestC2B | pb.HeartBeatRequestC2B) -> int:
    return request.qryPriorityId if request.HasField("qryPriorityId") else UNDEFINED


def _full_name(named: PartitionInfo) -> str:
    return format_partition(named.broker_id, named.endpoint, named.topic, named.partition_id)
