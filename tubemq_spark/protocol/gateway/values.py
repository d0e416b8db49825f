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
from tubemq_spark.protocol.gateway.batches import MalformedMessageError
from tubemq_spark.protocol.gateway.failures import from_proto as error_from_proto, to_proto as error_to_proto
from tubemq_spark.protocol.gateway.service import ITEMS, page
from tubemq_spark.receipts import Receipt

NO_TOKEN = 0
"""The visit token of a layout that came from a gateway, which keeps the master's token to itself."""


def partition_to_proto(partition: TopicPartition) -> pb.Partition:
    """Return a partition as a message."""
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
    proto = pb.QueryRouteResponse(
        missing_topics=sorted(layout.missing_topics),  # filled only for a request with missing_ok
        unread=map(partition_to_proto, sorted(layout.unread)),  # these may share stores with those read
    )
    places: dict[Endpoint, int] = {}
    for partition, endpoint in layout.partitions.items():
        place = places.setdefault(endpoint, len(places))
        proto.partitions.add(partition=partition_to_proto(partition), broker=place)  # from 0 on
    for endpoint in places:
        proto.brokers.add(host=endpoint.host, port=endpoint.port)
    return proto


def layout_from_proto(message: pb.QueryRouteResponse) -> TopicsLayout:
    """Return the layout of a message."""
    brokers = [Endpoint(item.host, item.port) for item in message.brokers]
    if any(item.broker >= len(brokers) for item in message.partitions):
        raise MalformedMessageError("a partition is at a broker that is not listed")
    return TopicsLayout(
        {partition_from_proto(item.partition): brokers[item.broker] for item in message.partitions},
        NO_TOKEN,
        frozenset(message.missing_topics),
        frozenset(map(partition_from_proto, message.unread)),
    )


def stores_to_proto(stores: Iterable[StoreId]) -> list[pb.Store]:
    """Return stores as messages."""
    return [pb.Store(topic=store.topic, broker_id=store.broker_id, store=store.store) for store in stores]


def stores_from_proto(messages: Iterable[pb.Store]) -> list[StoreId]:
    """Return the stores of messages."""
    return [StoreId(store.topic, store.broker_id, store.store) for store in messages]


def bounds_to_proto(bounds: OffsetBounds) -> pb.Bounds:
    """Return bounds as a message."""
    return pb.Bounds(earliest=bounds.earliest, latest=bounds.latest)  # sint64, index bytes: 28 per message


def bounds_from_proto(message: pb.Bounds) -> OffsetBounds:
    """Return the bounds of a message."""
    return OffsetBounds(message.earliest, message.latest)


def store_bounds_to_proto(answer: StoreBounds, stores: Sequence[StoreId]) -> pb.QueryBoundsResponse:
    """Return the brokers' answers, in the order of the stores that were asked for."""
    proto = pb.QueryBoundsResponse()
    for store in stores:
        if (bounds := answer.by_store.get(store)) is not None:
            proto.answers.add(bounds=bounds_to_proto(bounds))
        else:
            proto.answers.add(error=error_to_proto(answer.failures[store]))
    return proto


def store_bounds_from_proto(message: pb.QueryBoundsResponse, stores: Sequence[StoreId]) -> StoreBounds:
    """Return what brokers answered."""
    if len(message.answers) != len(stores):  # an Answer names no store: its place does
        raise MalformedMessageError(f"{len(message.answers)} answers for {len(stores)} stores")
    bounds: dict[StoreId, OffsetBounds] = {}
    failures: dict[StoreId, TubeMQError] = {}
    for store, answer in zip(stores, message.answers, strict=True):
        which = answer.WhichOneof("answer")
        if which == "bounds":
            bounds[store] = bounds_from_proto(answer.bounds)
        elif which == "error":
            failures[store] = error_from_proto(answer.error)
        else:
            raise MalformedMessageError(f"neither bounds nor an error for {store}")
    return StoreBounds(bounds, failures)


def offsets_to_proto(offsets: Mapping[TopicPartition, int]) -> list[pb.PartitionOffset]:
    """Return an offset for each partition as messages."""
    return [
        pb.PartitionOffset(partition=partition_to_proto(partition), offset=offset)
        for partition, offset in offsets.items()
    ]


def offsets_from_proto(messages: Iterable[pb.PartitionOffset]) -> dict[TopicPartition, int]:
    """Return the offset for each partition of messages."""
    return {partition_from_proto(item.partition): item.offset for item in messages}


def stored_offsets_to_proto(
    offsets: StoredOffsets, size: int = 0, token: str = ""
) -> pb.QueryStoredOffsetsResponse:
    """Return where groups stand as a message: a page of ``size`` positions, and all failures."""
    by_name = {_name(item): item for item in offsets.offsets}
    known, next_token = page(by_name, lambda name: _stored_to_proto(by_name[name]), size, token, ITEMS)
    proto = pb.QueryStoredOffsetsResponse(known=known, next_page_token=next_token)
    for broker_id, error in offsets.failures.items():
        proto.failures.add(broker_id=broker_id, error=error_to_proto(error))
    return proto


def _name(item: StoredOffset) -> str:
    """Return a text whose order is that of brokers, groups and partitions."""
    partition = item.partition
    return "\0".join(
        (f"{partition.broker_id:010}", item.group, partition.topic, f"{partition.partition_id:010}")
    )


def _stored_to_proto(item: StoredOffset) -> pb.QueryStoredOffsetsResponse.Stored:
    return pb.QueryStoredOffsetsResponse.Stored(
        group=item.group,
        partition=partition_to_proto(item.partition),
        committed=item.committed,
        in_flight=item.in_flight,
        latest=item.latest,
        consumer=item.consumer,
    )


def stored_offsets_from_proto(message: pb.QueryStoredOffsetsResponse) -> StoredOffsets:
    """Return where groups stand."""
    offsets = tuple(
        StoredOffset(
            item.group,
            partition_from_proto(item.partition),
            item.committed,
            item.in_flight,
            item.latest if item.HasField("latest") else None,
            item.consumer if item.HasField("consumer") else None,
        )
        for item in message.known
    )
    return StoredOffsets(offsets, {item.broker_id: error_from_proto(item.error) for item in message.failures})


def reset_failures_to_proto(failures: Mapping[TopicPartition, TubeMQError]) -> pb.ResetOffsetsResponse:
    """Return why a group was not moved in some partitions."""
    proto = pb.ResetOffsetsResponse()
    for partition, error in failures.items():
        proto.failures.add(partition=partition_to_proto(partition), error=error_to_proto(error))
    return proto


def reset_failures_from_proto(message: pb.ResetOffsetsResponse) -> dict[TopicPartition, TubeMQError]:
    """Return why a group was not moved in some partitions."""
    return {partition_from_proto(item.partition): error_from_proto(item.error) for item in message.failures}


def receipts_to_proto(receipts: Iterable[Receipt]) -> list[pb.Receipt]:
    """Return receipts as messages."""
    return [
        pb.Receipt(
            partition=partition_to_proto(receipt.partition),
            count=receipt.count,
            first_offset=receipt.first_offset,  # the lowest append offset, in index bytes
            last_offset=receipt.last_offset,
            retried=receipt.retried,  # of count, those sent more than once
            unanswered=receipt.unanswered,  # attempts, not messages
            bytes=receipt.bytes,  # of the bodies, without attributes
            checksum=receipt.checksum,  # modulo 2^63; absent unless SessionSettings.checksums asks for it
        )
        for receipt in receipts
    ]


def receipts_from_proto(messages: Iterable[pb.Receipt]) -> list[Receipt]:
    """Return the receipts of messages."""
    return [
        Receipt(
            partition_from_proto(receipt.partition),
            receipt.count,
            receipt.first_offset,
            receipt.last_offset,
            receipt.retried,
            receipt.unanswered,
            receipt.bytes,
            receipt.checksum if receipt.HasField("checksum") else None,
        )
        for receipt in messages
    ]
