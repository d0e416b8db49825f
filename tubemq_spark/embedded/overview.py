"""What an embedded TubeMQ is doing, at a glance."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from tubemq_spark.embedded.broker.leases import LeaseTable
from tubemq_spark.embedded.broker.stores import StoreSet
from tubemq_spark.embedded.config.settings import BROKER_ID
from tubemq_spark.embedded.log.store import Traffic
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.model import OffsetBounds, StoreId


@dataclasses.dataclass(frozen=True, slots=True)
class Overview:
    """Numbers of one moment."""

    traffic: Traffic
    """Since the start."""
    connections: int
    """Open ones to the master and the broker."""
    producers: int
    """Registered at the master."""
    consumers: int
    """Registered at the master; readers of this package are there only while they plan."""
    leases: int
    """Partitions that somebody reads."""
    stores: Mapping[StoreId, OffsetBounds]
    """What the stores hold; one that was never used is not there."""


def look(stores: StoreSet, leases: LeaseTable, master: MasterState, connections: int) -> Overview:
    """Take the numbers."""
    with master.lock:
        producers = master.members.producer_count
        consumers = sum(len(group.members) for group in master.members.groups.values())
    return Overview(
        traffic=stores.traffic(),
        connections=connections,
        producers=producers,
        consumers=consumers,
        leases=len(leases.all()),
        stores=dict(_bounds(stores)),
    )


def _bounds(stores: StoreSet) -> Iterator[tuple[StoreId, OffsetBounds]]:
    for (topic, number), store in stores.all().items():
        # A topic that is removed at this moment takes its stores with it.
        with contextlib.suppress(OSError):
            held = store.bounds
            yield StoreId(topic, BROKER_ID, number), OffsetBounds(held.earliest, held.latest)
