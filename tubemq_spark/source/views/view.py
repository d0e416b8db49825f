"""What a view consists of."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tubemq_spark.spark.columns import Column

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
