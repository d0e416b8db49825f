"""The TubeMQ servers every integration test runs on: the embedded one, and the Java one."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from integration_tests.real.cluster import RealTubeMQ, TopicSpec
from integration_tests.real.jvm import Login
from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ServerSettings, TlsStores
from integration_tests.rig.runs import Size
from integration_tests.rig.store_check import logs
from testkit.certificates import STORE_PASSWORD, Authority
from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.net.tls import ServerTls

SHAPES: Final[Mapping[str, tuple[int, int]]] = {"1x1": (1, 1), "3x1": (3, 1), "2x3": (2, 3)}
"""Stores x partitions a store: dense offsets, several logs, and partitions that share a log."""

_TOPICS: Final[Mapping[str, int]] = {"1x1": 134, "3x1": 41, "2x3": 34}
"""How many there are of each shape from the start: a later one costs a restart of the Java master."""

_LOAD_PROPERTIES: Final = {"memCacheMsgSizeInMB": 32, "memCacheMsgCntInK": 100}
"""With its usual few MB for a store, the Java broker refuses messages under load. Only a few topics get more,
since a broker takes this memory, twice, for each store as soon as it is used."""

_FLUSH_SECONDS: Final = 60.0

VOLATILE_TOPIC: Final = "volatile"
UNFLUSHED_TOPIC: Final = "unflushed"
_VOLATILE_PROPERTIES: Final = {"memCacheFlushIntvl": 120_000}
"""The Java broker keeps these topics' messages in memory for minutes: a crash loses them."""


def _load_topic(shape: str) -> str:
    return f"load_{shape}"


def _name(shape: str, number: int) -> str:
    return f"t{shape}_{number:03d}"


def _topics() -> dict[str, tuple[int, int]]:
    usual = {
        _name(shape, number): SHAPES[shape] for shape, count in _TOPICS.items() for number in range(count)
    }
    loaded = {_load_topic(shape): SHAPES[shape] for shape in SHAPES}
    return usual | loaded | dict.fromkeys((VOLATILE_TOPIC, UNFLUSHED_TOPIC), (1, 1))


@dataclasses.dataclass
class Server:
    """A running server, and fresh topics on it."""

    name: str
    master: str
    broker: str
    """Where its one broker, number 1, listens."""
    admin: MasterAdmin
    broker_admin: BrokerAdmin
    add_topic: Callable[[str, int, int], None]
    """Create a topic with so many stores, and partitions a store; returns when clients see it."""
    forget_topic: Callable[[str], None]
    """No longer expect a topic that the test closes or removes by itself."""
    restart_broker: Callable[[], None]
    """Stop the broker in good order and start it again; returns when it serves."""
    crash_broker: Callable[[], None]
    """Kill the broker and start it again; it loses what the topic for it has in memory only."""
    expire: Callable[[str], None] | None = None
    """Remove all messages of a topic, as retention does after days: of the embedded one only."""
    data: Path | None = None
    """The directory of the embedded one, which writes nowhere else."""
    gateways: Sequence[str] = ()
    """Where queries reach it through gateways, and not directly."""
    _numbers: dict[str, Iterator[int]] = dataclasses.field(
        default_factory=lambda: {shape: itertools.count() for shape in SHAPES}
    )

    def fresh_topic(self, shape: str = "1x1") -> str:
        """Return the name of an empty topic of that shape, which no other test uses."""
        number = next(self._numbers[shape])
        name = _name(shape, number)
        if number >= _TOPICS[shape]:
            self.add_topic(name, *SHAPES[shape])
        return name

    def load_topic(self, shape: str) -> str:
        """Return the name of the one topic of that shape that takes messages at full speed."""
        return _load_topic(shape)

    def stored(self, topic: str) -> int:
        """Return how many messages of a topic the broker says it has."""
        return self.broker_admin.message_count(topic)

    def pick(self, *, embedded: Size, real: Size) -> Size:
        """Return how much of something a test does on this server."""
        return real if self.name == "real" else embedded

    def options(self, **more: str) -> dict[str, str]:
        """Return the connection's options for Spark, and some more."""
        servers = {"tubemq.master.servers": self.master}
        if self.gateways:
            servers = {"tubemq.gateway.servers": ",".join(self.gateways)}
        return {**servers, "tubemq.group": "it_group", **more}


def partitions(shape: str) -> list[str]:
    """Return the partitions of a topic of a shape, as offsets in JSON name them."""
    stores, partitions_per_store = SHAPES[shape]
    return [f"1:{10_000 * store + index}" for store in range(stores) for index in range(partitions_per_store)]


@contextmanager
def real_server() -> Iterator[Server]:
    """Start the Java TubeMQ: one master, one broker, small segments."""
    special = {_load_topic(shape): _LOAD_PROPERTIES for shape in SHAPES}
    special |= dict.fromkeys((VOLATILE_TOPIC, UNFLUSHED_TOPIC), _VOLATILE_PROPERTIES)
    topics = {name: TopicSpec(*shape, properties=special.get(name, {})) for name, shape in _topics().items()}
    with RealTubeMQ(topics) as cluster:
        yield server_of(cluster)


def server_of(cluster: RealTubeMQ) -> Server:
    """Return a Java TubeMQ as tests see it, with the first broker as its only one."""
    broker = cluster.brokers[1]

    def crash() -> None:
        cluster.kill_broker(1)
        cluster.start_broker(1)

    return Server(
        "real",
        cluster.master,
        broker.address,
        cluster.admin,
        broker.admin,
        add_topic=cluster.add_topic,
        forget_topic=cluster.forget_topic,
        restart_broker=lambda: cluster.restart_broker(1),
        crash_broker=crash,
    )


def await_files(cluster: RealTubeMQ, broker_id: int, topic: str) -> None:
    """Wait until a Java broker has a topic's messages in its files: a crash loses nothing of them then."""
    broker = cluster.brokers[broker_id]
    for (_, partition), bounds in broker.admin.pubinfo([topic]).items():
        store = broker.data / f"{topic}-{partition // PARTITIONS_PER_STORE}"
        wait_until(
            lambda store=store, bounds=bounds: logs(store)[0].end >= bounds.latest,
            timeout_s=_FLUSH_SECONDS,
            what=f"broker {broker_id} to write topic {topic} to its files",
        )


@contextmanager
def embedded_server(data: Path) -> Iterator[Server]:
    """Start the embedded TubeMQ on a directory of its own."""
    running = EmbeddedTubeMQ(data=data, topics=_topics(), settings=EmbeddedSettings(balance_period_ms=200))

    def restart() -> None:
        nonlocal running
        running.close()
        running = running.reopened()

    def add_topic(name: str, stores: int, partitions: int) -> None:
        running.add_topic(name, stores, partitions)

    try:
        yield Server(
            "embedded",
            running.master,
            running.broker,
            MasterAdmin(running.master_web, token="abc"),
            BrokerAdmin(running.broker_web),
            add_topic=add_topic,
            forget_topic=lambda _: None,
            restart_broker=restart,
            # A crash takes nothing from it that it acknowledged, so that is taken on purpose.
            crash_broker=lambda: running.faults.lose_messages(VOLATILE_TOPIC, running.stats().messages_in),
            expire=lambda topic: running.apply_retention(topic, older_than_ms=0),
            data=data,
        )
    finally:
        running.close()


USER: Final = Login("it_user", "it_password")
"""Whom the servers that demand a login know."""


@dataclasses.dataclass(frozen=True)
class SecuredServer:
    """A running server that demands a login of producers and of consumers."""

    name: str
    master: str
    topic: str
    stored: Callable[[str], int]
    """How many messages of a topic the broker has."""


@contextmanager
def secured_real_server() -> Iterator[SecuredServer]:
    """Start a Java TubeMQ that demands logins. It knows no passwords: that was left to its operators."""
    settings = ServerSettings(authenticate=True)
    with RealTubeMQ({"secured": TopicSpec()}, settings=settings) as cluster:
        yield SecuredServer("real", cluster.master, "secured", cluster.message_count)


@contextmanager
def secured_embedded_server(data: Path) -> Iterator[SecuredServer]:
    """Start an embedded TubeMQ that demands logins, and knows one password."""
    settings = EmbeddedSettings(
        authenticate_producers=True,
        authenticate_consumers=True,
        users={USER.user: USER.password},
        check_visit_tokens=True,
    )
    with EmbeddedTubeMQ(data=data, topics={"secured": (1, 1)}, settings=settings) as running:
        stored = BrokerAdmin(running.broker_web).message_count
        yield SecuredServer("embedded", running.master, "secured", stored)


TLS_TOPICS: Final = ("written", "copied", "rejected")


@dataclasses.dataclass(frozen=True)
class TlsServer:
    """A running server of two brokers that takes clients of its authority only, over TLS."""

    name: str
    authority: Authority
    master: str
    """Where it speaks TLS."""
    plain_master: str
    """A master that does not."""
    stored: Callable[[str], int]
    """How many messages of a topic the brokers have."""


@contextmanager
def tls_real_server(directory: Path) -> Iterator[TlsServer]:
    """Start a Java TubeMQ with TLS ports; it always wants certificates of its clients."""
    authority = Authority(directory)
    key_store = authority.issue("server").key_store()
    stores = TlsStores(key_store, authority.trust_store(), STORE_PASSWORD)
    topics = dict.fromkeys(TLS_TOPICS, TopicSpec())
    with RealTubeMQ(topics, brokers=2, settings=ServerSettings(tls=stores)) as cluster:
        yield TlsServer("real", authority, cluster.master_tls, cluster.master, cluster.message_count)


@contextmanager
def tls_embedded_server(directory: Path) -> Iterator[TlsServer]:
    """Start an embedded TubeMQ that speaks TLS, and another one that does not."""
    authority = Authority(directory)
    pair = authority.issue("server")
    tls = ServerTls(str(pair.cert), str(pair.key), client_ca_file=str(authority.cert))
    topics = dict.fromkeys(TLS_TOPICS, (1, 1))
    with (
        EmbeddedTubeMQ(topics=topics, brokers=2, settings=EmbeddedSettings(tls=tls)) as running,
        EmbeddedTubeMQ(topics=topics) as plain,
    ):

        def stored(topic: str) -> int:
            return sum(BrokerAdmin(web).message_count(topic) for web in running.broker_webs.values())

        yield TlsServer("embedded", authority, running.master, plain.master, stored)
