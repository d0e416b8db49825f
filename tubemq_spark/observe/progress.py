"""What a progress event of Spark says about sources of TubeMQ."""

import dataclasses
import datetime
import json
from collections.abc import Mapping
from typing import Protocol

from tubemq_spark.errors import OffsetFormatError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.source_offset import SourceOffset


class SourceProgress(Protocol):
    """The part of Spark's ``SourceProgress`` that is used."""

    @property
    def endOffset(self) -> object:  # noqa: N802
        """Where the micro-batch ended."""

    @property
    def latestOffset(self) -> object:  # noqa: N802
        """Where the source ended."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceOffsets:
    """How far one source was read, and where it ends, in index bytes."""

    positions: Mapping[TopicPartition, int]
    latest: Mapping[TopicPartition, int]


def source_offsets(source: SourceProgress) -> SourceOffsets | None:
    """Return the offsets of a source.

    Returns:
        None for a source of another kind, and for one of which nothing was read yet: its offset is null, or
        the beginning that is not resolved.
    """
    positions, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    return None if positions is None or latest is None else SourceOffsets(positions, latest)


def moment(timestamp: str) -> float:
    """Return a progress's timestamp, which is when its trigger began, in seconds since 1970."""
    return datetime.datetime.fromisoformat(timestamp).timestamp()


def _offsets(text: object) -> Mapping[TopicPartition, int] | None:
    try:
        data = json.loads(text) if isinstance(text, str) else None
        return SourceOffset.from_json(data).next_offsets if isinstance(data, dict) else None
    except (ValueError, RecursionError, OffsetFormatError):
        return None
