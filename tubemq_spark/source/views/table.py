"""The one table of views: a new one is an entry here, a member of ``options.View`` and its columns."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructType

from tubemq_spark.options import View
from tubemq_spark.source.schema import schema_of
from tubemq_spark.source.views import groups, lag, losses, partitions, receipts
from tubemq_spark.source.views.view import ViewSpec

VIEWS: Final[Mapping[View, ViewSpec]] = {
    View.PARTITIONS: ViewSpec(partitions.COLUMNS, partitions.rows),
    View.LAG: ViewSpec(lag.COLUMNS, lag.rows),
    View.GROUPS: ViewSpec(groups.COLUMNS, groups.rows),
    View.LOSSES: ViewSpec(losses.COLUMNS, losses.rows),
    View.RECEIPTS: ViewSpec(receipts.COLUMNS, receipts.rows),
}


def view_schema(view: View) -> StructType:
    """Return all columns of a view, for a user who gave no schema."""
    return schema_of(VIEWS[view].columns)
