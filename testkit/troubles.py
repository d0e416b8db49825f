"""The troubles in the table of ``docs/guarantees/guarantees.md``, inflicted on a cluster of three brokers."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Final, Self

from testkit.connections import opened_connections
from testkit.forwarder import Forwarder
from testkit.message_sender import single
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.embedded.faults import Rule
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ, TopicSpec
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import Method
from tubemq_spark.testing.client import TopicClient

AWAY: Final = 2
"""The broker that goes away."""
TOPIC: Final = "steady"
CHANGING: Final = "changing"
"""The topic that is removed, or whose records are lost; its partitions share their stores."""
_SETTINGS: Final = EmbeddedSettings(
    broker_timeout_ms=300,
    # Several fetches per range, so that something can happen between the first and the last.
    max_entries=2,
    # Nothing is flushed by chance.
    flush_check_ms=3_600_000,
)


class Scene:
    """Three brokers with two topics, and two master addresses; a context manager."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as closing:
            self.server = closing.enter_context(
                EmbeddedTubeMQ(topics={TOPIC: (1, 1), CHANGING: (1, 2)}, settings=_SETTINGS, brokers=3)
            )
            self._ways = [closing.enter_context(Forwarder(self.server.master)) for _ in range(2)]
            self._connections = closing.enter_context(opened_connections())
            config = ClientConfig((Endpoint.parse(self.server.master),), "producers").validate()
            self._cluster = TransportCluster(DirectTransport(config, self._connections))
            self._count = 0
            self.is_producing = False
            """Whether the scene itself is producing at present."""
            self.rules: list[Rule] = []
            self._closing = closing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.faults.clear()
        self._closing.close()

    @property
    def masters(self) -> str:
        """The addresses for ``tubemq.master.servers``."""
        return ",".join(way.address for way in self._ways)

    def produce(self, where: Callable[[TopicPartition], bool] = lambda _: True, rows: int = 3) -> set[bytes]:
        """Store some rows in each of these partitions; return their values, which are unique."""
        layout = self._cluster.layout([TOPIC, CHANGING], missing_ok=True)
        values = set()
        self.is_producing = True
        with self._cluster.sender() as sender:
            for partition in filter(where, layout.partitions):
                for _ in range(rows):
                    self._count += 1
                    value = b"%s #%d" % (str(partition).encode(), self._count)
                    place = (partition.broker_id, partition.partition_id)
                    sender.send_batch(single(partition.topic, value, partition=place))
                    values.add(value)
        self.is_producing = False
        return values

    def beginning(self) -> str:
        """Return offset 0 of all partitions, in the form of ``startingOffsets``."""
        offsets: dict[str, dict[str, int]] = {}
        for partition in self._cluster.layout([TOPIC, CHANGING]).partitions:
            offsets.setdefault(partition.topic, {})[partition.local_id] = 0
        return json.dumps(offsets)

    def settle(self, seconds: float) -> None:
        """End all faults and wait until all brokers answer."""
        self.server.faults.clear()
        deadline = time.monotonic() + seconds
        while self._cluster.bounds(self._cluster.layout([TOPIC, CHANGING], missing_ok=True)).failures:
            assert time.monotonic() < deadline, "a broker does not answer"
            time.sleep(0.01)

    def stored(self) -> list[bytes]:
        """Return the values in all topics."""
        with TopicClient(self.server.master, "lookers") as client:
            return [value for topic in self.server.topics() for value in client.values(topic)]

    def close_masters(self) -> None:
        """Make all masters unreachable."""
        for way in self._ways:
            way.close_port()

    def open_masters(self) -> None:
        """Make the masters reachable again."""
        for way in self._ways:
            way.open_port()

    def change_leader(self) -> None:
        """Make the first master a standby; the second one leads, and does not know the clients."""
        standby = self._closing.enter_context(EmbeddedTubeMQ())
        standby.faults.become_standby()
        self.server.faults.forget_clients()
        self._ways[0].lead_to(standby.master)
        self._ways[1].lead_to(self.server.master)


def partition_of(value: bytes) -> TopicPartition:
    """Return the partition of a row that was stored by ``Scene.produce``."""
    topic, _, place = value.decode().partition(" ")[0].partition("/")
    broker_id, _, partition_id = place.partition(":")
    return TopicPartition(topic, int(broker_id), int(partition_id))


def _of_broker(partition: TopicPartition) -> bool:
    return partition.broker_id == AWAY


def _of_topic(partition: TopicPartition) -> bool:
    return partition.topic == CHANGING


def _of_none(_: TopicPartition) -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """One row of the table."""

    begin: Callable[[Scene], None]
    end: Callable[[Scene], None] | None = None
    """None: it ends at once, or never."""
    touches: Callable[[TopicPartition], bool] = _of_none
    """The partitions whose rows must wait, or are lost."""
    loses: bool = False
    """Whether stored rows are lost."""

    @property
    def topic(self) -> str:
        """The topic that it affects, if any; else the one that may grow."""
        return CHANGING if self.touches is _of_topic else TOPIC

    def spares(self, partition: TopicPartition) -> bool:
        """Whether a partition is not affected."""
        return not self.touches(partition)

    def is_writable(self, partition: TopicPartition) -> bool:
        """Whether an existing partition accepts rows when the trouble is over, or permanent."""
        return self.spares(partition) or self.end is not None or self.loses


def _stop(scene: Scene) -> None:
    scene.server.faults.stop_broker(AWAY)


def _freeze(scene: Scene) -> None:
    scene.server.faults.freeze_broker(AWAY)


def _start(scene: Scene) -> None:
    scene.server.faults.start_broker(AWAY)


def _cut(scene: Scene) -> None:
    """Truncate the first answers to all methods, except those for leaving."""
    for method in (
        Method.PRODUCER_HEARTBEAT,
        Method.SEND_MESSAGE,
        Method.PARTITION_REGISTER,
        Method.GET_MESSAGE,
        Method.COMMIT_OFFSET,
        Method.BALANCE_PARTITION_META,
    ):
        rule = scene.server.faults.truncate(method, times=2, only=lambda _: not scene.is_producing)
        scene.rules.append(rule)


def _add_broker(scene: Scene) -> None:
    scene.server.add_topic(TOPIC, brokers=[scene.server.add_broker()])


def _grow(scene: Scene) -> None:
    scene.server.add_topic(TOPIC, stores=2, partitions=2)


def _remove(scene: Scene) -> None:
    scene.server.remove_topic(CHANGING)


def _close(scene: Scene) -> None:
    scene.server.close_topic(CHANGING)


def _open(scene: Scene) -> None:
    scene.server.set_topic(CHANGING, TopicSpec(1, 2))


def _make_again(scene: Scene) -> None:
    _remove(scene)
    scene.server.add_topic(CHANGING, 1, 2)


def _expire(scene: Scene) -> None:
    scene.server.apply_retention(CHANGING, older_than_ms=0)


def _crash(scene: Scene) -> None:
    scene.server.faults.crash_broker(AWAY)
    _start(scene)


TROUBLES: Final[dict[str, Trouble]] = {
    "A broker is killed and restarted": Trouble(_stop, _start, _of_broker),
    "A broker is frozen for a while": Trouble(_freeze, _start, _of_broker),
    "A broker does not come back": Trouble(_stop, None, _of_broker),
    "Connections break in the middle of a frame": Trouble(_cut),
    "No master answers for a while": Trouble(Scene.close_masters, Scene.open_masters),
    "Another master takes the lead": Trouble(Scene.change_leader),
    "A broker is added": Trouble(_add_broker),
    "A store and a partition are added": Trouble(_grow),
    "A topic is removed": Trouble(_remove, None, _of_topic, loses=True),
    "A topic is closed and opened again": Trouble(_close, _open, _of_topic),
    "A topic is removed and created again": Trouble(_make_again, None, _of_topic, loses=True),
    "Records expire before they are read": Trouble(_expire, None, _of_topic, loses=True),
    "A broker crashes and loses what was not on its disk": Trouble(_crash, None, _of_broker, loses=True),
}
"""By the first cell of each row."""
