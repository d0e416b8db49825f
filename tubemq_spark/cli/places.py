"""Partitions and places in them, as arguments name them; and the command that shows their offsets."""

import argparse
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import connected, connection
from tubemq_spark.cli.output import Output, complain, rows_lines, text_of
from tubemq_spark.cli.parser import JSON, TIME_ZONE_OF_MESSAGES, argument, command
from tubemq_spark.errors import OptionError
from tubemq_spark.model import (
    INDEX_ENTRY_BYTES,
    OffsetBounds,
    StoreId,
    TopicPartition,
    TopicsLayout,
    require_aligned,
)
from tubemq_spark.offsets.message_time import MOMENT, moment_ms
from tubemq_spark.offsets.notation import OffsetReader, listed
from tubemq_spark.offsets.offset_spec import (
    Edge,
    OffsetSpec,
    Specific,
    Timestamp,
    read_offset_spec,
    resolve,
    specific_offsets,
    stores_started_at_earliest,
    timestamps,
)

if TYPE_CHECKING:
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.offsets.loss import LossRecord

PLACE: Final = f"earliest, latest, an offset, or a time such as {MOMENT}"
"""What a place may be, for help and errors."""
_ADVICE: Final = "consume --json prints the messageTime and the offset of each message, to choose by them"


def parse_place(text: str) -> Edge | Timestamp | int:
    """Read a place: an edge, an offset in index bytes, or a time (UTC unless it names another zone)."""
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
    """Read ``brokerId:partitionId``."""
    broker, colon, partition = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() for part in (broker, partition)):
        raise argparse.ArgumentTypeError(f"{text!r} is not BROKER_ID:PARTITION_ID")
    return int(broker), int(partition)


PARTITIONS: Final = argument(
    "--partition BROKER_ID:PARTITION_ID",
    "only this partition; may be given several times",
    parse_partition,
    action="append",
)


def fields_of(partition: TopicPartition) -> dict[str, Any]:
    """Return the first fields of a row about a partition."""
    topic, broker_id, partition_id = partition
    return {"topic": topic, "brokerId": broker_id, "partition": partition_id}


def chosen_partitions(
    layout: TopicsLayout, named: Sequence[tuple[int, int]] | None
) -> Collection[TopicPartition]:
    """Return the partitions that were named, or all, in their order."""
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


OFFSETS_HELP: Final = (
    "offsets of single partitions, as JSON or in a file, in the form of the option startingOffsets or of a "
    "checkpoint"
)
_OFFSETS_ADVICE: Final = 'write for example {"clicks":{"1:0":280,"2:0":-2},"orders":"latest"}'


def read_offsets(argument: str) -> Specific:
    """Read what ``--offsets`` names: JSON, or the path of a file with some."""
    text, source = argument.strip(), "--offsets"
    if not text.startswith("{"):
        text, source = text_of("--offsets", Path(text)).strip(), f"The file {text}"
    reader = OffsetReader(source, text, _OFFSETS_ADVICE)
    spec = read_offset_spec(reader.load(), reader)
    if not isinstance(spec, Specific) or timestamps(spec, ()):
        reader.fail("it does not name offsets")
    return spec


def positions_at(
    cluster: "Cluster",
    layout: TopicsLayout,
    partitions: Collection[TopicPartition],
    place: Edge | Timestamp | int,
    time_zone: str,
) -> dict[TopicPartition, int]:
    """Return the offset of one place, which ``--to`` names, in each of some partitions."""
    if isinstance(place, Timestamp):
        bounds = _bounds(cluster, layout, partitions)
        offsets = offsets_at(cluster, layout, bounds, place, "--to", time_zone)
        return {partition: offsets[partition] for partition in partitions}
    if isinstance(place, int):
        spec: Edge | Specific = specific_offsets(dict.fromkeys(partitions, require_aligned(place, "--to")))
    else:
        spec = place
    return _resolved(cluster, layout, spec, partitions, "--to")


def positions_given(cluster: "Cluster", layout: TopicsLayout, spec: Specific) -> dict[TopicPartition, int]:
    """Return the offset of each partition that ``--offsets`` names."""
    named: dict[TopicPartition, int | Edge] = {}
    for topic, value in spec.topics.items():
        if isinstance(value, Edge):
            named |= {partition: value for partition in layout.partitions if partition.topic == topic}
        else:
            named |= {partition: at for partition, at in value.items() if not isinstance(at, Timestamp)}
    if unknown := sorted(named.keys() - layout.partitions.keys()):
        raise OptionError(
            "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS",
            option="--offsets",
            unknown=listed(unknown),
            known=listed(sorted(layout.partitions)),
            advice="Name some of these, and no others",
        )
    return _resolved(cluster, layout, specific_offsets(named), named, "--offsets")


def _resolved(
    cluster: "Cluster",
    layout: TopicsLayout,
    spec: Edge | Specific,
    partitions: Collection[TopicPartition],
    option: str,
) -> dict[TopicPartition, int]:
    bounds = _bounds(cluster, layout, partitions)
    # Retention may take the data of messages long before their entries in the index.
    begins = {
        layout.alone_in_store[store]: bounds[store]
        for store in stores_started_at_earliest(spec, partitions, bounds)
        if store in layout.alone_in_store and bounds[store].earliest < bounds[store].latest
    }
    readable = cluster.first_readable(layout, begins) if begins else {}
    lifted = {place.store_id: span._replace(earliest=readable[place]) for place, span in begins.items()}
    return resolve(spec, partitions, {**bounds, **lifted}, option=option, on_loss=_tell)


def _bounds(
    cluster: "Cluster", layout: TopicsLayout, partitions: Collection[TopicPartition]
) -> Mapping[StoreId, OffsetBounds]:
    return cluster.bounds(layout, {partition.store_id for partition in partitions}).complete()


def _tell(loss: "LossRecord") -> None:
    complain(f"{loss.partition}: there is no message at offset {loss.start} any more, but from {loss.end} on")


@command(
    name="offsets",
    summary="show where partitions begin and end, and what a time's offset is",
    description="Show the earliest and the latest offset of each partition. Offsets count 28 per "
    "message; partitions of one store share them.",
    example="clicks --at 2026-01-31T12:00 --master 10.1.2.3",
    failure="a broker does not answer",
    arguments=(
        argument("topics TOPIC", "topics to look at", nargs="+"),
        PARTITIONS,
        argument("--at PLACE", f"show the offset of a place too: {PLACE}", parse_place),
        TIME_ZONE_OF_MESSAGES,
        JSON,
        connection("tubemq_spark_offsets"),
    ),
)
def offsets(arguments: argparse.Namespace) -> Output:
    """Show where partitions begin and end."""
    _, cluster = connected(arguments)
    layout = cluster.layout(arguments.topics)
    partitions = chosen_partitions(layout, arguments.partition)
    bounds = cluster.bounds(layout, {partition.store_id for partition in partitions})
    at = {}
    if arguments.at is not None:
        zone = arguments.message_time_zone
        at = offsets_at(cluster, layout, bounds.by_store, arguments.at, "--at", zone)
    rows = [
        {
            **fields_of(partition),
            "earliest": span and span.earliest,
            "latest": span and span.latest,
            **({} if arguments.at is None else {"at": at.get(partition)}),
        }
        for partition in partitions
        for span in [bounds.by_store.get(partition.store_id)]
    ]
    problems = [f"{store}: {error}" for store, error in bounds.failures.items()]
    return Output({"partitions": rows}, rows_lines(rows), problems, failed=bool(problems))
