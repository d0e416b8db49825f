"""Protobuf messages of TubeMQ: the pair of each method, proofs of who we are, and rebalance events.

A proof has four parts: for masters as TStringUtils.getAuthSignature, for brokers in one text. Time and nonce
are arguments; the password is used here and kept nowhere.

A rebalance event is what a master tells a consumer to take and to give up (EventProto, EventType). It comes
with the answer to a heartbeat, at most one at a time, and only once. The consumer carries it out and says so
in a later heartbeat, with the same id. Only the four types that connect or disconnect travel today; TubeMQ's
Java code names the others too.
"""

import base64
import dataclasses
import enum
import hashlib
import hmac
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import Message

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.packed_strings import (
    PartitionInfo,
    SubscribeInfo,
    format_subscribe_info,
    parse_subscribe_info,
)
from tubemq_spark.protocol.pb import broker_pb2, common_pb2, master_pb2


class MessagePair(NamedTuple):
    """The types of a method's messages."""

    request: type[Message]
    response: type[Message]


MESSAGES: Final[Mapping[Method, MessagePair]] = {
    Method.PRODUCER_REGISTER: MessagePair(master_pb2.RegisterRequestP2M, master_pb2.RegisterResponseM2P),
    Method.PRODUCER_HEARTBEAT: MessagePair(master_pb2.HeartRequestP2M, master_pb2.HeartResponseM2P),
    Method.PRODUCER_CLOSE: MessagePair(master_pb2.CloseRequestP2M, master_pb2.CloseResponseM2P),
    Method.CONSUMER_REGISTER: MessagePair(master_pb2.RegisterRequestC2M, master_pb2.RegisterResponseM2C),
    Method.CONSUMER_HEARTBEAT: MessagePair(master_pb2.HeartRequestC2M, master_pb2.HeartResponseM2C),
    Method.CONSUMER_CLOSE: MessagePair(master_pb2.CloseRequestC2M, master_pb2.CloseResponseM2C),
    Method.BROKER_REGISTER: MessagePair(master_pb2.RegisterRequestB2M, master_pb2.RegisterResponseM2B),
    Method.BROKER_HEARTBEAT: MessagePair(master_pb2.HeartRequestB2M, master_pb2.HeartResponseM2B),
    Method.BROKER_CLOSE: MessagePair(master_pb2.CloseRequestB2M, master_pb2.CloseResponseM2B),
    Method.SEND_MESSAGE: MessagePair(broker_pb2.SendMessageRequestP2B, broker_pb2.SendMessageResponseB2P),
    Method.PARTITION_REGISTER: MessagePair(broker_pb2.RegisterRequestC2B, broker_pb2.RegisterResponseB2C),
    Method.PARTITION_HEARTBEAT: MessagePair(broker_pb2.HeartBeatRequestC2B, broker_pb2.HeartBeatResponseB2C),
    Method.GET_MESSAGE: MessagePair(broker_pb2.GetMessageRequestC2B, broker_pb2.GetMessageResponseB2C),
    Method.COMMIT_OFFSET: MessagePair(broker_pb2.CommitOffsetRequestC2B, broker_pb2.CommitOffsetResponseB2C),
    Method.BALANCE_REGISTER: MessagePair(master_pb2.RegisterRequestC2MV2, master_pb2.RegisterResponseM2CV2),
    Method.BALANCE_HEARTBEAT: MessagePair(master_pb2.HeartRequestC2MV2, master_pb2.HeartResponseM2CV2),
    Method.BALANCE_PARTITION_META: MessagePair(
        master_pb2.GetPartMetaRequestC2M, master_pb2.GetPartMetaResponseM2C
    ),
}
"""All methods that travel (TubeMQ's PbEnDecoder); every response has ``errCode`` and ``errMsg``."""


def sign(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return ``urlEncode(base64(HMAC-SHA1(password, user + timestamp + nonce)))``.

    The nonce is from 0 to 2**31 - 2. Masters refuse a timestamp that is 20 s off their own clock.
    """
    # SHA-1 is what TubeMQ's servers compare; as a keyed hash it is not broken.
    digest = hmac.new(password.encode(), f"{user}{timestamp_ms}{nonce}".encode(), hashlib.sha1).digest()
    return urllib.parse.quote(base64.b64encode(digest), safe="")  # form encoding: %2B %2F %3D


def authenticate_info(user: str, password: str, timestamp_ms: int, nonce: int) -> common_pb2.AuthenticateInfo:
    """Return the proof for a master, signed as ``sign`` does."""
    return common_pb2.AuthenticateInfo(
        userName=user,  # AuthenticateInfo (1): all five fields are required
        timestamp=timestamp_ms,
        nonce=nonce,
        othParams="",  # required; Java sends it empty, too
        signature=sign(user, password, timestamp_ms, nonce),
    )


def broker_token(user: str, password: str, timestamp_ms: int, nonce: int) -> str:
    """Return the proof for a broker: ``user timestamp nonce signature``, for authAuthorizedToken."""
    return f"{user} {timestamp_ms} {nonce} {sign(user, password, timestamp_ms, nonce)}"


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
