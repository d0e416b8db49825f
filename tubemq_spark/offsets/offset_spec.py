"""Offset specs: where a user wants a query to begin and a batch read to end.

``earliest``, ``latest``, or JSON: ``{"demo": {"1:0": 280, "1:10000": -2}, "other": "latest"}`` with -2 for
earliest and -1 for latest, as in Spark's Kafka source. A checkpoint's own JSON is accepted too, so that a new
query can resume where an old one stopped.
"""

import dataclasses
import datetime
import enum
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from tubemq_spark.errors import LocalProtocolError, OptionError, TubeMQConnectionError
from tubemq_spark.model import OffsetBounds, StoreId, TopicPartition
from tubemq_spark.offsets.loss import Evidence, Loss, LossPolicy, LossRecord
from tubemq_spark.offsets.marks import Mark, Place, passed, place_of, read_marks
from tubemq_spark.offsets.message_time import MOMENT, moment_ms
from tubemq_spark.offsets.notation import VERSION_KEY, OffsetReader, listed, write_offsets

_ADVICE: Final = {
    "startingOffsets": 'write earliest, latest, group or for example {"demo":{"1:0":280,"1:10000":-2}}',
    "availableNowUntil": (
        'write a time such as 2026-01-31T12:00 or for example {"demo":{"1:0":280,"1:10000":-1}}'
    ),
    "endingOffsets": 'write latest or for example {"demo":{"1:0":280,"1:10000":-1}}',
}
"""What the options take; a batch read cannot end at the earliest offset."""


class Edge(enum.Enum):
    """One of the two ends of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Stored(enum.Enum):
    """An offset that TubeMQ keeps; to be replaced by it before it is resolved."""

    GROUP = "group"
    """Where the user's consumer group stands."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timestamp:
    """The first record of this time or later; to be replaced by an offset before it is resolved."""

    ms: int
    """Milliseconds since 1970 in UTC."""


@dataclasses.dataclass(frozen=True, slots=True)
class Specific:
    """An offset for every partition, topic by topic."""

    topics: Mapping[str, Edge | Mapping[TopicPartition, int | Edge | Timestamp]]
    """One word for all partitions of a topic, or for each an offset (in index bytes), a word or a time."""
    marks: tuple[Mark, ...] = ()
    """Records that the logs had when these offsets were written, if they are those of a query."""


OffsetSpec = Edge | Stored | Timestamp | Specific

_CODES: Final[dict[Edge, int]] = {Edge.EARLIEST: -2, Edge.LATEST: -1}
_EDGES: Final[dict[int, Edge]] = {code: edge for edge, code in _CODES.items()}
_WORDS: Final[dict[str, Edge]] = {edge.value: edge for edge in Edge}
LATEST_MS: Final = 253_402_214_400_000
"""The last day of the year 9999, which is as far as a message's time goes."""
FIRST_MS: Final = 946_684_800_000
"""The year 2000: what a user gives as milliseconds and lies before it was meant as seconds, or by mistake."""
_TIME: Final = "time"
"""Marks a time in JSON, in place of an offset."""
TIMESTAMPS_EXAMPLE: Final = '{"demo":{"1:0":"2026-01-31T12:00"}}'
TIME: Final = f"a time such as {MOMENT}, or milliseconds since 1970 such as 1769860800000"
"""What a time may be in the value of an option."""


def parse_offset_spec(text: str, option: str) -> OffsetSpec:
    """Read the value of ``startingOffsets`` or ``endingOffsets``."""
    reader = OffsetReader(f"Option '{option}'", text.strip(), _ADVICE[option])
    if text.strip().lower() == Stored.GROUP.value:
        return Stored.GROUP
    word = _WORDS.get(text.strip().lower())
    return word if word is not None else _spec_of_object(reader.load(), reader)


def parse_timestamp(text: str, what: str) -> Timestamp | None:
    """Read a time: milliseconds since 1970, or as ``moment_ms`` does; None: it is neither."""
    text = text.strip()
    try:
        is_number = text.isascii() and text.isdigit()
        ms = int(text) if is_number else moment_ms(text)
    except ValueError:
        return None
    if is_number and 0 < ms < FIRST_MS:
        date = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).date()
        advice = f"Write {ms * 1000} if these are seconds" if ms * 1000 >= FIRST_MS else "Correct the number"
        raise OptionError("TUBEMQ_TIME_TOO_EARLY", what=what, ms=ms, date=date, advice=advice, moment=MOMENT)
    return Timestamp(ms) if 0 <= ms <= LATEST_MS else None


def parse_timestamps(text: str, option: str) -> Specific:
    """Read the value of an option such as ``startingOffsetsByTimestamp``: a time for each partition."""
    reader = OffsetReader(f"Option '{option}'", text.strip(), f"write for example {TIMESTAMPS_EXAMPLE}")

    def read(value: object, partition: TopicPartition) -> Timestamp:
        text = value if isinstance(value, str) else json.dumps(value)
        time = parse_timestamp(text, f"Option '{option}' for {partition}")
        if time is None:
            reader.fail(f"the time of {partition} is {json.dumps(value)}, not {TIME}")
        return time

    topics = {topic: reader.partitions(topic, value, read) for topic, value in reader.load().items()}
    if not any(topics.values()):
        reader.fail("it names no partition")
    return Specific(topics)


def format_timestamps(spec: Specific) -> str:
    """Return the text that ``parse_timestamps`` reads as this spec."""
    times = timestamps(spec, ())
    data = {partition: time.ms for partition, time in times.items()}
    return json.dumps(write_offsets(data), separators=(",", ":"))


def timestamps(spec: OffsetSpec, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Timestamp]:
    """Return which of some partitions begin at a time; of all that a ``Specific`` names if these are none."""
    if isinstance(spec, Timestamp):
        return dict.fromkeys(partitions, spec)
    if not isinstance(spec, Specific):
        return {}
    chosen = set(partitions)
    return {
        partition: value
        for inner in spec.topics.values()
        if not isinstance(inner, Edge)
        for partition, value in inner.items()
        if isinstance(value, Timestamp) and (not chosen or partition in chosen)
    }


def option_of(spec: OffsetSpec, edge: str) -> str:
    """Return the option that a spec comes from; ``edge`` is ``starting`` or ``ending``."""
    if isinstance(spec, Timestamp):
        return f"{edge}Timestamp"
    return f"{edge}OffsetsByTimestamp" if timestamps(spec, ()) else f"{edge}Offsets"


def with_timestamps_resolved(spec: OffsetSpec, offsets: Mapping[TopicPartition, int | Edge]) -> OffsetSpec:
    """Return a spec with offsets in place of the times of some partitions."""
    if isinstance(spec, Timestamp):
        return specific_offsets(offsets)
    if not isinstance(spec, Specific):
        return spec
    return Specific(
        {
            topic: value
            if isinstance(value, Edge)
            else {partition: offsets.get(partition, time) for partition, time in value.items()}
            for topic, value in spec.topics.items()
        }
    )


def specific_offsets(offsets: Mapping[TopicPartition, int | Edge]) -> Specific:
    """Return the spec that names these offsets, in index bytes."""
    topics: dict[str, dict[TopicPartition, int | Edge | Timestamp]] = {}
    for partition, offset in offsets.items():
        topics.setdefault(partition.topic, {})[partition] = offset
    return Specific(topics)


def passed_marks(spec: OffsetSpec) -> list[Mark]:
    """Return the marks of records before the offsets of a spec."""
    if not isinstance(spec, Specific):
        return []
    offsets = {
        partition: value
        for inner in spec.topics.values()
        if not isinstance(inner, Edge)
        for partition, value in inner.items()
        if isinstance(value, int)
    }
    return passed(spec.marks, offsets)


def begun_again(spec: OffsetSpec, replaced: Mapping[Place, Evidence], on_loss: LossPolicy) -> OffsetSpec:
    """Return a spec that begins at the earliest offset where logs were replaced since it was written."""
    if not replaced or not isinstance(spec, Specific):
        return spec
    topics = dict(spec.topics)
    for topic, inner in spec.topics.items():
        if isinstance(inner, Edge):
            continue
        values = topics[topic] = dict(inner)
        for partition, value in inner.items():
            evidence = replaced.get(place_of(partition))
            if evidence is not None and isinstance(value, int):
                on_loss(LossRecord(Loss.REPLACED, partition, value, value, evidence=evidence))
                values[partition] = Edge.EARLIEST
    return Specific(topics)


def read_offset_spec(data: object, reader: OffsetReader) -> OffsetSpec:
    """Read an offset spec from JSON data: a word, or an object."""
    if data == Stored.GROUP.value:
        return Stored.GROUP
    if isinstance(data, str):
        return _read_word(data, "the position", reader)
    return _spec_of_object(reader.mapping(data, "the position"), reader)


def offset_spec_to_json(spec: OffsetSpec) -> str | dict[str, Any]:
    """Return the one form of an offset spec as JSON data: equal specs give equal text."""
    if isinstance(spec, Edge):
        return spec.value
    if isinstance(spec, Stored):
        return spec.value
    if isinstance(spec, Timestamp):
        return {_TIME: spec.ms}
    return {topic: _topic_to_json(value) for topic, value in sorted(spec.topics.items())}


def format_offset_spec(spec: OffsetSpec) -> str:
    """Return the text that ``parse_offset_spec`` reads as this offset spec."""
    data = offset_spec_to_json(spec)
    return data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))


def mentions(spec: OffsetSpec, edge: Edge) -> str:
    """Name what a spec puts at an end of the log: ``every partition``, topics, partitions; or nothing."""
    if not isinstance(spec, Specific):
        return "every partition" if spec is edge else ""
    names = []
    for topic, value in sorted(spec.topics.items()):
        if isinstance(value, Edge):
            names += [f"topic {topic}"] if value is edge else []
        else:
            names += [str(partition) for partition in sorted(value) if value[partition] is edge]
    return listed(names)


def resolve(
    spec: OffsetSpec,
    partitions: Collection[TopicPartition],
    bounds: Mapping[StoreId, OffsetBounds],
    *,
    option: str,
    on_loss: LossPolicy,
    ends: Mapping[StoreId, int] | None = None,
) -> dict[TopicPartition, int]:
    """Return the offset of every partition that a spec names.

    An offset before the log's beginning is a loss (the user asks for records that retention removed): the
    policy raises, or reading begins at the log's beginning.
    """
    ordered = sorted(partitions)
    unreachable = [partition for partition in ordered if partition.store_id not in bounds]
    if unreachable:
        raise TubeMQConnectionError("TUBEMQ_BOUNDS_UNKNOWN", option=option, partitions=listed(unreachable))
    values = _spread(spec, ordered, option)
    latest = {store: span.latest for store, span in bounds.items()} | dict(ends or {})
    return {
        partition: _resolve_one(
            partition,
            values[partition],
            bounds[partition.store_id],
            latest[partition.store_id],
            option,
            on_loss,
        )
        for partition in ordered
    }


def ends_of(
    spec: OffsetSpec, partitions: Collection[TopicPartition], ends: Mapping[StoreId, int], *, option: str
) -> dict[TopicPartition, int]:
    """Return where reading ends in every partition: where a spec says, and no later than its store ends."""
    values = _spread(spec, sorted(partitions), option)
    offsets = {partition: value for partition, value in values.items() if isinstance(value, int)}
    latest = {partition: ends[partition.store_id] for partition in values}
    return {partition: min(end, offsets.get(partition, end)) for partition, end in latest.items()}


def refuse_other_partitions(spec: OffsetSpec, partitions: Collection[TopicPartition], option: str) -> None:
    """Refuse a spec that names partitions that do not exist, or not all that do."""
    _spread(spec, sorted(partitions), option)


def stores_started_at_earliest(
    spec: OffsetSpec, partitions: Iterable[TopicPartition], bounds: Mapping[StoreId, OffsetBounds]
) -> set[StoreId]:
    """Return the stores whose earliest offset is where a spec begins, or resumes after a loss."""
    stores = set()
    for partition in partitions:
        span, value = bounds.get(partition.store_id), _spec_of_partition(spec, partition)
        if span is not None and (
            value is Edge.EARLIEST or (isinstance(value, int) and value < span.earliest)
        ):
            stores.add(partition.store_id)
    return stores


def _spec_of_partition(spec: OffsetSpec, partition: TopicPartition) -> int | Edge | Stored | Timestamp | None:
    """Return what a spec says of a partition; None: nothing."""
    if not isinstance(spec, Specific):
        return spec
    of_topic = spec.topics.get(partition.topic)
    return of_topic if of_topic is None or isinstance(of_topic, Edge) else of_topic.get(partition)


def _resolve_one(
    partition: TopicPartition,
    value: int | Edge | Stored | Timestamp,
    bounds: OffsetBounds,
    latest: int,
    option: str,
    on_loss: LossPolicy,
) -> int:
    if isinstance(value, Stored | Timestamp):
        raise LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=f"{partition} has no offset yet: {value}")
    if value is Edge.EARLIEST:
        return bounds.earliest
    if value is Edge.LATEST:
        return latest
    if value > bounds.latest:
        raise OptionError(
            "TUBEMQ_OFFSET_BEYOND_LOG",
            option=option,
            partition=partition,
            offset=value,
            earliest=bounds.earliest,
            latest=bounds.latest,
        )
    if value < bounds.earliest:
        on_loss(LossRecord(Loss.EXPIRED, partition, value, bounds.earliest))
        return bounds.earliest
    return value


def _spread(
    spec: OffsetSpec, partitions: Sequence[TopicPartition], option: str
) -> dict[TopicPartition, int | Edge | Stored | Timestamp]:
    """Return each partition's part of a spec, which must name exactly these partitions."""
    if not isinstance(spec, Specific):
        return dict.fromkeys(partitions, spec)
    values: dict[TopicPartition, int | Edge | Stored | Timestamp] = {}
    for topic, value in spec.topics.items():
        if isinstance(value, Edge):
            values |= dict.fromkeys((each for each in partitions if each.topic == topic), value)
        else:
            values |= value
    topics = {partition.topic for partition in partitions}
    unknown = [
        *(f"topic {topic}" for topic in sorted(spec.topics.keys() - topics)),
        *(partition for partition in sorted(values.keys() - set(partitions)) if partition.topic in topics),
    ]
    if unknown:
        raise OptionError(
            "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS",
            option=option,
            unknown=listed(unknown),
            known=listed(partitions),
            advice="Name all of these, and no others",
        )
    missing = [partition for partition in partitions if partition not in values]
    if missing:
        how = _how_to_add(spec, option)
        raise OptionError(
            "TUBEMQ_OFFSETS_MISSING_PARTITIONS", option=option, missing=listed(missing), how=how
        )
    return values


def _how_to_add(spec: OffsetSpec, option: str) -> str:
    if timestamps(spec, ()):
        return "each with its time"
    return "with -2 for earliest or -1 for latest" if option == "startingOffsets" else "with -1 for latest"


def _spec_of_object(data: Mapping[str, Any], reader: OffsetReader) -> OffsetSpec:
    """Read a JSON object: a checkpoint's offset, one time for all, or a value for each topic."""
    if VERSION_KEY in data:
        return _spec_of_checkpoint(data, reader)
    if data.keys() == {_TIME} and type(data[_TIME]) is int:
        return _timestamp(data[_TIME], "the time", reader)
    return Specific({topic: _spec_of_topic(topic, value, reader) for topic, value in data.items()})


def _spec_of_topic(
    topic: str, value: object, reader: OffsetReader
) -> Edge | Mapping[TopicPartition, int | Edge | Timestamp]:
    """Read the value of a topic: a word for all its partitions, or a value for each."""
    if isinstance(value, str):
        return _read_word(value, f"the value of topic {topic!r}", reader)
    return reader.partitions(topic, value, lambda offset, whose: _offset_or_edge(offset, whose, reader))


def _spec_of_checkpoint(data: Mapping[str, Any], reader: OffsetReader) -> OffsetSpec:
    """Read what ``source_offset`` writes: resume where that query stopped."""
    reader.check_version(data)
    if "start" in data:
        reader.fields(data, (VERSION_KEY, "start"))
        return read_offset_spec(data["start"], reader)
    reader.checkpoint_fields(data)
    topics = reader.mapping(data["topics"], "the value of topics")
    return Specific(
        {topic: reader.partitions(topic, value, reader.offset) for topic, value in topics.items()},
        read_marks(data.get("marks", {}), reader),
    )


def _timestamp(value: object, what: str, reader: OffsetReader) -> Timestamp:
    if type(value) is not int or not 0 <= value <= LATEST_MS:
        reader.fail(f"{what} is {json.dumps(value)}, not milliseconds since 1970")
    return Timestamp(value)


def _offset_or_edge(value: object, partition: TopicPartition, reader: OffsetReader) -> int | Edge | Timestamp:
    if isinstance(value, dict) and value.keys() == {_TIME}:
        return _timestamp(value[_TIME], f"the time of {partition}", reader)
    # Only real integers: 1.0 and true equal 1, and -1.0 must not mean latest.
    edge = _EDGES.get(value) if type(value) is int else None
    return edge if edge is not None else reader.offset(value, partition)


def _read_word(text: str, what: str, reader: OffsetReader) -> Edge:
    word = _WORDS.get(text.strip().lower())
    if word is None:
        reader.fail(f"{what} is {json.dumps(text)}, neither earliest nor latest")
    return word


def _topic_to_json(
    value: Edge | Mapping[TopicPartition, int | Edge | Timestamp],
) -> str | dict[str, int | dict[str, int]]:
    if isinstance(value, Edge):
        return value.value
    ordered = sorted(value.items(), key=lambda item: item[0])
    return {partition.local_id: _value_to_json(offset) for partition, offset in ordered}


def _value_to_json(value: int | Edge | Timestamp) -> int | dict[str, int]:
    if isinstance(value, Timestamp):
        return {_TIME: value.ms}
    return _CODES[value] if isinstance(value, Edge) else value
