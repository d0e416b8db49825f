"""Positions that a command sets: one place for all partitions, or an offset for each of some."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.places import offsets_at
from tubemq_spark.cli.tables import complain
from tubemq_spark.cli.wording import text_of
from tubemq_spark.errors import OptionError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition, TopicsLayout, require_aligned
from tubemq_spark.offsets.notation import OffsetReader, listed
from tubemq_spark.offsets.offset_spec import (
    Edge,
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

OFFSETS_HELP: Final = (
    "offsets of single partitions, as JSON or in a file, in the form of the option startingOffsets or of a "
    "checkpoint"
)
_ADVICE: Final = 'write for example {"clicks":{"1:0":280,"2:0":-2},"orders":"latest"}'


def read_offsets(argument: str) -> Specific:
    """Read what ``--offsets`` names: JSON, or the path of a file with some.

    Raises:
        OffsetFormatError: it is not that, or names times.
        OptionError: there is no such file, or it is not text.
    """
    text, source = argument.strip(), "--offsets"
    if not text.startswith("{"):
        text, source = text_of("--offsets", Path(text)).strip(), f"The file {text}"
    reader = OffsetReader(source, text, _ADVICE)
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
    """Return the offset of one place, which ``--to`` names, in each of some partitions.

    Raises:
        OptionError: an offset is beyond a log's end, or messages carry no time.
        OffsetFormatError: an offset is not a multiple of 28.
        TubeMQError: a broker does not answer, or refuses.
    """
    if isinstance(place, int):
        spec = specific_offsets(dict.fromkeys(partitions, require_aligned(place, "--to")))
        return _resolved(cluster, layout, spec, partitions, "--to")
    if isinstance(place, Edge):
        return _resolved(cluster, layout, place, partitions, "--to")
    bounds = _bounds(cluster, layout, partitions)
    offsets = offsets_at(cluster, layout, bounds, place, "--to", time_zone)
    return {partition: offsets[partition] for partition in partitions}


def positions_given(cluster: "Cluster", layout: TopicsLayout, spec: Specific) -> dict[TopicPartition, int]:
    """Return the offset of each partition that ``--offsets`` names.

    Raises:
        OptionError: a partition is not in the layout, or an offset is beyond a log's end.
        TubeMQError: a broker does not answer, or refuses.
    """
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
