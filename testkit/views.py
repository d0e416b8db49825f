"""Reading views as Spark does, without a JVM of Spark."""

import pickle
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.options import ViewName
from tubemq_spark.source.views.reader import VIEWS

Row = dict[str, Any]


def read_view(options: Mapping[str, str], schema: StructType | None = None) -> list[Row]:
    """Return the rows of a view, from a reader that was made and copied as Spark does.

    No row may lack a column that a user's schema may declare as never null.
    """
    source = TubeMQDataSource({key.lower(): value for key, value in options.items()})
    reader = source.reader(source.schema() if schema is None else schema)
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    copied = pickle.loads(pickle.dumps(reader))
    rows = [row for part in planned for batch in copied.read(part) for row in batch.to_pylist()]
    columns = VIEWS[ViewName(options["view"])].columns
    promised = {column.name for column in columns if not column.nullable}
    assert not [row for row in rows if any(row[name] is None for name in promised & row.keys())]
    return rows
