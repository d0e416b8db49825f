"""Which columns a read has, with Spark and without it."""

from collections.abc import Iterator, Mapping

from tubemq_spark.errors import OptionError
from tubemq_spark.options import PayloadFormat
from tubemq_spark.spark.columns import READ, UNPACKED, Column, suggestion


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
