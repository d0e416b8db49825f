"""Partitions and places in them, as arguments name them."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.tables import complain
from tubemq_spark.errors import OptionError
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetBounds, StoreId, TopicPartition, TopicsLayout
from tubemq_spark.offsets.message_time import MOMENT, moment_ms
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, Specific, Timestamp

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster

PLACE: Final = f"earliest, latest, an offset, or a time such as {MOMENT}"
"""What a place may be, for help and errors."""
_ADVICE: Final = "consume --json prints the messageTime and the offset of each message, to choose by them"


def parse_place(text: str) -> Edge | Timestamp | int:
    """Read a place: an edge, an offset in index bytes, or a time (UTC unless it names another zone).

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    for edge in Edge:
        if text == edge.value:
            return edge
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return Timestamp(moment_ms(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a place: {PLACE}") from None


def parse_partition(text: str) -> tuple[int, int]:
    """Read ``brokerId:partitionId``.

    Raises:
        argparse.ArgumentTypeError: it is something else.
    """
    broker, colon, partition = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() for part in (broker, partition)):
        raise argparse.ArgumentTypeError(f"{text!r} is not BROKER_ID:PARTITION_ID")
    return int(broker), int(partition)


def chosen_partitions(
    layout: TopicsLayout, named: Sequence[tuple[int, int]] | None
) -> Collection[TopicPartition]:
    """Return the partitions that were named, or all, in their order.

    Raises:
        OptionError: one does not exist.
    """
    if not named:
        return sorted(layout.partitions)
    of_several_topics = sorted(layout.partitions)
    chosen = [one for one in of_several_topics if (one.broker_id, one.partition_id) in set(named)]
    for broker_id, partition_id in named:
        if (broker_id, partition_id) not in {(one.broker_id, one.partition_id) for one in chosen}:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option="--partition",
                value=f"{broker_id}:{partition_id}",
                expected=f"one of {', '.join(sorted(partition.local_id for partition in layout.partitions))}",
            )
    return chosen


def offsets_at(
    cluster: "Cluster",
    layout: TopicsLayout,
    bounds: Mapping[StoreId, OffsetBounds],
    place: Edge | Timestamp | int,
    option: str,
    time_zone: str,
    *,
    ending: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of a place in each partition of stores whose bounds are known, at most their ends.

    A partition without a record of that time or later ends before it: the place is its end.

    Args:
        cluster: the cluster.
        layout: where the partitions are.
        bounds: what their stores hold.
        place: the place.
        option: the argument that names it, for errors.
        time_zone: in which messages carry their times.
        ending: whether the place is where a range ends.

    Raises:
        OptionError: messages carry no time.
        TubeMQError: a broker does not answer, or refuses.
    """
    spans = {
        partition: bounds[partition.store_id]
        for partition in layout.partitions
        if partition.store_id in bounds
    }
    if isinstance(place, int):
        if not ending and spans and place > max(span.latest for span in spans.values()):
            complain(
                f"{option} {place} is an offset beyond the end of each partition, and counts as the end; "
                f"offsets rise by {INDEX_ENTRY_BYTES} with each message, and a time is {MOMENT}"
            )
        # Not from the beginning of what is there: who reads is told what is gone.
        return {partition: min(place, span.latest) for partition, span in spans.items()}
    if isinstance(place, Edge):
        return {
            partition: span.earliest if place is Edge.EARLIEST else span.latest
            for partition, span in spans.items()
        }
    from tubemq_spark.cluster.time_search import TimeSearch

    search = TimeSearch(cluster, layout, bounds, time_zone, advice=_ADVICE)
    if ending:
        offsets = search.end(place, option=option)
    else:
        offsets = search.begin(place, option=option, if_none=Edge.LATEST)
    return {partition: _offset(offsets, partition, span.latest) for partition, span in spans.items()}


def _offset(spec: OffsetSpec, partition: TopicPartition, latest: int) -> int:
    of_topic = spec.topics.get(partition.topic) if isinstance(spec, Specific) else None
    offset = of_topic.get(partition) if isinstance(of_topic, Mapping) else None
    return offset if isinstance(offset, int) else latest
