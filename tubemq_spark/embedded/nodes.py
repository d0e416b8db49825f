"""The brokers of this process, running or not: they are stopped, frozen and started one by one."""

import contextlib
import dataclasses
import enum
import ipaddress
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.config.broker_config import BrokerConfig
from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec, TopicStatus
from tubemq_spark.embedded.config.stamps import SYSTEM_USER
from tubemq_spark.embedded.directories import make_directory
from tubemq_spark.embedded.log.traffic import Traffic
from tubemq_spark.embedded.master.brokers import KnownBroker, Presence
from tubemq_spark.embedded.running import Common, Ending, Place, RunningBroker
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Interceptor


class BrokerCondition(enum.StrEnum):
    """What a broker does now."""

    RUNNING = "running"
    FROZEN = "frozen"
    STOPPED = "stopped"


class BrokerNode:
    """One broker: how it is set up and, while it runs, its stores and ports.

    ``running`` is replaced as a whole, under the lock; it is None while the broker is stopped. The master is
    told of each change (``known.presence``).
    """

    def __init__(self, place: Place, common: Common) -> None:
        """Open the broker; ports that were left open are chosen now, and for good.

        Raises:
            DataLossError: the directory is damaged in a way that recovery must not repair.
            TubeMQConnectionError: a port cannot be opened.
        """
        make_directory(place.directory)
        settings = common.settings
        self._common = common
        self._lock = threading.RLock()
        self._interceptor: Interceptor | None = None
        self._frozen = False
        self._past_traffic = Traffic()
        self._reserved = contextlib.ExitStack()
        catalog = Catalog(place.directory / "topics.json")
        config = BrokerConfig(place.directory / "broker.json")
        running = RunningBroker.open(place, catalog, common)
        self._running: RunningBroker | None = running
        self._place = dataclasses.replace(place, port=running.broker.port, web_port=running.web.port)
        self.known = KnownBroker(
            place.broker_id,
            Endpoint(place.advertised, running.broker.port),
            running.web.port,
            catalog,
            config,
            Presence(settings.broker_timeout_ms, settings.broker_startup_ms),
        )
        """The broker as its master sees it."""

    @property
    def id(self) -> int:
        """The broker's id."""
        return self.known.id

    @property
    def condition(self) -> BrokerCondition:
        """What the broker does now."""
        with self._lock:
            if self._running is None:
                return BrokerCondition.STOPPED
            return BrokerCondition.FROZEN if self._frozen else BrokerCondition.RUNNING

    @property
    def running(self) -> RunningBroker | None:
        """What runs of it now."""
        return self._running

    @property
    def state(self) -> BrokerState:
        """What the handlers of the running broker share.

        Raises:
            OptionError: it is stopped.
        """
        if (running := self._running) is None:
            raise OptionError("TUBEMQ_BROKER_STOPPED", broker_id=self.id)
        return running.state

    def stop(self, ending: Ending) -> None:
        """Close its ports and drop its connections; a stopped one stays as it is."""
        with self._lock:
            if (running := self._running) is None:
                return
            self._running = None
            self._frozen = False
            if ending is Ending.ORDERLY:
                self.known.presence.mark_left()
            else:
                self.known.presence.mark_silent()
            self._past_traffic.add(running.state.stores.traffic())
            try:
                running.close(ending)
            finally:
                self._reserve_ports()

    def freeze(self) -> None:
        """Read and answer nothing, and keep the connections.

        Raises:
            OptionError: the broker is stopped.
        """
        with self._lock:
            if self._running is None:
                raise OptionError("TUBEMQ_BROKER_STOPPED", broker_id=self.id)
            self._running.freeze()
            self._frozen = True
            self.known.presence.mark_silent()

    def start(self) -> None:
        """Run again, on the same ports; a frozen broker goes on, a running one stays as it is.

        Raises:
            DataLossError: the directory is damaged in a way that recovery must not repair.
            TubeMQConnectionError: a port cannot be opened.
        """
        with self._lock:
            if self._running is None:
                self._reserved.close()
                self._running = RunningBroker.open(self._place, self.known.catalog, self._common)
                self._running.broker.intercept(self._interceptor)
            elif self._frozen:
                self._running.thaw()
            self._frozen = False
            self.known.presence.mark_back()

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Put a function between the requests and their handlers, or none; it outlives a stop."""
        with self._lock:
            self._interceptor = interceptor
            if self._running is not None:
                self._running.broker.intercept(interceptor)

    def set_topic(self, topic: str, spec: TopicSpec, by: str = SYSTEM_USER, date: str | None = None) -> None:
        """Add a topic or change one, as ``BrokerState.set_topic``; a stopped broker follows when it starts.

        Raises:
            OptionError: the catalog refuses it, or a stopped broker still has to remove the old topic.
        """
        with self._lock:
            if self._running is not None:
                self._running.state.set_topic(topic, spec, by, date)
                return
            old = self.known.catalog.get(topic)
            if old is not None and old.status is TopicStatus.REMOVED is not spec.status:
                what = f"broker {self.id}, which is stopped, has not removed the old one yet"
                raise OptionError("TUBEMQ_BAD_TOPIC_SHAPE", topic=topic, what=what)
            self.known.catalog.add(topic, spec, by, date)

    def grown(self, topic: str, stores: int, partitions: int) -> TopicSpec:
        """Return a topic's rules with this shape; one that is new, or was closed, gets the usual rules."""
        old = self.known.catalog.get(topic)
        base = old if old is not None and old.status is TopicStatus.NORMAL else TopicSpec()
        return dataclasses.replace(base, stores=stores, partitions=partitions)

    def apply_retention(self, topic: str, older_than_ms: int | None) -> None:
        """Delete old data of a topic; a stopped broker has nothing to delete from."""
        spec = self.known.catalog.get(topic)
        running = self._running
        if spec is None or running is None:
            return
        age_ms = spec.retention_ms if older_than_ms is None else older_than_ms
        for (name, _), store in running.state.stores.all().items():
            if name == topic:
                store.expire(age_ms, roll=older_than_ms is not None)

    def traffic(self) -> Traffic:
        """Return what went in and out since the server's start."""
        total = Traffic()
        with self._lock:
            total.add(self._past_traffic)
            if self._running is not None:
                total.add(self._running.state.stores.traffic())
        return total

    def close(self) -> None:
        """End with the server."""
        self.stop(Ending.ORDERLY)
        self._reserved.close()

    def _reserve_ports(self) -> None:
        """Keep the ports from others while the broker is stopped: who connects is refused, as it must be."""
        for port in (self._place.port, self._place.web_port):
            reserved = self._reserved.enter_context(socket.socket())
            # Should somebody have been quicker, the start will say so.
            with contextlib.suppress(OSError):
                reserved.bind((self._place.host, port))


class BrokerNodes:
    """All brokers of this process, by their ids from 1 on; none is ever taken out."""

    def __init__(self, first: Place, common: Common) -> None:
        """Take where the first broker is: the others' places follow from it."""
        self._first = first
        self._common = common
        self._by_id: dict[int, BrokerNode] = {}
        self._adding = threading.Lock()

    def __iter__(self) -> Iterator[BrokerNode]:
        return iter(self._by_id.values())

    def get(self, broker_id: int) -> BrokerNode:
        """Return a broker.

        Raises:
            OptionError: there is no such broker.
        """
        if (node := self._by_id.get(broker_id)) is None:
            known = ", ".join(map(str, self._by_id))
            raise OptionError("TUBEMQ_NO_SUCH_BROKER", broker_id=broker_id, known=known)
        return node

    def open_next(self) -> BrokerNode:
        """Open one more broker.

        Raises:
            OptionError: there is no address for it.
            DataLossError: its directory is damaged in a way that recovery must not repair.
            TubeMQConnectionError: a port cannot be opened.
        """
        with self._adding:
            node = BrokerNode(self._place(len(self._by_id) + 1), self._common)
            self._by_id = {**self._by_id, node.id: node}
            return node

    def kept(self) -> int:
        """Return how many brokers have a directory."""
        directory = self._first.directory
        return next(number for number in range(1, 256) if not _directory(directory, number + 1).is_dir())

    def meant(self, topic: str, brokers: Iterable[int] | None) -> list[BrokerNode]:
        """Return the brokers of these ids; without ids those that have a topic, or all when none has it.

        Raises:
            OptionError: there is no such broker.
        """
        if brokers is not None:
            return [self.get(broker_id) for broker_id in brokers]
        specs = {node: node.known.catalog.get(topic) for node in self}
        having = [
            node
            for node, spec in specs.items()
            if spec is not None and spec.status is not TopicStatus.REMOVED
        ]
        return having or list(specs)

    def set_topic(self, broker_id: int, topic: str, spec: TopicSpec, by: str, date: str | None) -> None:
        """Add a topic to a broker or change it there, in the name of a user.

        Raises:
            OptionError: there is no such broker, or the topic cannot be like this.
        """
        self.get(broker_id).set_topic(topic, spec, by, date)

    def release(self, broker_id: int) -> None:
        """Let a broker that I/O errors have stopped read and write again."""
        self.get(broker_id).state.release_services()

    def traffic(self) -> Traffic:
        """Return what went in and out since the server's start."""
        total = Traffic()
        for node in self:
            total.add(node.traffic())
        return total

    def close(self) -> None:
        """Close all brokers; one that fails does not keep the others."""
        with contextlib.ExitStack() as closing:
            for node in self:
                closing.callback(node.close)

    def _place(self, number: int) -> Place:
        first = self._first
        if number == 1:
            return first
        host = nth_host(first.host, first.advertised, number)
        # As on the hosts of a real cluster, the ports are everywhere the same.
        known = self._by_id[1].known
        directory = _directory(first.directory, number)
        return Place(number, directory, host, host, known.endpoint.port, known.web_port)


def nth_host(host: str, advertised: str, number: int) -> str:
    """Return the address of a broker, counted from that of the first: 127.0.0.1, 127.0.0.2 and so on.

    TubeMQ's master refuses a second broker on the same address, therefore each has its own.

    Raises:
        OptionError: there is no such address, or clients elsewhere are to reach it.
    """
    if host == advertised:
        with contextlib.suppress(ValueError):
            address = ipaddress.IPv4Address("127.0.0.1" if host == "localhost" else host) + (number - 1)
            if address.is_loopback:
                return str(address)
    raise OptionError("TUBEMQ_BROKER_ADDRESSES", host=host, advertised=advertised)


def _directory(data: Path, number: int) -> Path:
    """Return the directory of a broker that is not the first."""
    return data / f"broker-{number}"
