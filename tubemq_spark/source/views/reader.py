"""The reader of every view: ``spark.read.format("tubemq").option("view", ...)``."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tubemq_spark.options import LossesOptions, ReceiptsOptions, ViewName, ViewOptions
from tubemq_spark.source.schema import arrow_schema, check_schema, schema_of
from tubemq_spark.source.views import ViewSpec, files, lag, places
from tubemq_spark.spark.edge import at_sparks_edge

VIEWS: Final[Mapping[ViewName, ViewSpec]] = {
    ViewName.PARTITIONS: ViewSpec(places.PARTITIONS, places.partition_rows),
    ViewName.LAG: ViewSpec(lag.COLUMNS, lag.rows),
    ViewName.GROUPS: ViewSpec(places.GROUPS, places.group_rows),
    ViewName.LOSSES: ViewSpec(files.LOSSES, files.loss_rows),
    ViewName.RECEIPTS: ViewSpec(files.RECEIPTS, files.receipt_rows),
}
"""A new view is an entry here, a member of ``options.ViewName``, and its columns and rows."""


def view_schema(view: ViewName) -> StructType:
    """Return all columns of a view, for a user who gave no schema."""
    return schema_of(VIEWS[view].columns)


@dataclasses.dataclass(init=False)
class RowsPartition(InputPartition):
    """The one task of a view, which hands over rows that the driver has made."""

    rows: tuple[tuple[Any, ...], ...]
    """Values in the schema's order; at least one row."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = tuple(rows)


@at_sparks_edge
class ViewReader(DataSourceReader):
    """Holds values only: Spark pickles it to every task.

    A frame is a snapshot: Spark asks for its partitions once, at the first action.
    """

    def __init__(
        self, schema: StructType, view: ViewName, options: ViewOptions | LossesOptions | ReceiptsOptions
    ) -> None:
        """Take the user's schema, which may name any of the view's columns in any order."""
        check_schema(schema, VIEWS[view].by_name)
        self._schema = schema
        self._view = view
        if isinstance(options, ViewOptions):
            options = dataclasses.replace(options, columns=frozenset(schema.names))
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Make the rows (driver)."""
        names = self._schema.names
        rows = [tuple(map(row.get, names)) for row in VIEWS[self._view].rows(self._options)]
        return [RowsPartition(rows)] if rows else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand the rows over (executor); the bare value that Spark sends for no partition has none."""
        if isinstance(partition, RowsPartition):
            schema = arrow_schema(self._schema)
            columns = zip(*partition.rows, strict=True)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
