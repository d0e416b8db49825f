"""The rows of the table *One peer's trouble* of the guarantees: each is inflicted on one peer of several."""

import abc
import contextlib
import http.server
import itertools
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Self

from testkit.forwarder import Forwarder, swallowing
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

TOPIC = "steady"
AWAY = 2
"""The broker that is in trouble."""
FOR_EVER_MS = 600_000
"""Longer than any test: what waits for a peer in trouble does not return in time."""
PATIENCE_S = 45.0
_SETTINGS = EmbeddedSettings(broker_timeout_ms=FOR_EVER_MS, balance_period_ms=100)
_UNANSWERED_HOST = "unanswered.test"
_numbers = itertools.count()
_LARGE_TEXT = " " * (1 << 20)
_OF_BROKERS = (
    Method.SEND_MESSAGE,
    Method.GET_MESSAGE,
    Method.PARTITION_HEARTBEAT,
    Method.PARTITION_REGISTER,
    Method.COMMIT_OFFSET,
)


def client_of(master: str, group: str) -> TubeMQClient:
    """Return a client that waits for ever for a peer that does not answer."""
    consumer = ConsumerConfig(consume_position=ConsumePosition.FIRST, not_found_wait_ms=20)
    return TubeMQClient(
        ClientConfig(
            (Endpoint.parse(master),),
            group,
            rpc_timeout_ms=FOR_EVER_MS,
            connect_timeout_ms=FOR_EVER_MS,
            delivery_timeout_ms=FOR_EVER_MS,
            heartbeat_period_ms=100,
            register_retry_ms=10,
            consumer=consumer,
        )
    )


class Stage(abc.ABC):
    """A cluster with sound brokers and one that may be in trouble; a context manager."""

    def __init__(self, master: str, brokers: Collection[int], topic: str, partitions: int) -> None:
        """Take a topic that no other test uses, and how many partitions it has on all brokers together."""
        self.topic = topic
        self.partitions = partitions
        self.others = [broker for broker in brokers if broker != AWAY]
        """The brokers that are sound."""
        with contextlib.ExitStack() as closing:
            self.master_way = closing.enter_context(Forwarder(master))
            self.client = closing.enter_context(client_of(self.masters, "etl"))
            feeding = closing.enter_context(client_of(master, "feeders"))
            self._feeder = closing.enter_context(contextlib.closing(feeding.producer()))
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def masters(self) -> str:
        """The master's address, where it can be frozen."""
        return self.master_way.address

    @abc.abstractmethod
    def freeze(self) -> None:
        """Freeze the broker."""

    @abc.abstractmethod
    def thaw(self) -> None:
        """Resume the broker."""

    def feed(self, brokers: Collection[int] = (), count: int = 30) -> set[bytes]:
        """Store messages at some brokers, by default the sound ones; return their values."""
        values = {}
        for broker in brokers or self.others:
            for _ in range(count):
                value = b"fed %d" % next(_numbers)
                values[value] = self._feeder.send(self.topic, value, partition=(broker, 0))
        for sent in values.values():
            sent.result(PATIENCE_S)
        return set(values)


class EmbeddedStage(Stage):
    """Three embedded brokers, to which more can be done."""

    def __init__(self) -> None:
        """Start them."""
        with contextlib.ExitStack() as closing:
            self.server = closing.enter_context(
                EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=_SETTINGS, brokers=3)
            )
            super().__init__(self.server.master, self.server.brokers, TOPIC, 3)
            closing.push(self._closing)
            self._closing = closing.pop_all()

    def freeze(self) -> None:
        """Freeze the broker."""
        self.server.faults.freeze_broker(AWAY)

    def thaw(self) -> None:
        """Resume the broker."""
        self.server.faults.start_broker(AWAY)


def await_that(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)


def begin(work: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """Do some work in a thread of its own, whatever it meets; return what waits for its end."""

    def run() -> None:
        with contextlib.suppress(TubeMQError):
            work(*arguments)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return lambda: thread.join(PATIENCE_S)


@contextlib.contextmanager
def _between(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()


def frozen_broker(stage: Stage) -> contextlib.AbstractContextManager[None]:
    """Freeze a broker."""
    return _between(stage.freeze, stage.thaw)


def frozen_masters(stage: Stage) -> contextlib.AbstractContextManager[None]:
    """Pass nothing on to masters, nor from them."""
    return _between(stage.master_way.stall, stage.master_way.resume)


def standby_masters(stage: EmbeddedStage) -> contextlib.AbstractContextManager[None]:
    """Make the masters stand by."""
    return _between(stage.server.faults.become_standby, stage.server.faults.become_active)


@contextlib.contextmanager
def swallowing_broker(stage: EmbeddedStage) -> Iterator[None]:
    """Stop a broker, and swallow what is sent to its address."""
    address, faults = stage.server.brokers[AWAY], stage.server.faults
    with _between(lambda: faults.stop_broker(AWAY), lambda: faults.start_broker(AWAY)), swallowing(address):
        yield


@contextlib.contextmanager
def swallowing_masters(stage: Stage) -> Iterator[None]:
    """Swallow what is sent to the address of the masters."""
    way = stage.master_way
    with _between(way.close_port, way.open_port), swallowing(way.address):
        yield


class _Web(http.server.BaseHTTPRequestHandler):
    """Refuses what it is asked, without a line in the log."""

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def masters_of_another_kind(stage: EmbeddedStage) -> Iterator[None]:
    """Answer as a web server at the address of the masters."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        stage.master_way.lead_to(f"127.0.0.1:{web.server_port}")
        try:
            yield
        finally:
            stage.master_way.lead_to(stage.server.master)
            web.shutdown()
            thread.join()


@contextlib.contextmanager
def frozen_cluster(_stage: Stage) -> Iterator[None]:
    """Freeze a second cluster that this process reads from and writes to."""
    with contextlib.ExitStack() as closing:
        server = closing.enter_context(EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=_SETTINGS))
        way = closing.enter_context(Forwarder(server.master))
        client = closing.enter_context(client_of(way.address, "etl"))
        producer = closing.enter_context(contextlib.closing(client.producer()))
        producer.send(TOPIC, b"stored").result(PATIENCE_S)
        member = closing.enter_context(client.group_consumer(TOPIC))
        await_that(lambda: member.connected)
        way.stall()
        server.faults.freeze_broker(1)
        producer.send(TOPIC, b"not stored")
        ends = [begin(member.fetch, -1), begin(client.publishable, TOPIC)]
        try:
            yield
        finally:
            server.faults.start_broker(1)
            way.resume()
            for end in ends:
                end()


@contextlib.contextmanager
def name_server_without_answer(_stage: Stage) -> Iterator[None]:
    """Look up a name that no name server answers, in every part of a client."""
    answered = threading.Event()
    look_up = socket.getaddrinfo

    def wait_for_answer(host: str, *arguments: Any, **named: Any) -> Any:
        if host != _UNANSWERED_HOST:
            return look_up(host, *arguments, **named)
        answered.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    socket.getaddrinfo = wait_for_answer
    client = client_of(f"{_UNANSWERED_HOST}:8715", "etl")
    ends = [
        begin(client.producer().send, TOPIC, b"not sent"),
        begin(client.group_consumer(TOPIC).open),
        begin(client.layout, TOPIC),
    ]
    try:
        yield
    finally:
        answered.set()
        client.close()
        for end in ends:
            end()
        socket.getaddrinfo = look_up


@contextlib.contextmanager
def slow_callbacks(stage: Stage) -> Iterator[None]:
    """Stay in the callback of a producer and in the handler of a member, both of the same process."""
    leave = threading.Event()
    entered = threading.Semaphore(0)

    def stay(*_: object) -> None:
        entered.release()
        leave.wait(PATIENCE_S * 3)

    with (
        contextlib.closing(stage.client.producer()) as producer,
        client_of(stage.masters, "slow") as client,
        client.group_consumer(stage.topic) as member,
    ):
        stage.feed()
        producer.send(stage.topic, b"called back", callback=stay)
        end = begin(member.run, stay)
        assert entered.acquire(timeout=PATIENCE_S)
        assert entered.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            leave.set()
            member.close()
            end()


@contextlib.contextmanager
def large_texts(stage: EmbeddedStage) -> Iterator[None]:
    """Answer everything that a broker is asked with an error that explains itself at length."""
    error, answer = ErrCode.INTERNAL_SERVER_ERROR, stage.server.faults.answer
    with contextlib.ExitStack() as rules:
        for method in _OF_BROKERS:
            rules.enter_context(answer(method, error, _LARGE_TEXT, broker=AWAY))
        yield


@contextlib.contextmanager
def nonsense(stage: EmbeddedStage) -> Iterator[None]:
    """Damage every answer of a broker."""
    with contextlib.ExitStack() as rules:
        for method in _OF_BROKERS:
            rules.enter_context(stage.server.faults.corrupt(method, broker=AWAY))
        yield


PEERS = {
    "One of three brokers is frozen": frozen_broker,
    "One of three brokers swallows packets": swallowing_broker,
    "The masters are frozen": frozen_masters,
    "The masters are standby": standby_masters,
    "The masters swallow packets": swallowing_masters,
    "A web server answers for the masters": masters_of_another_kind,
    "A second cluster is frozen": frozen_cluster,
    "A name server does not answer": name_server_without_answer,
    "A callback or a handler is slow": slow_callbacks,
    "A broker answers with the largest texts": large_texts,
    "A broker answers nonsense": nonsense,
}
OF_MASTERS = frozenset(trouble for trouble in PEERS if "masters" in trouble)
