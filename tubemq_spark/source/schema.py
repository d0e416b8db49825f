"""What a user's schema may ask of the columns that a TubeMQ row has in Spark.

Spark prunes no columns for a Python source, so the user's schema is the projection: it may name any
of the columns in any order, and only those are decoded.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from tubemq_spark.errors import OptionError
from tubemq_spark.options import PayloadFormat
from tubemq_spark.source.columns import default_columns, unknown_column
from tubemq_spark.spark.columns import READ, Column
from tubemq_spark.spark.types import name_beside


def default_schema(*, include_attributes: bool, payload: PayloadFormat = PayloadFormat.RAW) -> StructType:
    """Return the schema of a frame whose user gave none."""
    return schema_of(default_columns(include_attributes=include_attributes, payload=payload))


def schema_of(columns: Iterable[Column]) -> StructType:
    """Return the schema with some columns; all fields nullable, as in Spark's Kafka source."""
    return StructType([StructField(column.name, column.type, nullable=True) for column in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Spark's own Arrow schema: it compares the first batch of a task with it for equality."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def check_schema(schema: StructType, columns: Mapping[str, Column] = READ) -> None:
    """Refuse a user's schema that names unknown columns, or known ones with another type."""
    if not schema.fields:
        raise OptionError("TUBEMQ_SCHEMA_EMPTY", known=", ".join(columns))
    for field in schema.fields:
        column = columns.get(field.name)
        if column is None:
            raise unknown_column(field.name, columns)
        if not _same_type(field.dataType, column.type):
            raise OptionError(
                "TUBEMQ_SCHEMA_WRONG_TYPE",
                column=field.name,
                given=field.dataType.simpleString(),
                expected=name_beside(field.dataType, column.type_name),
            )
        if column.nullable and not field.nullable:
            raise OptionError("TUBEMQ_SCHEMA_NOT_NULL", column=field.name)


def _same_type(actual: DataType, expected: DataType) -> bool:
    # A map's "values may be null" flag is the only part of our types a DDL string can vary.
    return actual.simpleString() == expected.simpleString()
