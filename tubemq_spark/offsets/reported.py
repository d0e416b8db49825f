"""What a stream tells with Spark's progress: where its topics end, and how its brokers are.

Spark shows the text as ``latestOffset`` of the source and keeps it nowhere, so it may say more than an
offset of a checkpoint. A listener reads it. That may be one of an older release, so what is new is left
out while there is nothing to tell::

    {"v":1,"topics":{"demo":{"1:0":280}},"brokers":{"away":[2],"outages":3}}
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Final, Self

from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.source_offset import SourceOffset

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
