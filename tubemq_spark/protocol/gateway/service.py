"""The service: its methods, how much a request may have, and lists that come page by page.

A gateway checks the bounds, those of the comments in the .proto, before it does anything for a request, since
a message of a few bytes per item can name millions; clients ask for more with several calls. Tests compare
``BOUNDS`` with the comments.

Where two bytes can be a message, parsing them takes a hundred times as much memory. Batches of messages,
which are long, are therefore measured before they are parsed (``parsed_bytes``).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tubemq_spark.protocol.constants import LONGEST_MESSAGE_TYPE, MAX_TOPICS, MOST_MESSAGE_TYPES
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

_DESCRIPTOR: Final = pb.DESCRIPTOR.services_by_name["GatewayService"]

SERVICE: Final[str] = _DESCRIPTOR.full_name
"""The service's whole name, which health checks and reflection use too."""

PROTOCOL_REVISION: Final = 1
"""Grows when something that is there already changes its meaning."""

SESSION_KEY: Final = "tubemq-session-bin"
"""The key of the metadata in which a call names its session, as a serialised ``SessionRef``."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceMethod:
    """One method of the service."""

    name: str
    request: type[Any]
    response: type[Any]
    takes_stream: bool
    gives_stream: bool

    @property
    def path(self) -> str:
        """What gRPC calls the method."""
        return f"/{SERVICE}/{self.name}"


METHODS: Final[dict[str, ServiceMethod]] = {
    method.name: ServiceMethod(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        bool(method.client_streaming),
        bool(method.server_streaming),
    )
    for method in _DESCRIPTOR.methods
}
"""All methods, in the order of the .proto file."""


Item = TypeVar("Item")
Listed = TypeVar("Listed", bound=str | Message)

REQUEST_BYTES: Final = 1 << 20
"""The longest request of all methods but ``PublishStream``: 10,000 items fit."""
PART_BYTES: Final = 1 << 20
"""The longest part of a batch in ``PublishStream``; clients send longer batches in parts of this length."""
PAGE_BYTES: Final = 3 << 20
"""The most that a page of a list has, unless its first item alone is longer."""
ITEMS: Final = 10_000
NAME: Final = 1_024
"""Of groups, clients and users, in characters; TubeMQ's own names have as many at most."""
SHORT: Final = 256
READER_GROUPS: Final = 256
"""A session keeps their names, and has one of them for each reader of a partition."""
SETTINGS_BYTES: Final = 32 << 10
"""Of a session's settings in all, which a gateway keeps for thousands of sessions."""
TOKEN: Final = 4_096
SECRET_BYTES: Final = range(16, 65)
FIELDS: Final = 100_000
"""Of a batch in all, with those of its headers; every topic, header, attribute and place is one of them."""
_FIELD_BYTES: Final = 256
"""What a field of a batch takes in memory beside its bytes: one with messages in it, and the objects that are
made of them."""

BOUNDS: Final[Mapping[str, int]] = {
    "SessionRef.client_id": NAME,
    "SessionRef.secret": SECRET_BYTES[-1],
    "OpenSessionRequest.client_id": NAME,
    "OpenSessionRequest.secret": SECRET_BYTES[-1],
    "OpenSessionRequest.language": SHORT,
    "OpenSessionRequest.version": SHORT,
    "SessionSettings.group": NAME,
    "SessionSettings.username": NAME,
    "SessionSettings.password": NAME,
    "SessionSettings.reader_groups": READER_GROUPS,
    "SessionSettings.reader_groups[]": NAME,
    "SessionSettings.message_types": MOST_MESSAGE_TYPES,
    "SessionSettings.message_types[]": LONGEST_MESSAGE_TYPE,
    "SessionSettings.partitioner": SHORT,
    "SessionSettings.consume_position": SHORT,
    "Partition.topic": NAME,
    "Store.topic": NAME,
    "QueryRouteRequest.topics": MAX_TOPICS,
    "QueryRouteRequest.topics[]": NAME,
    "ListTopicsRequest.page_token": TOKEN,
    "CheckTopicRequest.topic": NAME,
    "CreateTopicRequest.topic": NAME,
    "CreateTopicRequest.broker_ids": ITEMS,
    "QueryBoundsRequest.stores": ITEMS,
    "QueryFirstReadableRequest.begins": ITEMS,
    "QueryGroupPositionsRequest.partitions": ITEMS,
    "QueryStoredOffsetsRequest.group": NAME,
    "QueryStoredOffsetsRequest.topics": MAX_TOPICS,
    "QueryStoredOffsetsRequest.topics[]": NAME,
    "QueryStoredOffsetsRequest.page_token": TOKEN,
    "ResetOffsetsRequest.positions": ITEMS,
    "TopicFilter.topic": NAME,
    "TopicFilter.message_types": MOST_MESSAGE_TYPES,
    "TopicFilter.message_types[]": LONGEST_MESSAGE_TYPE,
    "SubscribeRequest.topics": MAX_TOPICS,
    "SubscribeRequest.topics[]": NAME,
    "SubscribeRequest.filters": MAX_TOPICS,
    "SubscribeRequest.BoundStart.session_key": NAME,
    "SubscribeRequest.BoundStart.offsets": ITEMS,
    "AttachPartitionsRequest.topics": MAX_TOPICS,
    "AttachPartitionsRequest.topics[]": NAME,
    "AttachPartitionsRequest.partitions": ITEMS,
    "AttachPartitionsRequest.filters": MAX_TOPICS,
    "DetachPartitionsRequest.partitions": ITEMS,
    "FetchRequest.commit": ITEMS,
    "FetchRequest.commit[]": TOKEN,
    "FetchRequest.paused": ITEMS,
    "CommitRequest.batch": TOKEN,
    "ConsumeRequest.Pause.partitions": ITEMS,
    "ConsumeRequest.Resume.partitions": ITEMS,
    "ListMembersRequest.group": NAME,
    "ListMembersRequest.page_token": TOKEN,
    "ListGroupsRequest.topic": NAME,
    "ListGroupsRequest.page_token": TOKEN,
    "ListSessionsRequest.page_token": TOKEN,
    "PublishStreamRequest.Begin.name": NAME,
    "PublishStreamRequest.Part.data": PART_BYTES,
    "MessageBatch.topics": ITEMS,
    "MessageBatch.headers": ITEMS,
    "MessageBatch.places": ITEMS,
    "MessageHeader.attributes": ITEMS,
}
"""By field: the most items of a list, characters of a text, or bytes; ``[]`` is each item of a list of
texts."""


def check_bounds(message: Message) -> None:
    """Raise if a field of a message, or of one inside it, is too long; batches are measured."""
    for field, value in message.ListFields():
        name = _name(field)
        bound = BOUNDS.get(name)
        if bound is not None and len(value) > bound:
            raise _beyond(name, value)
        if field.message_type is None:
            for item in value if f"{name}[]" in BOUNDS else ():
                if len(item) > BOUNDS[f"{name}[]"]:
                    raise _beyond(f"{name}[]", item)
        elif isinstance(value, Message):
            if isinstance(value, pb.SessionSettings) and (size := value.ByteSize()) > SETTINGS_BYTES:
                raise MalformedMessageError(f"{name} has {size} bytes, and {SETTINGS_BYTES} is the most")
            if not isinstance(value, pb.MessageBatch):
                check_bounds(value)
        else:
            for item in value:
                check_bounds(item)


def parsed_bytes(message: type[Message], data: bytes) -> int:
    """Return how much memory a request, or a batch, takes when it is parsed, from its bytes alone.

    The bounds of batches, and of the headers in them, are checked on the way.
    """
    fields = _fields(cast("Descriptor", message.DESCRIPTOR), data, 0, len(data), FIELDS)
    return len(data) + _FIELD_BYTES * fields


def _fields(message: Descriptor, data: bytes, start: int, end: int, most: int) -> int:
    """Return how many fields a message has that lies between two places of some bytes."""
    lists = _lists(message)
    items = dict.fromkeys(lists, 0)
    inner: list[tuple[Descriptor, int, int]] = []
    count = 0
    while start < end:
        key, start = _varint(data, start)
        number, kind = key >> 3, key & 7
        start, after = _content(message, kind, data, start)
        if after > end:
            raise MalformedMessageError(f"the bytes of {message.name} end within a field")
        count += 1
        listed = lists.get(number)
        if listed is not None and kind == _LENGTH:
            items[number] += 1
            if items[number] > listed.most:
                raise MalformedMessageError(f"{listed.name} has more than {listed.most} items")
            if listed.message is not None and after > start:
                inner.append((listed.message, start, after))
        if count > most:
            raise MalformedMessageError(f"a batch has more than {FIELDS} fields")
        start = after
    # Last, so that a list that is too long has cost no more than a look at it.
    for item, first, after in inner:
        count += _fields(item, data, first, after, most - count)
    return count


def _content(message: Descriptor, kind: int, data: bytes, start: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends, whose kind stands before a place of some bytes."""
    if kind == _VARINT:
        return start, _varint(data, start)[1]
    if kind == _LENGTH:
        length, start = _varint(data, start)
        return start, start + length
    if kind in _FIXED:
        return start, start + _FIXED[kind]
    raise MalformedMessageError(f"a field of {message.name} is of the unknown kind {kind}")


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number at a place of some bytes, and where it ends."""
    if start < len(data) and data[start] < 0x80:
        return data[start], start + 1
    value = shift = 0
    for place in range(start, min(start + _VARINT_BYTES, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MalformedMessageError("a number of the message does not end")


_MEASURED: Final = frozenset(
    {
        "PublishStreamRequest.batch",
        "MessageBatch.topics",
        "MessageBatch.headers",
        "MessageBatch.places",
        "MessageHeader.attributes",
    }
)
"""The fields of batches that are lists, or have lists in them."""
_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED: Final[Mapping[int, int]] = {1: 8, 5: 4}
"""The kinds of fields on the wire: a number, bytes behind their length, and those of so many bytes."""
_VARINT_BYTES: Final = 10


class _Listed(NamedTuple):
    """A field whose items are counted."""

    name: str
    most: int
    message: Descriptor | None
    """What each item is, if there are lists in it."""


@functools.cache
def _lists(message: Descriptor) -> Mapping[int, _Listed]:
    """Return the fields of a message, by their numbers, that are lists or have lists in them."""
    return {
        field.number: _Listed(
            name,
            BOUNDS.get(name, 1),
            field.message_type if field.message_type and _lists(field.message_type) else None,
        )
        for field in message.fields
        if (name := _name(field)) in _MEASURED
    }


def chunks(items: Iterable[Item], most: int = ITEMS) -> Iterator[list[Item]]:
    """Yield items in lists that a request may have; one empty list for none."""
    left = iter(items)
    yield list(islice(left, most))
    while part := list(islice(left, most)):
        yield part


@functools.cache
def _name(field: FieldDescriptor) -> str:
    return str(field.full_name).removeprefix("tubemq.gateway.v1.")


def _beyond(name: str, value: Sequence[object]) -> MalformedMessageError:
    unit = {str: "characters", bytes: "bytes"}.get(type(value), "items")
    return MalformedMessageError(f"{name} has {len(value)} {unit}, and {BOUNDS[name]} is the most")


def page(
    names: Iterable[str], item: Callable[[str], Listed], size: int, token: str, most: int
) -> tuple[list[Listed], str]:
    """Return a part of a list in the order of names, and the token of the next part; blank: there is none.

    A token is the name behind which a part begins. A part has ``PAGE_BYTES`` at most, unless one item alone
    has more, and ``size`` items, or ``most`` if that is 0 or larger.
    """
    left = sorted(name for name in names if name > token)
    items: list[Listed] = []
    room = PAGE_BYTES
    for name in left[: min(size or most, most)]:
        next_item = item(name)
        room -= len(next_item.encode()) if isinstance(next_item, str) else next_item.ByteSize()
        if room < 0 and items:
            break
        items.append(next_item)
    return items, left[len(items) - 1] if len(left) > len(items) else ""
