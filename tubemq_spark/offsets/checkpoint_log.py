"""How far a stream has come, as Spark's log of offsets in its checkpoint says.

Spark writes a file per micro-batch below ``offsets`` in the checkpoint before it runs it, and one of the same
name below ``commits`` when it has finished it. A file of offsets has a line with the version of its format, a
line with Spark's settings, and a line per source with the offset at which the micro-batch ends, ``-`` if the
source has none yet. In version 1 the sources come in their order in the query, in version 2 each line begins
with the source's name and a colon (Spark's ``OffsetSeqLog``).
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Self

from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.marks import Mark
from tubemq_spark.offsets.notation import VERSION_KEY
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, read_stream_offset, start_of

_WITH_NAMES: Final = "v2"
_VERSIONS: Final = ("v1", _WITH_NAMES)
_NAMED: Final = re.compile(r"([^{}\":]*):(.*)", re.DOTALL)


class UnknownLogError(Exception):
    """A file is not a log of offsets that this release reads; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far one source of a stream has come."""

    reached: Mapping[TopicPartition, int]
    """Where the last finished micro-batch ended, in index bytes; where the first one begins before that."""
    planned: Mapping[TopicPartition, int]
    """Where the micro-batch ends that is under way; equal to ``reached`` if there is none."""
    partial: bool = False
    """See ``SourceOffset``."""
    marks: tuple[Mark, ...] = ()
    """Those of where it is planned to end."""


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetLog:
    """One file of offsets: where a micro-batch ends."""

    version: str
    """That of the format."""
    settings: Mapping[str, Any]
    """What Spark keeps with it: the watermark, the time of planning, and settings of the session."""
    ends: Mapping[str, str]
    """The offset of each source as Spark wrote it, by the source's name, or its number in the query."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a file."""
        version, *lines = text.rstrip("\n").split("\n")
        if version.strip() not in _VERSIONS:
            raise UnknownLogError(f"which begins with {version[:20]!r}, not with {' or '.join(_VERSIONS)}")
        settings = _object(lines[0]) if lines and lines[0].strip() else {}
        if settings is None:
            raise UnknownLogError(f"whose second line is {lines[0][:20]!r}, not Spark's settings as JSON")
        ends = {}
        for number, line in enumerate(lines[1:]):
            named = _NAMED.fullmatch(line.strip()) if version.strip() == _WITH_NAMES else None
            name, offset = (str(number), line) if named is None else (named[1], named[2])
            ends[name] = offset
        return cls(version.strip(), settings, ends)

    @property
    def text(self) -> str:
        """The file, as Spark reads it."""
        with_names = self.version == _WITH_NAMES
        lines = [f"{name}:{end}" if with_names else end for name, end in self.ends.items()]
        return "\n".join((self.version, json.dumps(self.settings, separators=(",", ":")), *lines))

    @property
    def planned_ms(self) -> int | None:
        """When it was planned, in ms since 1970 in UTC; None if Spark does not say."""
        time = self.settings.get("batchTimestampMs")
        return time if isinstance(time, int) and time > 0 else None

    def of_ours(self) -> dict[str, StreamOffset]:
        """Return where it ends for the sources that read from TubeMQ."""
        offsets = {name: _object(end) for name, end in self.ends.items()}
        return {
            name: read_stream_offset(data)
            for name, data in offsets.items()
            if data is not None and VERSION_KEY in data  # other sources have no such field
        }

    def without_watermark(self, time_ms: int) -> "OffsetLog":
        """Return the same for a query that has seen no event time, as if planned at this time."""
        fresh = {"batchWatermarkMs": 0, "batchTimestampMs": time_ms}
        return dataclasses.replace(self, settings={**self.settings, **fresh})


def progress(
    before: Mapping[str, StreamOffset], last: Mapping[str, StreamOffset], *, finished: bool
) -> dict[str, Progress]:
    """Return how far each source has come."""
    return {source: _progress(before.get(source), end, finished=finished) for source, end in last.items()}


def _progress(before: StreamOffset | None, end: StreamOffset, *, finished: bool) -> Progress:
    if not isinstance(end, SourceOffset):
        return Progress(end.next_offsets, end.next_offsets, end.partial)
    if finished:
        return Progress(end.next_offsets, end.next_offsets, end.partial, end.marks)
    start = before or SourceOffset({})
    reached = {partition: start_of(partition, start, end) for partition in end.next_offsets}
    return Progress(reached, end.next_offsets, end.partial, end.marks)


def _object(line: str) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if it is something else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
