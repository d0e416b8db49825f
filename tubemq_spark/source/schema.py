"""The columns a TubeMQ row has in Spark, and what a user's schema may ask of them.

Spark prunes no columns for a Python source, so the user's schema is the projection: it may name any
of the columns in any order, and only those are decoded.
"""

import dataclasses
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tubemq_spark.errors import OptionError
from tubemq_spark.suggest import did_you_mean


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column: its Spark type, and whether a row may lack it."""

    name: str
    type: DataType
    nullable: bool = False


COLUMNS: Final[dict[str, Column]] = {
    column.name: column
    for column in (
        Column("value", BinaryType()),
        Column("topic", StringType()),
        Column("brokerId", IntegerType()),
        Column("partition", IntegerType()),
        # The protocol tells a batch's offsets, not a message's: unknown where partitions share a store.
        Column("offset", LongType(), nullable=True),
        Column("messageId", LongType()),
        Column("timestamp", TimestampType(), nullable=True),
        Column("messageType", StringType(), nullable=True),
        Column("attributes", MapType(StringType(), StringType(), valueContainsNull=True), nullable=True),
    )
}
"""Every column by its name, in the order a frame without a user's schema has them."""


def default_schema(*, include_attributes: bool) -> StructType:
    """Return the schema of a frame whose user gave none; all fields nullable, as in Spark's Kafka source."""
    return StructType(
        [
            StructField(column.name, column.type, nullable=True)
            for column in COLUMNS.values()
            if include_attributes or column.name != "attributes"
        ]
    )


def check_schema(schema: StructType) -> None:
    """Refuse a user's schema that names unknown columns, or known ones with another type.

    Raises:
        OptionError: the column and what it may be.
    """
    if not schema.fields:
        raise OptionError("TUBEMQ_SCHEMA_EMPTY", known=", ".join(COLUMNS))
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            raise OptionError(
                "TUBEMQ_SCHEMA_UNKNOWN_COLUMN",
                column=field.name,
                suggestion=_suggestion(field.name),
                known=", ".join(f"{known.name} {known.type.simpleString()}" for known in COLUMNS.values()),
            )
        if not _same_type(field.dataType, column.type):
            raise OptionError(
                "TUBEMQ_SCHEMA_WRONG_TYPE",
                column=field.name,
                given=field.dataType.simpleString(),
                expected=column.type.simpleString(),
            )
        if column.nullable and not field.nullable:
            raise OptionError("TUBEMQ_SCHEMA_NOT_NULL", column=field.name)


def _same_type(given: DataType, expected: DataType) -> bool:
    # A map's "values may be null" flag is the only part of our types a DDL string can vary.
    return given.simpleString() == expected.simpleString()


def _suggestion(name: str) -> str:
    question = did_you_mean(name, COLUMNS)
    return f"; {question}" if question else "."
