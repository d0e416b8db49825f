"""What Spark keeps in the checkpoint: a stream's offsets, as versioned, canonical JSON.

Two forms:

``{"v":1,"topics":{"demo":{"1:0":280}},"from":{"demo":{"1:0":0}}}``
    The next offset to read of every partition. ``from`` only exists for partitions that appear with this
    offset, and says where they begin. ``"partial":true`` at the end says that other partitions of the topics
    may have been there when it was written: ``assign`` left them out, or no master said in time which there
    are. They begin where their stores do, and not where the others of a store have come to.
``{"v":2,"topics":{"demo":{"1:0":280}},"marks":{"demo":{"1:0":"252.1y2p0ij32e8e7.1z141z3.20"}}}``
    The same with marks (see ``offsets.marks``): records by which a log that was replaced can be told. In
    ``"replaced":{"demo":{"1:0":0}}`` are the partitions of which that was found, with where their logs begin
    now: the micro-batch that ends with this offset begins there, and not where the one before ended. Version
    1 has neither, and is what is written without them.
``{"v":1,"start":"latest"}``
    A token: the stream's beginning, not resolved yet.

Spark asks for the beginning of a stream again after the first batch failed, and keeps nothing until that
batch is planned, so an ``initialOffset`` that changes would lose records. Therefore it is a constant token;
the first ``latestOffset`` resolves it and carries the resolved beginning in its ``from``, which Spark writes
down before any record is read. Partitions that appear later are treated in the same way.

Spark compares offsets as text, so equal offsets must give equal text: there is one writer, with one order of
keys.

``ReportedEnd`` is what a stream tells with Spark's progress: where its topics end, and how its brokers are.
Spark shows the text as ``latestOffset`` of the source and keeps it nowhere, so it may say more than an
offset of a checkpoint. A listener reads it. That may be one of an older release, so what is new is left
out while there is nothing to tell::

    {"v":1,"topics":{"demo":{"1:0":280}},"brokers":{"away":[2],"outages":3}}
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final, Self

from tubemq_spark.model import TopicPartition, require_aligned
from tubemq_spark.offsets.marks import Mark, read_marks, write_marks
from tubemq_spark.offsets.notation import (
    FIRST_VERSION,
    FORMAT_VERSION,
    VERSION_KEY,
    OffsetReader,
    write_offsets,
)
from tubemq_spark.offsets.offset_spec import OffsetSpec, offset_spec_to_json, read_offset_spec

_SOURCE: Final = "The stream's offset"
_ADVICE: Final = "restore the checkpoint, or start the query with a new one and startingOffsets"


@dataclasses.dataclass(frozen=True, slots=True)
class StartToken:
    """The beginning of a stream as the user gave it; never changes."""

    spec: OffsetSpec

    @property
    def next_offsets(self) -> Mapping[TopicPartition, int]:
        """No offsets: they are not resolved."""
        return {}

    @property
    def partial(self) -> bool:
        """False: no partition was left out."""
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the one JSON form, keys in their fixed order."""
        return {VERSION_KEY: FIRST_VERSION, "start": offset_spec_to_json(self.spec)}


@dataclasses.dataclass(frozen=True, slots=True)
class SourceOffset:
    """The offsets of all partitions.

    An offset that is not a multiple of 28 from 0 on is refused, so that none is ever written.
    """

    next_offsets: Mapping[TopicPartition, int]
    """The next offset to read, in index bytes."""
    first_offsets: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    """Where the partitions begin that the previous offset does not have."""
    partial: bool = False
    """Whether there may have been other partitions of these topics."""
    marks: tuple[Mark, ...] = ()
    """Records before these offsets, at most one of a partition."""
    replaced: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    """Where the partitions begin whose logs are not those that the previous offset is of."""

    def __post_init__(self) -> None:
        for offsets in (self.next_offsets, self.first_offsets, self.replaced):
            for partition, offset in offsets.items():
                require_aligned(offset, partition)

    def to_json(self) -> dict[str, Any]:
        """Return the one JSON form; equal offsets give equal text, in any order of their maps."""
        version = FORMAT_VERSION if self.marks or self.replaced else FIRST_VERSION
        data: dict[str, Any] = {VERSION_KEY: version, "topics": write_offsets(self.next_offsets)}
        if self.first_offsets:
            data["from"] = write_offsets(self.first_offsets)
        if self.partial:
            data["partial"] = True
        if self.marks:
            data["marks"] = write_marks(self.marks)
        if self.replaced:
            data["replaced"] = write_offsets(self.replaced)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SourceOffset":
        """Read the end of a planned batch, which is never a token."""
        return _source_offset(data, _checked(data))


StreamOffset = StartToken | SourceOffset


def read_stream_offset(data: Mapping[str, Any]) -> StreamOffset:
    """Read the start of a batch, which is a token before the first batch."""
    reader = _checked(data)
    if "start" in data:
        reader.fields(data, (VERSION_KEY, "start"))
        return StartToken(read_offset_spec(data["start"], reader))
    return _source_offset(data, reader)


def start_of(partition: TopicPartition, start: StreamOffset, end: SourceOffset) -> int:
    """Return where a partition of ``end`` begins in the batch from ``start`` to ``end``, in index bytes."""
    known = start.next_offsets.get(partition, end.first_offsets.get(partition))
    beginning = end.replaced.get(partition, known)
    if beginning is None:
        _reader(end.to_json()).fail(f"it does not say where {partition} begins")
    return beginning


def _reader(data: Mapping[str, Any]) -> OffsetReader:
    return OffsetReader(_SOURCE, data, _ADVICE)


def _checked(data: Mapping[str, Any]) -> OffsetReader:
    """Return the reader of an offset's fields, if this release knows its version."""
    reader = _reader(data)
    if VERSION_KEY not in data:
        reader.fail(f"the field {VERSION_KEY!r} is missing")
    reader.check_version(data)
    return reader


def _source_offset(data: Mapping[str, Any], reader: OffsetReader) -> SourceOffset:
    reader.checkpoint_fields(data)
    next_offsets = reader.offsets(data["topics"])
    first_offsets = reader.offsets(data.get("from", {}))
    marks = read_marks(data.get("marks", {}), reader)
    replaced = reader.offsets(data.get("replaced", {}))
    marked = [mark.partition for mark in marks]
    for key, partitions in (("from", first_offsets), ("marks", marked), ("replaced", replaced)):
        strangers = sorted(set(partitions) - next_offsets.keys())
        if strangers:
            reader.fail(f"{strangers[0]} is in {key!r} but not in 'topics'")
    partial = data.get("partial", False)
    if not isinstance(partial, bool):
        reader.fail(f"the value of 'partial' is {partial!r}, neither true nor false")
    return SourceOffset(next_offsets, first_offsets, partial, marks, replaced)


_BROKERS: Final = "brokers"
_AWAY: Final = "away"
_OUTAGES: Final = "outages"


@dataclasses.dataclass(frozen=True, slots=True)
class ReportedEnd:
    """Where topics end as far as is known, and which brokers are away."""

    latest: Mapping[TopicPartition, int]
    """Where what may be read ends, in index bytes."""
    away: Collection[int] = ()
    """The ids of brokers whose stores wait, because they do not answer or have no free reader group."""
    outages: int = 0
    """How often a broker went, since the query began to run."""

    def to_json(self) -> dict[str, Any]:
        """Return the one JSON form."""
        data = SourceOffset(self.latest).to_json()
        if self.outages:
            data[_BROKERS] = {_AWAY: sorted(self.away), _OUTAGES: self.outages}
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` returned."""
        brokers = data.get(_BROKERS)
        if not isinstance(brokers, dict):
            return cls(SourceOffset.from_json(data).next_offsets)
        offsets = {name: value for name, value in data.items() if name != _BROKERS}
        away, outages = brokers.get(_AWAY), brokers.get(_OUTAGES)
        return cls(
            SourceOffset.from_json(offsets).next_offsets,
            tuple(one for one in away if isinstance(one, int)) if isinstance(away, list) else (),
            outages if isinstance(outages, int) else 0,
        )
