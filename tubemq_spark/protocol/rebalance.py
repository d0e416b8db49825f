"""Rebalance events: what a master tells a consumer to take and to give up (EventProto, EventType).

An event comes with the answer to a heartbeat, at most one at a time, and only once. The consumer carries it
out and says so in a later heartbeat, with the same id. Only the four types that connect or disconnect travel
today; TubeMQ's Java code names the others too.
"""

import dataclasses
import enum
from collections.abc import Iterable
from typing import Final

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol.partition_strings import (
    PartitionInfo,
    SubscribeInfo,
    format_subscribe_info,
    parse_subscribe_info,
)
from tubemq_spark.protocol.pb import common_pb2


class EventType(enum.IntEnum):
    """What an event asks for (EventType)."""

    UNKNOWN = -1
    CONNECT = 1
    """Take partitions; the second of two events of one rebalance."""
    DISCONNECT = 2
    """Give partitions up; the first of two events of one rebalance."""
    REPORT = 3
    """Tell what is held."""
    REFRESH = 4
    """Tell all that is held, so that the master's view is right again."""
    STOP_REBALANCE = 5
    """End the carrying out of events: what TubeMQ's Java client tells its own thread when it closes."""
    ONLY_CONNECT = 10  # 10 and 20: the consumer gains or loses only, so one event does
    ONLY_DISCONNECT = 20


class EventStatus(enum.IntEnum):
    """How far an event is (EventStatus)."""

    FAILED = -2
    UNKNOWN = -1
    TODO = 0
    PROCESSING = 1  # the master's own note that the event was handed out
    DONE = 2  # also of a connect that failed: the list that is reported tells


CONNECTS: Final = frozenset({EventType.CONNECT, EventType.ONLY_CONNECT})
DISCONNECTS: Final = frozenset({EventType.DISCONNECT, EventType.ONLY_DISCONNECT})
_TYPES: Final = {int(kind): kind for kind in EventType}


@dataclasses.dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """An event, as a master sent it."""

    rebalance_id: int
    """Above 0."""
    type: EventType
    partitions: tuple[PartitionInfo, ...]
    unreadable: tuple[str, ...] = ()
    """Partitions that could not be read; they are left out, so that the others can be taken."""

    def __str__(self) -> str:
        places = ", ".join(str(info.partition) for info in self.partitions) or "no partition"
        return f"rebalance {self.rebalance_id}, {self.type.name}: {places}"


def parse_event(proto: common_pb2.EventProto) -> RebalanceEvent | None:
    """Read an event; None when the message holds none (its id is missing or not above 0)."""
    # The Go client tests whether `event` is there, Java whether the id is above 0; so masters leave the field
    # out.
    if proto.rebalanceId <= 0:
        return None
    partitions: list[PartitionInfo] = []
    unreadable: list[str] = []
    for text in proto.subscribeInfo:
        try:
            partitions.append(parse_subscribe_info(text).held)
        except RemoteProtocolError:
            unreadable.append(text)
    return RebalanceEvent(proto.rebalanceId, _type(proto.opType), tuple(partitions), tuple(unreadable))


def format_event(
    event: RebalanceEvent, consumer_id: str, group: str, status: EventStatus = EventStatus.DONE
) -> common_pb2.EventProto:
    """Write the answer to an event. A master looks only at the id: it removes the event that it sent last."""
    # Masters leave `status` out of their events; the answer of a client says DONE (2).
    return common_pb2.EventProto(
        rebalanceId=event.rebalance_id,  # only tested for > 0; the head of the queue goes, so answer once
        opType=event.type,
        status=status,
        subscribeInfo=subscribe_infos(event.partitions, consumer_id, group),
    )


def subscribe_infos(partitions: Iterable[PartitionInfo], consumer_id: str, group: str) -> list[str]:
    """Write partitions of a consumer, one text each, as registers, heartbeats and events list them."""
    return [format_subscribe_info(SubscribeInfo(consumer_id, group, info)) for info in partitions]


def _type(number: int) -> EventType:
    return _TYPES.get(number, EventType.UNKNOWN)
