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
from typing import Any, Final

from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.notation import VERSION_KEY
from tubemq_spark.offsets.source_offset import SourceOffset, StreamOffset, read_stream_offset, start_of

_HEAD_LINES: Final = 2
_VERSIONS: Final = ("v1", "v2")
_NAMED: Final = re.compile(r"([^{}\"]*):(\{.*)", re.DOTALL)


class UnknownLogError(Exception):
    """A file is not such a log; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far one source of a stream has come."""

    reached: Mapping[TopicPartition, int]
    """Where the last finished micro-batch ended, in index bytes; where the first one begins before that."""
    planned: Mapping[TopicPartition, int]
    """Where the micro-batch ends that is under way; equal to ``reached`` if there is none."""
    partial: bool = False
    """See ``SourceOffset``."""


def read_log(text: str) -> dict[str, StreamOffset]:
    """Return where a micro-batch ends, by the source's name, or its number in the query; only of our sources.

    Raises:
        UnknownLogError: the text is not such a log.
        OffsetFormatError: an offset is damaged, or has a newer format version.
    """
    lines = text.split("\n")
    if lines[0].strip() not in _VERSIONS:
        raise UnknownLogError(f"which begins with {lines[0][:20]!r}, not with {' or '.join(_VERSIONS)}")
    ends = {}
    for number, line in enumerate(lines[_HEAD_LINES:]):
        named = _NAMED.fullmatch(line.strip())
        name, offset = (str(number), line) if named is None else (named[1], named[2])
        data = _ours(offset)
        if data is not None:
            ends[name] = read_stream_offset(data)
    return ends


def progress(
    before: Mapping[str, StreamOffset], last: Mapping[str, StreamOffset], *, finished: bool
) -> dict[str, Progress]:
    """Return how far each source has come.

    Args:
        before: the ends of the last micro-batch but one, as far as they are known.
        last: the ends of the last micro-batch.
        finished: whether that is finished.

    Raises:
        OffsetFormatError: the offsets do not say where a partition begins.
    """
    return {source: _progress(before.get(source), end, finished=finished) for source, end in last.items()}


def _progress(before: StreamOffset | None, end: StreamOffset, *, finished: bool) -> Progress:
    if finished or not isinstance(end, SourceOffset):
        return Progress(end.next_offsets, end.next_offsets, end.partial)
    start = before or SourceOffset({})
    reached = {partition: start_of(partition, start, end) for partition in end.next_offsets}
    return Progress(reached, end.next_offsets, end.partial)


def _ours(line: str) -> dict[str, Any] | None:
    """Return the offset in a line if it is one of this source's; other sources have no such field."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) and VERSION_KEY in data else None
