"""A master and brokers that do what a test tells them, on loopback sockets."""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

from google.protobuf.message import Message

from testkit.message_sender import MessageSender
from tests.client.scripted_master import (
    DEFAULTS,
    ScriptedMaster,
    meta,
    producer_beat,
    producer_refused,
    producer_registered,
    registered,
    token,
)
from tests.rpc_server import Exchange, RpcServer
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.net.connections import Connections, close_connections
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import broker_pb2, master_pb2

VISIT_TOKEN = 1_700_000_000_000


@dataclasses.dataclass(frozen=True)
class Do:
    """What a broker does with one SendMessage request."""

    store: bool = True
    answer: bool = True
    code: int = 200
    text: str = ""
    hang_up: bool = False
    """Close the connection instead of answering."""
    exception: str = ""
    status: Status = Status.ERROR
    junk: bytes = b""
    """Send these bytes instead of an answer."""
    offset: int | None = None
    """Claim this append offset."""


STORE = Do()
OVERFLOW = Do(store=False, code=419, text="server receive message overflow!")
SILENT = Do(store=False, answer=False)
HANG_UP = Do(store=False, hang_up=True)


def refuse(code: int, text: str = "no") -> Do:
    return Do(store=False, code=code, text=text)


Script = Callable[[broker_pb2.SendMessageRequestP2B, int], Do]
"""Takes the request and its number on this broker, from 0 on."""


def then_store(*deeds: Do) -> Script:
    """Treat the first requests so, and store the others."""
    return lambda _, number: deeds[number] if number < len(deeds) else STORE


class Broker:
    """Stores what its script lets through; offsets count per topic and store, as in TubeMQ."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.script: Script = then_store()
        self.requests: list[broker_pb2.SendMessageRequestP2B] = []
        self.stored: dict[tuple[str, int], list[bytes]] = collections.defaultdict(list)
        self._sizes: dict[tuple[str, int], int] = collections.defaultdict(int)
        self._hung_up: list[object] = []
        self._lock = threading.Lock()
        self.server = RpcServer(self._handle)

    def _handle(self, exchange: Exchange) -> None:
        with self._lock:
            if exchange._connection in self._hung_up:
                return
            if exchange.request.method == Method.PARTITION_HEARTBEAT:  # a probe, after a failure
                exchange.answer(broker_pb2.HeartBeatResponseB2C(success=True, errCode=200, errMsg="OK!"))
                return
            message = exchange.parse(broker_pb2.SendMessageRequestP2B)
            self.requests.append(message)
            deed = self.script(message, len(self.requests) - 1)
            offset = self._store(message) if deed.store else None
            if deed.hang_up:
                self._hung_up.append(exchange._connection)
                exchange.hang_up()
            elif deed.answer:
                _answer(exchange, deed, offset)

    def _store(self, message: broker_pb2.SendMessageRequestP2B) -> int:
        store = (message.topicName, message.partitionId // 10_000)
        self._sizes[store] += 1
        self.stored[message.topicName, message.partitionId].append(message.data)
        return 28 * (self._sizes[store] - 1)


def _answer(exchange: Exchange, deed: Do, offset: int | None) -> None:
    if deed.junk:
        exchange.send_bytes(deed.junk)
        return
    if deed.exception:
        exchange.fail(deed.exception, deed.text, deed.status)
        return
    answer = broker_pb2.SendMessageResponseB2P(
        success=deed.code == 200, errCode=deed.code, errMsg=deed.text or "17", requireAuth=False
    )
    if offset is not None:
        answer.messageId, answer.appendTime = 17, 1_704_164_645_678
        answer.appendOffset = offset if deed.offset is None else deed.offset
    exchange.answer(answer)


class Master(ScriptedMaster):
    """Publishes ``topics``: the text behind a topic's name in topicInfos, for example ``1:3:1#``."""

    def __init__(self, brokers: list[Broker], topics: dict[str, str]) -> None:
        self._brokers = brokers
        self.topics = topics
        self.deployed: set[str] = set()
        """Topics that exist and cannot be published to, besides ``topics``."""
        self.visit_token = VISIT_TOKEN
        self.producers: set[str] = set()
        self.on_heartbeat: Callable[[], None] = lambda: None
        super().__init__(
            producer_register=self._register,
            producer_heartbeat=self._heartbeat,
            producer_close=self._close,
            balance_register=self._register_reader,
            balance_partition_meta=self._partitions,
        )

    @property
    def seen(self) -> list[Method]:
        return [method for method, _ in self.requests]

    @property
    def asked_for(self) -> list[list[str]]:
        """The topics each heartbeat of a producer named."""
        return [list(request.topicList) for request in self.of(Method.PRODUCER_HEARTBEAT)]

    def _addresses(self) -> list[str]:
        return [f"{broker.broker_id}:{broker.server.endpoint}" for broker in self._brokers]

    def _register(self, request: master_pb2.RegisterRequestP2M) -> Message:
        self.producers.add(request.clientId)
        return producer_registered(brokerInfos=self._addresses(), authorizedInfo=token(self.visit_token))

    def _heartbeat(self, request: master_pb2.HeartRequestP2M) -> Message:
        self.on_heartbeat()
        if request.clientId not in self.producers:
            return producer_refused(411, "not registered")
        infos = [f"{name}#{self.topics[name]}" for name in request.topicList if name in self.topics]
        return producer_beat(*infos, authorizedInfo=token(self.visit_token))

    def _close(self, request: master_pb2.CloseRequestP2M) -> Message:
        self.producers.discard(request.clientId)
        return DEFAULTS[Method.PRODUCER_CLOSE]

    def _register_reader(self, request: master_pb2.RegisterRequestC2MV2) -> Message:
        unknown = set(request.topicList) - self.topics.keys() - self.deployed
        refusal = (431, f"not deployed: {sorted(unknown)}") if unknown else ()
        return registered(*refusal, brokers=self._addresses())

    def _partitions(self, _: master_pb2.GetPartMetaRequestC2M) -> Message:
        """Tell what is published; a topic in ``deployed`` has one partition on broker 1."""
        metas = []
        for name in self.of(Method.BALANCE_REGISTER)[-1].topicList:
            places = self.topics.get(name, "1:1:1#").rpartition("#")[0].split(",")
            # To readers, the number of stores comes first, and whether it may be read last.
            items = [f"{broker}:{stores}:{count}:1" for broker, count, stores in map(_numbers, places)]
            metas.append(f"{name}#{','.join(items)}")
        return meta(*metas)


def _numbers(text: str) -> list[str]:
    return text.split(":")


def direct_producer(config: ClientConfig, connections: Connections) -> Producer:
    """Return a producer that talks to masters and brokers."""
    return Producer(
        lambda run_user_code: BrokerPipeline(config, connections, detailed=True, run_user_code=run_user_code)
    )


class ScriptedCluster:
    """One master, one or more brokers, and producers of them."""

    def __init__(self, brokers: int, topics: dict[str, str]) -> None:
        self.brokers = [Broker(number + 1) for number in range(brokers)]
        self.broker = self.brokers[0]
        self.master = Master(self.brokers, topics)
        self.connections = Connections(1_000)
        self._producers: list[Producer | MessageSender] = []

    def config(self, **settings: int) -> ClientConfig:
        """Return settings with short time-outs; messages are sent as they are, without a time of sending."""
        short = {"rpc_timeout_ms": 2_000, "connect_timeout_ms": 1_000}
        settings = {**short, "stamp_message_time": False, **settings}
        return ClientConfig(masters=(self.master.server.endpoint,), group="test", **settings)

    def sender(self, **settings: int) -> MessageSender:
        """Return a batch sender; the cluster closes it at the latest."""
        sender = MessageSender(self.config(**settings), self.connections)
        self._producers.append(sender)
        return sender

    def producer(self, **settings: int) -> Producer:
        """Return a producer; the cluster closes it at the latest."""
        producer = direct_producer(self.config(**settings), self.connections)
        self._producers.append(producer)
        return producer

    def script(self, script: Script) -> None:
        """Set what all brokers do."""
        for broker in self.brokers:
            broker.script = script

    def stored(self, topic: str = "demo") -> list[bytes]:
        """Everything stored of a topic, by broker and partition."""
        return [
            data
            for broker in self.brokers
            for (name, _), stored in sorted(broker.stored.items())
            if name == topic
            for data in stored
        ]

    def close(self) -> None:
        for producer in self._producers:
            producer.close()
        close_connections(self.connections)
        for peer in (self.master, *self.brokers):
            peer.server.close()


@contextlib.contextmanager
def scripted_cluster(brokers: int = 1, **topics: str) -> Iterator[ScriptedCluster]:
    """Run a cluster with these topics, by default ``demo`` with three partitions on broker 1."""
    cluster = ScriptedCluster(brokers, topics or {"demo": "1:3:1#"})
    with contextlib.closing(cluster):
        yield cluster
