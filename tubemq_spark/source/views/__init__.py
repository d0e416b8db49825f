"""Views: what a batch read returns besides messages, by option ``view``.

A view is its columns and a function that makes its rows; ``reader.py`` lists all of them. The driver makes
the rows, when Spark plans the read: only it is sure to reach a checkpoint's directory and the web servers.

What cannot be known now, such as the end of a store whose broker is away, is null, and not an error.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from tubemq_spark.model import TopicPartition
from tubemq_spark.spark.columns import Column

PARTITION: Final = (
    Column("topic", "string", read="The topic's name."),
    Column("brokerId", "int", read="The broker's id."),
    Column("partition", "int", read="The partition's number: store * 10000 + index."),
)
"""The columns that name a partition."""

Row: TypeAlias = Mapping[str, Any]
"""Values by the column's name; a column that is missing is null."""


@dataclasses.dataclass(frozen=True, slots=True)
class ViewSpec:
    """One view."""

    columns: tuple[Column, ...]
    """All its columns, in the order a frame has them."""
    rows: Callable[[Any], Iterable[Row]]
    """Make the rows, now, of the options that ``OptionSet.for_view`` returns for it; called in the driver."""

    @property
    def by_name(self) -> dict[str, Column]:
        """Its columns by their names."""
        return {column.name: column for column in self.columns}


def named(partition: TopicPartition) -> Row:
    """Return the columns ``PARTITION``."""
    return {
        "topic": partition.topic,
        "brokerId": partition.broker_id,
        "partition": partition.partition_id,
    }
