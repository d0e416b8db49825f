"""A broker (and a master) that keeps offsets as the Java broker does, and fails where a test says.

The rules are those of BrokerServiceServer, DefaultOffsetManager and MessageStore: one index a store for
all its partitions, a committed offset and one batch in flight a lease, fetches that skip, move and halve.
"""

import collections
import dataclasses
import threading
import zlib
from collections.abc import Callable, Iterable

from tests.rpc_server import Exchange, RpcServer
from tubemq_spark.model import PARTITIONS_PER_STORE, StoreId, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.pb import broker_pb2, common_pb2, master_pb2

BROKER_ID = 1
TOKEN = 1_700_000_000_000
RECORD_HEAD_BYTES = 52


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


@dataclasses.dataclass
class Store:
    """One log. Entries before ``flushed`` are read from files, the others from memory."""

    entries: list[Entry] = dataclasses.field(default_factory=list)
    first: int = 0
    flushed: int = 0

    @property
    def earliest(self) -> int:
        return self.first * INDEX_ENTRY_BYTES

    @property
    def latest(self) -> int:
        return len(self.entries) * INDEX_ENTRY_BYTES

    def append(self, partition_id: int, values: Iterable[bytes]) -> None:
        for value in values:
            # As scattered as the real ones.
            message_id = zlib.crc32(f"{partition_id}-{len(self.entries)}".encode()) << 20
            self.entries.append(Entry(partition_id, value, message_id))


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


Fault = Callable[["ModelBroker", Exchange], bool]
"""Called instead of the broker; returns whether the request has been dealt with."""


def refuse(code: int, text: str = "refused by the test", wait_ms: int = -1) -> Fault:
    """Answer with a result code, without doing anything."""

    def fault(broker, exchange):
        answer = ANSWERS[exchange.request.method](success=False, errCode=code, errMsg=text)
        if exchange.request.method == Method.GET_MESSAGE:
            answer.currOffset = -1
            answer.minLimitTime = wait_ms
        exchange.answer(answer)
        return True

    return fault


def refuse_after(code: int) -> Fault:
    """Carry the request out, but answer with a result code: a fetch that failed in its middle, for one."""

    def fault(broker, exchange):
        broker.carry_out(exchange)
        return refuse(code)(broker, exchange)

    return fault


def hang_up(broker, exchange):
    """Close the connection before the request is carried out."""
    exchange.hang_up()
    return True


def hang_up_after(broker, exchange):
    """Carry the request out, but close the connection instead of answering."""
    broker.carry_out(exchange)
    exchange.hang_up()
    return True


def swallow(broker, exchange):
    """Neither carry the request out nor answer."""
    return True


def swallow_answer(broker, exchange):
    """Carry the request out and do not answer, as the Java server does when it was too slow."""
    broker.carry_out(exchange)
    return True


def time_out_leases(broker, exchange):
    """End all leases before the request is carried out."""
    broker.time_out_leases()
    return False


def forget_in_flight(broker, exchange):
    """Drop what was fetched last before the request is carried out, as an administrator's change does."""
    for holding in broker.holdings.values():
        holding.in_flight = 0
    return False


def break_down(broker, exchange):
    """Answer with an exception."""
    exchange.fail("any.InvocationTargetException", "")
    return True


def answer_garbage(broker, exchange):
    """Answer with bytes that are no frame; the client hangs up."""
    exchange.send_bytes(b"garbage!" * 4)
    return True


def delay(broker, exchange):
    """Carry the request out after the next one: TubeMQ's order is no promise."""
    broker.delayed.append(exchange)
    return True


def restart(broker, exchange):
    """Stop the broker in good order, losing only leases, and start it again."""
    broker.crash(gracefully=True)
    return True


def nothing(broker, exchange):
    """Be no fault, but take the place of one in a list."""
    return False


QUICK_FAULTS: dict[str, Fault] = {
    **{f"code {code}": refuse(code, wait_ms=1) for code in (0, 301, 401, 404, 411, 412, 452, 500, 503)},
    **{f"code {code} after": refuse_after(code) for code in (0, 404, 500)},
    **{
        fault.__name__: fault
        for fault in (
            forget_in_flight,
            hang_up,
            hang_up_after,
            time_out_leases,
            break_down,
            answer_garbage,
            restart,
        )
    },
}
SLOW_FAULTS: dict[str, Fault] = {fault.__name__: fault for fault in (swallow, swallow_answer, delay)}
"""They cost the client's RPC time-out each."""

ANSWERS = {
    Method.PARTITION_REGISTER: broker_pb2.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: broker_pb2.HeartBeatResponseB2C,
    Method.GET_MESSAGE: broker_pb2.GetMessageResponseB2C,
    Method.COMMIT_OFFSET: broker_pb2.CommitOffsetResponseB2C,
}


class ModelBroker:
    """One broker on a loopback socket; a context manager. It answers a master's methods as well."""

    def __init__(
        self, stores: dict[StoreId, Store], partitions: int = 1, limits: Limits | None = None
    ) -> None:
        """Take all stores of all topics; every store has so many partitions."""
        self.stores = stores
        self.partitions = partitions
        self.limits = limits or Limits()
        self.holdings: dict[tuple[str, str, int], Holding] = collections.defaultdict(Holding)
        self.faults: dict[int, Fault] = {}
        """By the number of the broker request they hit, from 0 on."""
        self.fault_of_method: dict[Method, list[Fault]] = collections.defaultdict(list)
        """Used up one after the other by the requests of that method."""
        self.valid_tokens = {TOKEN}
        self.requests: list[tuple[Method, object]] = []
        self.delayed: list[Exchange] = []
        self._lock = threading.Lock()
        self._server = RpcServer(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    @property
    def endpoint(self):
        return self._server.endpoint

    def counts(self) -> collections.Counter[Method]:
        """How many requests of each method came."""
        return collections.Counter(method for method, _ in self.requests)

    def leases(self) -> list[tuple[str, str, int]]:
        """What is held now."""
        return [key for key, holding in self.holdings.items() if holding.owner is not None]

    def time_out_leases(self) -> None:
        for holding in self.holdings.values():
            holding.timed_out = holding.owner is not None
            holding.in_flight = 0

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
        self._server.drop_connections()

    def truth(self, partition: TopicPartition, start: int, end: int) -> list[bytes]:
        """The values that reading a range must bring."""
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

    def carry_out(self, exchange: Exchange) -> object:
        """Do what a request asks and return the answer without sending it."""
        return self._methods()[exchange.request.method](exchange)

    def _handle(self, exchange: Exchange) -> None:
        with self._lock:
            method = Method(exchange.request.method)
            if method not in ANSWERS:
                exchange.answer(self._master_methods()[method](exchange))
                return
            number = len(self.requests)
            self.requests.append((method, exchange))
            of_method = self.fault_of_method[method]
            fault = self.faults.get(number) or (of_method.pop(0) if of_method else None)
            delayed, self.delayed = self.delayed, []
            if fault is None or not fault(self, exchange):
                exchange.answer(self.carry_out(exchange))
            for held in delayed:
                held.answer(self.carry_out(held))

    def _methods(self):
        return {
            Method.PARTITION_REGISTER: self._register_or_unregister,
            Method.PARTITION_HEARTBEAT: self._heartbeat,
            Method.GET_MESSAGE: self._get_message,
            Method.COMMIT_OFFSET: self._commit,
        }

    def _store(self, topic: str, partition_id: int) -> Store | None:
        return self.stores.get(StoreId(topic, BROKER_ID, partition_id // PARTITIONS_PER_STORE))

    def _register_or_unregister(self, exchange):
        request = exchange.parse(broker_pb2.RegisterRequestC2B)
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
        holding.in_flight, holding.fetched_before = 0, False
        if request.partitionId % PARTITIONS_PER_STORE >= self.partitions:
            refuse.errCode, refuse.errMsg = (
                500,
                "exception is Wrong partition value 7,valid partitions in (0,0)",
            )
            return refuse
        if request.HasField("currOffset") and request.currOffset >= 0:
            wanted = min(max(request.currOffset, store.earliest), store.latest)
            holding.committed = wanted - wanted % INDEX_ENTRY_BYTES
        end = store.flushed * INDEX_ENTRY_BYTES if request.qryPriorityId == 1 else store.latest
        return broker_pb2.RegisterResponseB2C(
            success=True, errCode=200, errMsg="OK!", currOffset=holding.committed, maxOffset=end
        )

    def _unregister(self, request, holding, refuse):
        if holding.owner != request.clientId:
            refuse.errCode = 411 if holding.owner is None else 412
            return refuse
        if request.readStatus == 0:
            holding.committed += holding.in_flight
        holding.owner, holding.in_flight = None, 0
        return broker_pb2.RegisterResponseB2C(success=True, errCode=200, errMsg="OK!", currOffset=-1)

    def _heartbeat(self, exchange):
        request = exchange.parse(broker_pb2.HeartBeatRequestC2B)
        failures = []
        for text in request.partitionInfo:
            place = text.partition("#")[2]
            topic, partition_id = place.split(":")
            holding = self.holdings[request.groupName, topic, int(partition_id)]
            if holding.owner is None or holding.timed_out:
                failures.append(f"411:{text}")
            elif holding.owner != request.clientId:
                failures.append(f"412:{text}")
        return broker_pb2.HeartBeatResponseB2C(
            success=True, errCode=200, errMsg="OK!", hasPartFailure=bool(failures), failureInfo=failures
        )

    def _get_message(self, exchange):
        request = exchange.parse(broker_pb2.GetMessageRequestC2B)
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
        if request.lastPackConsumed:
            holding.committed += holding.in_flight
        holding.in_flight = 0
        if holding.committed >= store.latest:
            holding.committed = store.latest
            return refuse
        holding.committed = max(holding.committed, store.earliest)
        return self._read(store, request.partitionId, holding, refuse)

    def _read(self, store, partition_id, holding, refuse):
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
            if entry.partition_id == partition_id and entry.readable:
                taken.append(entry)
                size += len(entry.value) + RECORD_HEAD_BYTES
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
                    flag=0,
                )
                for entry in taken
            ],
            currOffset=begin * INDEX_ENTRY_BYTES,
            maxOffset=store.latest,
            minLimitTime=0,
            currDataDlt=0,
        )

    def _commit(self, exchange):
        request = exchange.parse(broker_pb2.CommitOffsetRequestC2B)
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

    def _master_methods(self):
        return {
            Method.PRODUCER_REGISTER: self._producer_register,
            Method.PRODUCER_CLOSE: self._producer_close,
        }

    def _producer_register(self, exchange):
        return master_pb2.RegisterResponseM2P(
            success=True,
            errCode=200,
            errMsg="OK!",
            brokerCheckSum=1,
            brokerInfos=[f"{BROKER_ID}:{self.endpoint}"],
            authorizedInfo=common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=max(self.valid_tokens)),
        )

    def _producer_close(self, exchange):
        return master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg="OK!")
