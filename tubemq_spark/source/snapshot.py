"""What a cluster held at one moment."""

import dataclasses
from collections.abc import Mapping

from tubemq_spark.model import OffsetBounds, StoreId, TopicsLayout
from tubemq_spark.source.visibility import VisibleBounds


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What the cluster held at one moment; the same object as long as nothing has changed."""

    layout: TopicsLayout
    bounds: Mapping[StoreId, OffsetBounds]
    """Of the stores whose brokers answered."""
    ends: Mapping[StoreId, int]
    """Where what may be read ends in these stores, in index bytes, see ``source.visibility``."""
    partial: bool
    """Whether there may be other partitions: the layout was asked for before the bounds."""

    def is_unchanged(self, answer: VisibleBounds, layout: TopicsLayout) -> bool:
        """Tell whether newer answers say the same."""
        return (
            answer.bounds.by_store == self.bounds
            and answer.ends == self.ends
            and layout.partitions == self.layout.partitions
        )
