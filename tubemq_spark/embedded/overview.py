"""What an embedded TubeMQ is doing, at one moment."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from tubemq_spark.embedded.log.traffic import Traffic
from tubemq_spark.embedded.nodes import BrokerCondition, BrokerNode, BrokerNodes
from tubemq_spark.embedded.running import RunningMaster
from tubemq_spark.model import OffsetBounds, StoreId


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """Counts at one moment."""

    traffic: Traffic
    """Since the start."""
    connections: int
    """Open connections to the master and the brokers."""
    producers: int
    """Registered at the master."""
    consumers: int
    """Registered at the master; Spark queries are registered only while they plan."""
    leases: int
    """Partitions that are being read."""
    stores: Mapping[StoreId, OffsetBounds]
    """Where the stores begin and end, without stores that were never used or whose broker is stopped."""
    brokers: Mapping[int, BrokerCondition]
    """The condition of each broker."""


def take_overview(nodes: BrokerNodes, running: RunningMaster) -> Overview:
    """Return the present counts."""
    with running.state.lock:
        producers = running.state.members.producer_count
        consumers = sum(len(group.members) for group in running.state.members.groups.values())
    brokers = [broker for node in nodes if (broker := node.running) is not None]
    servers = [running.master, *(broker.broker for broker in brokers)]
    return Overview(
        traffic=nodes.traffic(),
        connections=sum(server.connection_count for server in servers),
        producers=producers,
        consumers=consumers,
        leases=sum(len(broker.state.leases.all()) for broker in brokers),
        stores={store: bounds for node in nodes for store, bounds in _bounds(node)},
        brokers={node.id: node.condition for node in nodes},
    )


def _bounds(node: BrokerNode) -> Iterator[tuple[StoreId, OffsetBounds]]:
    if (running := node.running) is None:
        return
    for (topic, number), store in running.state.stores.all().items():
        # The topic may just be removed, or the broker stopped.
        with contextlib.suppress(OSError):
            bounds = store.bounds
            yield StoreId(topic, node.id, number), OffsetBounds(bounds.earliest, bounds.latest)
