"""The rules of a broker that keeps offsets as the Java broker does: no socket, no thread, no clock.

They are those of BrokerServiceServer, DefaultOffsetManager and MessageStore: one index a store for all its
partitions, a committed offset and one batch in flight a lease, fetches that skip, move and halve. Messages
that are sent are checked before they are stored, and are in memory only when they are acknowledged.
"""

import collections
import dataclasses
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from tubemq_spark.model import INDEX_ENTRY_BYTES, PARTITIONS_PER_STORE, StoreId, TopicPartition
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, OpType, ReadStatus
from tubemq_spark.protocol.pb import broker_pb2

BROKER_ID: Final = 1
TOKEN: Final = 1_700_000_000_000
_RECORD_HEAD_BYTES: Final = 52
_LEASE_S: Final = 30.0

Held: TypeAlias = tuple[str, str, int]
"""A group, a topic and the id of a partition."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One record of a store."""

    partition_id: int
    value: bytes
    message_id: int
    readable: bool = True
    """Whether its data is still there; else fetches skip it without a word."""
    sound: bool = True
    """Whether its checksum is right."""
    flag: int = 0
    message_type: str = ""
    sent_as: int = 0
    """The place of the request that brought it among all that were carried out; 0: no request did."""


@dataclasses.dataclass
class Store:
    """One log. Entries before ``flushed`` are read from files, the others from memory."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    first: int = 0
    flushed: int = 0

    @property
    def earliest(self) -> int:
        """Where the first record is, in index bytes."""
        return self.first * INDEX_ENTRY_BYTES

    @property
    def latest(self) -> int:
        """Where the next record will be, in index bytes."""
        return len(self.entries) * INDEX_ENTRY_BYTES

    def append(self, partition_id: int, values: Iterable[bytes]) -> None:
        """Store records of a partition."""
        for value in values:
            self.entries.append(Entry(partition_id, value, self.next_id(partition_id)))

    def next_id(self, partition_id: int) -> int:
        """Return the id of the next record of a partition, as scattered as the real ones."""
        return 1 + (zlib.crc32(f"{partition_id}-{len(self.entries)}".encode()) << 20)


@dataclasses.dataclass
class Limits:
    """How much a fetch reads at most."""

    file_entries: int = 8_000
    memory_entries: int = 6_000
    first_bytes: int = 327_680
    later_bytes: int = 524_288
    segment_entries: int = 700_000
    halving: bool = True
    """A fetch from files handles only half of the entries it was given."""


@dataclasses.dataclass
class Holding:
    """What a broker knows of a group's partition."""

    owner: str | None = None
    timed_out: bool = False
    committed: int = 0
    in_flight: int = 0
    fetched_before: bool = False
    types: frozenset[str] = frozenset()
    """The message types that its holder wants; none: all."""
    recorded: bool = False
    """Whether the group has a position; ``committed`` is that."""
    renewed_at: float = 0.0
    """When its holder was last heard, on the broker's clock."""

    def time_out(self) -> None:
        """End the lease, as 30 s without requests do."""
        self.timed_out = self.owner is not None
        self.in_flight = 0


class BrokerModel:
    """One broker's stores, and what it knows of the groups that read them."""

    def __init__(
        self,
        stores: dict[StoreId, Store],
        partitions: int = 1,
        limits: Limits | None = None,
        broker_id: int = BROKER_ID,
    ) -> None:
        """Take all stores of all topics; every store has so many partitions."""
        self.stores = stores
        self.partitions = partitions
        self.limits = limits or Limits()
        self.broker_id = broker_id
        self.holdings: dict[Held, Holding] = collections.defaultdict(Holding)
        self.valid_tokens = {TOKEN}
        self.sends = 0
        """How many requests have stored a message."""
        self.now = 0.0
        """The broker's clock, in seconds; who runs the model sets it."""

    def answer(self, method: Method, body: bytes | memoryview) -> Message:
        """Do what a request asks and return the answer."""
        self.end_silent_leases()
        methods: dict[Method, tuple[type[Message], Callable[[Any], Message]]] = {
            Method.PARTITION_REGISTER: (broker_pb2.RegisterRequestC2B, self._register_or_unregister),
            Method.PARTITION_HEARTBEAT: (broker_pb2.HeartBeatRequestC2B, self._heartbeat),
            Method.GET_MESSAGE: (broker_pb2.GetMessageRequestC2B, self._get_message),
            Method.COMMIT_OFFSET: (broker_pb2.CommitOffsetRequestC2B, self._commit),
            Method.SEND_MESSAGE: (broker_pb2.SendMessageRequestP2B, self._send),
        }
        request_type, carry_out = methods[method]
        return carry_out(rpc.parse_message(request_type, body))

    def leases(self) -> list[Held]:
        """Return what is held now."""
        return [key for key, holding in self.holdings.items() if holding.owner is not None]

    def end_silent_leases(self) -> None:
        """End the leases whose holders were silent for too long."""
        for holding in self.holdings.values():
            if self.now - holding.renewed_at >= _LEASE_S:
                holding.time_out()

    def time_out_leases(self) -> None:
        """End all leases, as 30 s without requests do."""
        for holding in self.holdings.values():
            holding.time_out()

    def crash(self, *, gracefully: bool = False) -> None:
        """Restart: leases are gone; a crash also takes what is not flushed."""
        for holding in self.holdings.values():
            if gracefully:
                holding.committed += holding.in_flight
            holding.owner, holding.in_flight = None, 0
        for store in self.stores.values():
            if gracefully:
                store.flushed = len(store.entries)
            else:
                del store.entries[store.flushed :]

    def truth(self, partition: TopicPartition, start: int, end: int) -> list[bytes]:
        """Return the values that reading a range must bring."""
        store = self.stores[partition.store_id]
        return [
            entry.value
            for number, entry in enumerate(store.entries)
            if start <= number * INDEX_ENTRY_BYTES < end
            and number >= store.first
            and entry.partition_id == partition.partition_id
            and entry.readable
            and entry.sound
        ]

    def _send(self, request: broker_pb2.SendMessageRequestP2B) -> Message:
        refuse = broker_pb2.SendMessageResponseB2P(success=False, errCode=403, errMsg="")
        if request.authInfo.visitAuthorizedToken not in self.valid_tokens:
            refuse.errCode, refuse.errMsg = 415, "Visit Authorized Token is invalid!"
            return refuse
        store = self._store(request.topicName, request.partitionId)
        if store is None or request.partitionId % PARTITIONS_PER_STORE >= self.partitions:
            refuse.errMsg = f"partitionId {request.topicName}-{request.partitionId} not existed"
            return refuse
        if not request.data:
            refuse.errCode, refuse.errMsg = 400, "data length is zero!"
            return refuse
        self.sends += 1
        offset, message_id = store.latest, store.next_id(request.partitionId)
        store.entries.append(
            Entry(
                request.partitionId,
                request.data,
                message_id,
                flag=request.flag,
                message_type=request.msgType,
                sent_as=self.sends,
            )
        )
        return broker_pb2.SendMessageResponseB2P(
            success=True,
            errCode=200,
            errMsg=str(message_id),
            requireAuth=False,
            messageId=message_id,
            appendTime=int(self.now * 1000),
            appendOffset=offset,
        )

    def _store(self, topic: str, partition_id: int) -> Store | None:
        return self.stores.get(StoreId(topic, self.broker_id, partition_id // PARTITIONS_PER_STORE))

    def _register_or_unregister(self, request: broker_pb2.RegisterRequestC2B) -> Message:
        refuse = broker_pb2.RegisterResponseB2C(success=False, errCode=400, errMsg="", currOffset=-1)
        if request.authInfo.visitAuthorizedToken not in self.valid_tokens:
            refuse.errCode, refuse.errMsg = 415, "Visit Authorized Token is invalid!"
            return refuse
        store = self._store(request.topicName, request.partitionId)
        if store is None:
            refuse.errCode, refuse.errMsg = 403, f"topicName {request.topicName} not existed"
            return refuse
        holding = self.holdings[request.groupName, request.topicName, request.partitionId]
        if request.opType == OpType.UNREGISTER:
            return self._unregister(request, holding, refuse)
        if holding.owner not in (None, request.clientId):
            refuse.errCode, refuse.errMsg = 410, f"[Duplicated Register] {holding.owner}"
            if holding.timed_out:
                holding.owner, holding.timed_out = None, False
            return refuse
        holding.owner, holding.timed_out = request.clientId, False
        holding.in_flight, holding.fetched_before, holding.renewed_at = 0, False, self.now
        if request.partitionId % PARTITIONS_PER_STORE >= self.partitions:
            refuse.errCode, refuse.errMsg = (
                500,
                "exception is Wrong partition value 7,valid partitions in (0,0)",
            )
            return refuse
        holding.types = frozenset(request.filterCondStr)
        if not holding.recorded:
            from_start = request.readStatus == ReadStatus.STORED_OR_EARLIEST
            holding.committed = store.earliest if from_start else store.latest
        if request.readStatus == ReadStatus.LATEST_ALWAYS:
            holding.committed = store.latest
        elif request.HasField("currOffset") and request.currOffset >= 0:
            position = min(max(request.currOffset, store.earliest), store.latest)
            holding.committed = position - position % INDEX_ENTRY_BYTES
        holding.recorded = True
        end = store.flushed * INDEX_ENTRY_BYTES if request.qryPriorityId == 1 else store.latest
        return broker_pb2.RegisterResponseB2C(
            success=True, errCode=200, errMsg="OK!", currOffset=holding.committed, maxOffset=end
        )

    def _unregister(
        self,
        request: broker_pb2.RegisterRequestC2B,
        holding: Holding,
        refuse: broker_pb2.RegisterResponseB2C,
    ) -> Message:
        if holding.owner != request.clientId:
            refuse.errCode = 411 if holding.owner is None else 412
            return refuse
        if request.readStatus == 0:
            holding.committed += holding.in_flight
        holding.owner, holding.in_flight = None, 0
        return broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=-1)

    def _heartbeat(self, request: broker_pb2.HeartBeatRequestC2B) -> Message:
        failures = []
        for text in request.partitionInfo:
            place = text.partition("#")[2]
            topic, partition_id = place.split(":")
            holding = self.holdings[request.groupName, topic, int(partition_id)]
            if holding.owner is None or holding.timed_out:
                failures.append(f"411:{text}")
            elif holding.owner != request.clientId:
                failures.append(f"412:{text}")
            else:
                holding.renewed_at = self.now
        return broker_pb2.HeartBeatResponseB2C(
            success=True, errCode=200, errMsg="OK!", hasPartFailure=bool(failures), failureInfo=failures
        )

    def _get_message(self, request: broker_pb2.GetMessageRequestC2B) -> Message:
        refuse = broker_pb2.GetMessageResponseB2C(
            success=False, errCode=404, errMsg="", currOffset=-1, currDataDlt=-1, minLimitTime=324
        )
        store = self._store(request.topicName, request.partitionId)
        if store is None:
            refuse.errCode = 403
            return refuse
        holding = self.holdings[request.groupName, request.topicName, request.partitionId]
        if holding.owner != request.clientId or holding.timed_out:
            refuse.errCode = 411 if holding.owner is None or holding.timed_out else 412
            return refuse
        holding.renewed_at = self.now
        if request.lastPackConsumed:
            holding.committed += holding.in_flight
        holding.in_flight = 0
        if holding.committed >= store.latest:
            holding.committed = store.latest
            return refuse
        holding.committed = max(holding.committed, store.earliest)
        return self._read(store, request.partitionId, holding, refuse)

    def _read(
        self, store: Store, partition_id: int, holding: Holding, refuse: broker_pb2.GetMessageResponseB2C
    ) -> Message:
        limits = self.limits
        begin = holding.committed // INDEX_ENTRY_BYTES
        in_memory = begin >= store.flushed
        if in_memory:
            end = min(len(store.entries), begin + limits.memory_entries)
        else:
            border = (begin // limits.segment_entries + 1) * limits.segment_entries
            end = min(store.flushed, border, begin + limits.file_entries)
            if limits.halving:
                end = begin + (end - begin + 1) // 2
        most_bytes = limits.later_bytes if in_memory or holding.fetched_before else limits.first_bytes
        holding.fetched_before = True
        taken, size, number = [], 0, begin
        while number < end and size < most_bytes:
            entry = store.entries[number]
            is_wanted = not holding.types or entry.message_type in holding.types
            if entry.partition_id == partition_id and entry.readable and is_wanted:
                taken.append(entry)
                size += len(entry.value) + _RECORD_HEAD_BYTES
            number += 1
        span = (number - begin) * INDEX_ENTRY_BYTES
        if not taken:
            holding.committed += span
            if in_memory:
                refuse.errMsg = "passed only others' records"
                return refuse
        else:
            holding.in_flight = span
        return broker_pb2.GetMessageResponseB2C(
            success=True,
            errCode=200,
            errMsg="OK!",
            messages=[
                broker_pb2.TransferedMessage(
                    messageId=entry.message_id,
                    checkSum=zlib.crc32(entry.value) & 0x7FFFFFFF if entry.sound else 1,
                    payLoadData=entry.value,
                    flag=entry.flag,
                )
                for entry in taken
            ],
            currOffset=begin * INDEX_ENTRY_BYTES,
            maxOffset=store.latest,
            minLimitTime=0,
            currDataDlt=0,
        )

    def _commit(self, request: broker_pb2.CommitOffsetRequestC2B) -> Message:
        refuse = broker_pb2.CommitOffsetResponseB2C(success=False, errCode=401, errMsg="", currOffset=-1)
        store = self._store(request.topicName, request.partitionId)
        if store is None:
            refuse.errCode = 403
            return refuse
        holding = self.holdings[request.groupName, request.topicName, request.partitionId]
        if holding.owner != request.clientId or holding.timed_out:
            return refuse
        if request.lastPackConsumed or not request.HasField("lastPackConsumed"):
            holding.committed += holding.in_flight
        holding.in_flight = 0
        return broker_pb2.CommitOffsetResponseB2C(
            success=True, errCode=200, errMsg="OK!", currOffset=holding.committed, maxOffset=store.latest
        )
