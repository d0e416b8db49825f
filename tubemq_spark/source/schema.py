"""What a user's schema may ask of the columns that a TubeMQ row has in Spark.

Spark prunes no columns for a Python source, so the user's schema is the projection: it may name any
of the columns in any order, and only those are decoded.
"""

from pyspark.sql.types import DataType, StructField, StructType

from tubemq_spark.columns import READ, UNPACKED, Column, suggestion
from tubemq_spark.errors import OptionError
from tubemq_spark.options import PayloadFormat


def default_schema(*, include_attributes: bool, payload: PayloadFormat = PayloadFormat.RAW) -> StructType:
    """Return the schema of a frame whose user gave none; all fields nullable, as in Spark's Kafka source."""
    return StructType(
        [
            StructField(column.name, column.type, nullable=True)
            for column in _columns(payload).values()
            if include_attributes or column.by_default
        ]
    )


def check_schema(schema: StructType, payload: PayloadFormat = PayloadFormat.RAW) -> None:
    """Refuse a user's schema that names unknown columns, or known ones with another type.

    Raises:
        OptionError: the column and what it may be.
    """
    columns = _columns(payload)
    if not schema.fields:
        raise OptionError("TUBEMQ_SCHEMA_EMPTY", known=", ".join(columns))
    for field in schema.fields:
        column = columns.get(field.name)
        if column is None:
            raise OptionError(
                "TUBEMQ_SCHEMA_UNKNOWN_COLUMN",
                column=field.name,
                suggestion=suggestion(field.name, columns),
                known=", ".join(f"{known.name} {known.type.simpleString()}" for known in columns.values()),
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


def _columns(payload: PayloadFormat) -> dict[str, Column]:
    return UNPACKED if payload is PayloadFormat.INLONG else READ


def _same_type(given: DataType, expected: DataType) -> bool:
    # A map's "values may be null" flag is the only part of our types a DDL string can vary.
    return given.simpleString() == expected.simpleString()
