"""How much a request may have: the bounds that the comments of the .proto name.

A gateway checks them before it does anything for a request, since a message of a few bytes per item can name
millions; clients ask for more with several calls. Tests compare this table with the comments.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.protocol.names import LONGEST_MESSAGE_TYPE, MOST_MESSAGE_TYPES

Item = TypeVar("Item")

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
TOKEN: Final = 4_096
SECRET_BYTES: Final = range(16, 65)

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
    "SessionSettings.reader_groups": ITEMS,
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
}
"""By field: the most items of a list, characters of a text, or bytes; ``[]`` is each item of a list of texts.
Batches of messages have no other bound than their bytes."""


def check(message: Message) -> None:
    """Return when no field of a message, and of those in it, has more than it may.

    Raises:
        MalformedMessageError: one has.
    """
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
            if not isinstance(value, pb.MessageBatch):
                check(value)
        else:
            for item in value:
                check(item)


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
