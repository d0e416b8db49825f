"""What a user's schema may ask of the columns that a TubeMQ row has in Spark.

Spark prunes no columns for a Python source, so the user's schema is the projection: it may name any
of the columns in any order, and only those are decoded. Messages are read without
Spark, too, so it is imported where it is needed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from tubemq_spark.errors import OptionError
from tubemq_spark.options import PayloadFormat
from tubemq_spark.spark.columns import READ, UNPACKED, Column, name_beside, suggestion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def default_schema(*, include_attributes: bool, payload: PayloadFormat = PayloadFormat.RAW) -> "StructType":
    """Return the schema of a frame whose user gave none."""
    return schema_of(default_columns(include_attributes=include_attributes, payload=payload))


def schema_of(columns: Iterable[Column]) -> "StructType":
    """Return the schema with some columns; all fields nullable, as in Spark's Kafka source."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(column.name, column.type, nullable=True) for column in columns])


def arrow_schema(schema: "StructType") -> pa.Schema:
    """Return Spark's own Arrow schema: it compares the first batch of a task with it for equality."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def check_schema(schema: "StructType", columns: Mapping[str, Column] = READ) -> None:
    """Refuse a user's schema that names unknown columns, or known ones with another type."""
    if not schema.fields:
        raise OptionError("TUBEMQ_SCHEMA_EMPTY", known=", ".join(columns))
    for field in schema.fields:
        column = columns.get(field.name)
        if column is None:
            raise unknown_column(field.name, columns)
        # A map's "values may be null" flag is the only part of our types that a DDL string can vary.
        if field.dataType.simpleString() != column.type.simpleString():
            raise OptionError(
                "TUBEMQ_SCHEMA_WRONG_TYPE",
                column=field.name,
                given=field.dataType.simpleString(),
                expected=name_beside(field.dataType, column.type_name),
            )
        if column.nullable and not field.nullable:
            raise OptionError("TUBEMQ_SCHEMA_NOT_NULL", column=field.name)


def message_columns(payload: PayloadFormat) -> Mapping[str, Column]:
    """Return the columns of messages, whose bodies may be unpacked."""
    return UNPACKED if payload is PayloadFormat.INLONG else READ


def default_columns(*, include_attributes: bool, payload: PayloadFormat) -> Iterator[Column]:
    """Yield the columns of a read whose user named none."""
    optional = {"attributes"} if include_attributes else ()
    return (
        column for column in message_columns(payload).values() if column.by_default or column.name in optional
    )


def unknown_column(name: str, columns: Mapping[str, Column]) -> OptionError:
    """Return the error about a column that is none of these; it names them, and the nearest."""
    return OptionError(
        "TUBEMQ_SCHEMA_UNKNOWN_COLUMN",
        column=name,
        suggestion=suggestion(name, columns),
        known=", ".join(f"{column.name} {column.type_name}" for column in columns.values()),
    )
