"""The small values that cross the boundary of ``cluster``, as they travel to and from a gateway."""

from collections.abc import Iterable, Mapping, Sequence

from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import (
    Endpoint,
    OffsetBounds,
    StoreBounds,
    StoredOffset,
    StoredOffsets,
    StoreId,
    TopicPartition,
    TopicsLayout,
)
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import from_proto as error_from_proto, to_proto as error_to_proto
from tubemq_spark.protocol.gateway.packed import MalformedMessageError
from tubemq_spark.receipts import Receipt

NO_TOKEN = 0
"""The visit token of a layout that came from a gateway, which keeps the master's token to itself."""


def partition_to_proto(partition: TopicPartition) -> pb.Partition:
    """Return a partition as a message.

    Raises:
        OptionError: its numbers cannot be those of a partition.
    """
    try:
        return pb.Partition(
            topic=partition.topic, broker_id=partition.broker_id, partition_id=partition.partition_id
        )
    except (ValueError, TypeError) as error:
        raise OptionError("TUBEMQ_PARTITION_NOT_LISTED", partition=partition) from error


def partition_from_proto(message: pb.Partition) -> TopicPartition:
    """Return the partition of a message."""
    return TopicPartition(message.topic, message.broker_id, message.partition_id)


def layout_to_proto(layout: TopicsLayout) -> pb.QueryRouteResponse:
    """Return a layout as a message, without the master's token."""
    made = pb.QueryRouteResponse(
        missing_topics=sorted(layout.missing_topics),
        unread=map(partition_to_proto, sorted(layout.unread)),
    )
    places: dict[Endpoint, int] = {}
    for partition, endpoint in layout.partitions.items():
        place = places.setdefault(endpoint, len(places))
        made.partitions.add(partition=partition_to_proto(partition), broker=place)
    for endpoint in places:
        made.brokers.add(host=endpoint.host, port=endpoint.port)
    return made


def layout_from_proto(message: pb.QueryRouteResponse) -> TopicsLayout:
    """Return the layout of a message.

    Raises:
        MalformedMessageError: a partition is at a broker that the message does not list.
    """
    brokers = [Endpoint(one.host, one.port) for one in message.brokers]
    if any(one.broker >= len(brokers) for one in message.partitions):
        raise MalformedMessageError("a partition is at a broker that is not listed")
    return TopicsLayout(
        {partition_from_proto(one.partition): brokers[one.broker] for one in message.partitions},
        NO_TOKEN,
        frozenset(message.missing_topics),
        frozenset(map(partition_from_proto, message.unread)),
    )


def stores_to_proto(stores: Iterable[StoreId]) -> list[pb.Store]:
    """Return stores as messages."""
    return [pb.Store(topic=one.topic, broker_id=one.broker_id, store=one.store) for one in stores]


def stores_from_proto(messages: Iterable[pb.Store]) -> list[StoreId]:
    """Return the stores of messages."""
    return [StoreId(one.topic, one.broker_id, one.store) for one in messages]


def bounds_to_proto(bounds: OffsetBounds) -> pb.Bounds:
    """Return bounds as a message."""
    return pb.Bounds(earliest=bounds.earliest, latest=bounds.latest)


def bounds_from_proto(message: pb.Bounds) -> OffsetBounds:
    """Return the bounds of a message."""
    return OffsetBounds(message.earliest, message.latest)


def store_bounds_to_proto(found: StoreBounds, asked: Sequence[StoreId]) -> pb.QueryBoundsResponse:
    """Return what brokers answered, in the order of the stores that were asked for.

    Raises:
        KeyError: there is neither an answer nor a failure for one of them.
    """
    made = pb.QueryBoundsResponse()
    for store in asked:
        if (bounds := found.known.get(store)) is not None:
            made.answers.add(bounds=bounds_to_proto(bounds))
        else:
            made.answers.add(error=error_to_proto(found.failures[store]))
    return made


def store_bounds_from_proto(message: pb.QueryBoundsResponse, asked: Sequence[StoreId]) -> StoreBounds:
    """Return what brokers answered.

    Raises:
        MalformedMessageError: these are not the answers for so many stores.
    """
    if len(message.answers) != len(asked):
        raise MalformedMessageError(f"{len(message.answers)} answers for {len(asked)} stores")
    known: dict[StoreId, OffsetBounds] = {}
    failures: dict[StoreId, TubeMQError] = {}
    for store, answer in zip(asked, message.answers, strict=True):
        which = answer.WhichOneof("answer")
        if which == "bounds":
            known[store] = bounds_from_proto(answer.bounds)
        elif which == "error":
            failures[store] = error_from_proto(answer.error)
        else:
            raise MalformedMessageError(f"neither bounds nor an error for {store}")
    return StoreBounds(known, failures)


def offsets_to_proto(offsets: Mapping[TopicPartition, int]) -> list[pb.PartitionOffset]:
    """Return an offset for each partition as messages."""
    return [
        pb.PartitionOffset(partition=partition_to_proto(partition), offset=offset)
        for partition, offset in offsets.items()
    ]


def offsets_from_proto(messages: Iterable[pb.PartitionOffset]) -> dict[TopicPartition, int]:
    """Return the offset for each partition of messages."""
    return {partition_from_proto(one.partition): one.offset for one in messages}


def stored_offsets_to_proto(found: StoredOffsets) -> pb.QueryStoredOffsetsResponse:
    """Return where groups stand as a message."""
    made = pb.QueryStoredOffsetsResponse()
    for one in found.known:
        made.known.add(
            group=one.group,
            partition=partition_to_proto(one.partition),
            committed=one.committed,
            in_flight=one.in_flight,
            latest=one.latest,
            consumer=one.consumer,
        )
    for broker_id, error in found.failures.items():
        made.failures.add(broker_id=broker_id, error=error_to_proto(error))
    return made


def stored_offsets_from_proto(message: pb.QueryStoredOffsetsResponse) -> StoredOffsets:
    """Return where groups stand."""
    known = tuple(
        StoredOffset(
            one.group,
            partition_from_proto(one.partition),
            one.committed,
            one.in_flight,
            one.latest if one.HasField("latest") else None,
            one.consumer if one.HasField("consumer") else None,
        )
        for one in message.known
    )
    return StoredOffsets(known, {one.broker_id: error_from_proto(one.error) for one in message.failures})


def reset_failures_to_proto(failures: Mapping[TopicPartition, TubeMQError]) -> pb.ResetOffsetsResponse:
    """Return why a group was not moved in some partitions."""
    made = pb.ResetOffsetsResponse()
    for partition, error in failures.items():
        made.failures.add(partition=partition_to_proto(partition), error=error_to_proto(error))
    return made


def reset_failures_from_proto(message: pb.ResetOffsetsResponse) -> dict[TopicPartition, TubeMQError]:
    """Return why a group was not moved in some partitions."""
    return {partition_from_proto(one.partition): error_from_proto(one.error) for one in message.failures}


def receipts_to_proto(receipts: Iterable[Receipt]) -> list[pb.Receipt]:
    """Return receipts as messages."""
    return [
        pb.Receipt(
            partition=partition_to_proto(one.partition),
            count=one.count,
            first_offset=one.first_offset,
            last_offset=one.last_offset,
            retried=one.retried,
            unanswered=one.unanswered,
            bytes=one.bytes,
            checksum=one.checksum,
        )
        for one in receipts
    ]


def receipts_from_proto(messages: Iterable[pb.Receipt]) -> list[Receipt]:
    """Return the receipts of messages."""
    return [
        Receipt(
            partition_from_proto(one.partition),
            one.count,
            one.first_offset,
            one.last_offset,
            one.retried,
            one.unanswered,
            one.bytes,
            one.checksum if one.HasField("checksum") else None,
        )
        for one in messages
    ]
