"""Clusters that grow and fail in one way, whether the Java TubeMQ or the embedded one: for stress tests."""

from typing import Final, Protocol

from integration_tests.real.cluster import RealTubeMQ
from integration_tests.rig.servers import await_files
from tubemq_spark.embedded.server import EmbeddedTubeMQ


class ChangingCluster(Protocol):
    """Some brokers. Every method returns when clients see the change."""

    master: str
    master_web: str
    shapes: dict[str, tuple[int, int]]
    """The stores of each topic, and the partitions of each store."""

    @property
    def brokers(self) -> list[int]:
        """The ids of all brokers."""

    def add_topic(self, name: str, stores: int, partitions: int) -> None:
        """Create a topic on all brokers."""

    def grow_topic(self, name: str, stores: int, partitions: int) -> None:
        """Give a topic more stores or partitions."""

    def add_broker(self) -> None:
        """Start one more broker, with all topics."""

    def restart_broker(self, broker_id: int) -> None:
        """Stop a broker in good order and start it."""

    def kill_broker(self, broker_id: int) -> None:
        """Kill a broker that loses nothing by that, and start it."""

    def restart_master(self) -> None:
        """Kill the master and start it."""


class ChangingJava:
    """The Java TubeMQ."""

    def __init__(self, cluster: RealTubeMQ) -> None:
        self._cluster: Final = cluster
        self.master = cluster.master
        self.master_web = cluster.master_web
        self.shapes = {name: (spec.stores, spec.partitions) for name, spec in cluster.topics.items()}

    @property
    def brokers(self) -> list[int]:
        return list(self._cluster.brokers)

    def add_topic(self, name: str, stores: int, partitions: int) -> None:
        self._cluster.add_topic(name, stores, partitions)
        self.shapes[name] = stores, partitions

    def grow_topic(self, name: str, stores: int, partitions: int) -> None:
        self._cluster.grow_topic(name, stores=stores, partitions=partitions)
        self.shapes[name] = stores, partitions

    def add_broker(self) -> None:
        self._cluster.add_broker()

    def restart_broker(self, broker_id: int) -> None:
        self._cluster.restart_broker(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        for topic in self.shapes:
            await_files(self._cluster, broker_id, topic)
        self._cluster.kill_broker(broker_id)
        self._cluster.start_broker(broker_id)

    def restart_master(self) -> None:
        self._cluster.restart_master()


class ChangingEmbedded:
    """The embedded one, whose master is in one process with its brokers and never goes alone."""

    def __init__(self, server: EmbeddedTubeMQ) -> None:
        self._server: Final = server
        self.master = server.master
        self.master_web = server.master_web
        self.shapes = {name: (spec.stores, spec.partitions) for name, spec in server.topics().items()}

    @property
    def brokers(self) -> list[int]:
        return list(self._server.brokers)

    def add_topic(self, name: str, stores: int, partitions: int) -> None:
        self._server.add_topic(name, stores, partitions)
        self.shapes[name] = stores, partitions

    def grow_topic(self, name: str, stores: int, partitions: int) -> None:
        self.add_topic(name, stores, partitions)

    def add_broker(self) -> None:
        added = self._server.add_broker()
        for name, shape in self.shapes.items():
            self._server.add_topic(name, *shape, brokers=[added])

    def restart_broker(self, broker_id: int) -> None:
        self._server.faults.stop_broker(broker_id, graceful=True)
        self._server.faults.start_broker(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        # Not crash_broker, which cuts the power: what is not flushed to the disk would be lost.
        self._server.faults.stop_broker(broker_id)
        self._server.faults.start_broker(broker_id)

    def restart_master(self) -> None:
        self._server.faults.forget_clients()
