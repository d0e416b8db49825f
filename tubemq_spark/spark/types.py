"""Spark's types of columns, by the names that SQL has for them."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    CharType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType(), valueContainsNull=True),
}
_TEXTS: Final = (StringType, VarcharType, CharType)
"""Texts of any collation and length: all of them are UTF-8 in Arrow."""


def fits(data_type: DataType, names: Iterable[str]) -> bool:
    """Tell whether a type is one of those named, of any collation, length and nullability."""
    parts = (data_type.keyType, data_type.valueType) if isinstance(data_type, MapType) else ()
    texts_inside = all(isinstance(part, _TEXTS) for part in parts)
    return texts_inside and any(
        isinstance(data_type, _TEXTS if name == "string" else type(TYPES[name])) for name in names
    )


def name_beside(used: DataType, name: str) -> str:
    """Return how to name a type to a user who has given another one.

    ``timestamp`` is ``timestamp_ntz`` where ``spark.sql.timestampType`` says so.
    """
    return name.replace("timestamp", "timestamp_ltz") if isinstance(used, TimestampNTZType) else name
