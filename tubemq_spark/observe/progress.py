"""What a progress event of Spark says about sources of TubeMQ."""

import dataclasses
import datetime
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, Row, functions

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.source_offset import ReportedEnd, SourceOffset, StreamOffset, read_stream_offset

_BYTES_OBSERVATION: Final = "tubemq.bytes."
"""How the names of observations begin that count bytes."""
_BYTES: Final = "bytes"


class SourceProgress(Protocol):
    """The part of Spark's ``SourceProgress`` that is used."""

    @property
    def startOffset(self) -> object:  # noqa: N802
        """Where the micro-batch began."""

    @property
    def endOffset(self) -> object:  # noqa: N802
        """Where the micro-batch ended."""

    @property
    def latestOffset(self) -> object:  # noqa: N802
        """Where the source ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceOffsets:
    """How far one source was read, and where it ends, in index bytes; and its brokers."""

    begins: Mapping[TopicPartition, int]
    """Where the micro-batch began."""
    positions: Mapping[TopicPartition, int]
    """Where it ended."""
    end: ReportedEnd


def source_offsets(source: SourceProgress) -> SourceOffsets | None:
    """Return the offsets of a source; None for one of another kind, or of which nothing was read yet."""
    try:
        end = SourceOffset.from_json(_object(source.endOffset))
        reported = ReportedEnd.from_json(_object(source.latestOffset))
        start = _start(source.startOffset)
    except (ValueError, RecursionError, OffsetFormatError):
        return None
    known = {**end.first_offsets, **start.next_offsets, **({} if start == end else end.replaced)}
    begins = {partition: known.get(partition, position) for partition, position in end.next_offsets.items()}
    return SourceOffsets(begins, end.next_offsets, reported)


def moment(timestamp: str) -> float:
    """Return a progress's timestamp, which is when its trigger began, in seconds since 1970."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def with_bytes(frame: DataFrame, column: str = "value") -> DataFrame:
    """Return a frame whose micro-batches tell a ``LagListener`` how many bytes a column of them had.

    Spark sums them up where the rows are, with ``DataFrame.observe``, so the column is read even if nothing
    else needs it.
    """
    size = functions.sum(functions.octet_length(column)).alias(_BYTES)
    return frame.observe(f"{_BYTES_OBSERVATION}{uuid.uuid4()}", size)


def observed_bytes(observed: Mapping[str, Row] | None) -> int | None:
    """Return how many bytes a micro-batch had by what ``with_bytes`` observed; None without that."""
    sums = [row[_BYTES] or 0 for name, row in (observed or {}).items() if name.startswith(_BYTES_OBSERVATION)]
    return sum(one for one in sums if isinstance(one, int)) if sums else None


def _object(text: object) -> dict[str, Any]:
    """Return the JSON object in a text."""
    data = json.loads(text) if isinstance(text, str) else None
    if not isinstance(data, dict):
        raise ValueError(f"not an object: {text!r}")
    return data


def _start(text: object) -> StreamOffset:
    """Return where a micro-batch starts: the first one of a query at nothing that Spark knows."""
    return SourceOffset({}) if text in {None, "null", "None"} else read_stream_offset(_object(text))
