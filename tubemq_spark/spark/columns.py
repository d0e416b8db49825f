"""The columns of a frame that is read from TubeMQ or written to it: the one table of them.

A new column is one entry here. To be read, it needs a function in ``source/arrow.py`` that builds it, or in
``source/inlong.py`` if it differs among the messages in a body. To be written, it has to be taken from the
frame in ``sink/columns.py``, and needs a place in the messages of ``protocol/send_batch.py``. The page
docs/reference/columns.md is written from this table (``make docs``). It needs no Spark: messages are read as
Arrow without it too.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.settings.kinds import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What a write takes of a column."""

    expected: str
    """The types that it may have, as SQL names them, with "or" between them."""
    meaning: str

    def accepts(self, data_type: "DataType") -> bool:
        """Tell whether a frame's column may have this type."""
        from pyspark.sql.types import CharType, MapType, StringType, VarcharType

        # Texts of any collation and length: all of them are UTF-8 in Arrow.
        texts = (StringType, VarcharType, CharType)
        parts = (data_type.keyType, data_type.valueType) if isinstance(data_type, MapType) else ()
        return all(isinstance(part, texts) for part in parts) and any(
            isinstance(data_type, texts if name == "string" else type(_types()[name]))
            for name in self.expected.split(" or ")
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One column, as it is read and as it is written."""

    name: str
    type_name: str
    """Its type in what is read, as SQL names it."""
    read: str = ""
    """What a read puts there; blank: reads do not have this column."""
    nullable: bool = False
    """Whether a row that is read may lack it."""
    by_default: bool = True
    """Whether a frame without a schema of the user's has it."""
    unpacked: str = ""
    """What a read of unpacked bodies (``payload=inlong``) puts there, if that is something else."""
    written: Written | None = None
    """None: a write does not use it. What a read has, a write takes and leaves aside."""

    @property
    def type(self) -> "DataType":
        """Spark's type of it in a frame that is read."""
        return _types()[self.type_name]


@functools.cache
def _types() -> "Mapping[str, DataType]":
    """Return Spark's types of columns, by the names that SQL has for them."""
    from pyspark.sql import types

    return {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType(), valueContainsNull=True),
    }


TABLE: Final = (
    Column(
        "value",
        "binary",
        read="The message's body.",
        unpacked="The bytes of one message in the body. Null in the row of a malformed body.",
        written=Written("string or binary", "The message's body; the only column that is required."),
    ),
    Column(
        "topic",
        "string",
        read="The topic's name.",
        written=Written("string", "The topic, in a write without the option `topic`."),
    ),
    Column(
        "brokerId",
        "int",
        read="The id of the broker that has the message.",
        written=Written("int", "With `partition`: the partition to write to."),
    ),
    Column(
        "partition",
        "int",
        read="The partition's number on that broker, as TubeMQ numbers partitions: store * 10000 + index.",
        written=Written("int", "With `brokerId`: the partition to write to."),
    ),
    Column(
        "offset",
        "bigint",
        read="The exact offset (TubeMQ counts 28 per message). Null where several partitions share a store: "
        "there the protocol gives the offset of a batch, not of each message.",
        nullable=True,
    ),
    Column(
        "messageId",
        "bigint",
        read="The broker's id of the message: unique within a store only over short periods; it says nothing "
        "about time or order.",
    ),
    Column(
        "timestamp",
        "timestamp",
        read="The message time that the producer set, to the minute, read in `messageTimeZone`. Null where "
        "it set none, [the first of two](../spark/reading.md#time-zones) where a zone repeats an hour.",
        nullable=True,
        written=Written(
            "timestamp",
            "The message time, cut to the minute, written in `messageTimeZone`. [One that would be read as "
            "an earlier one](../spark/reading.md#time-zones) is refused.",
        ),
    ),
    Column(
        "messageType",
        "string",
        read="The message type, by which consumers can filter. Null where it has none.",
        nullable=True,
        written=Written("string", "The message type."),
    ),
    Column(
        "attributes",
        "map<string,string>",
        read="All attributes of the message, TubeMQ's own among them. Only with `includeAttributes`, or when "
        "the schema names it.",
        nullable=True,
        by_default=False,
        written=Written(
            "map<string,string>",
            "The message's attributes. Names and values hold neither `,` nor `=` nor a name that TubeMQ "
            "reserves; but `$msgType$` and `$msgTime$`, which a frame has that was read with its attributes, "
            "are the message's type and time, unless a column of their own says them. What other producers "
            "wrote otherwise than TubeMQ's own clients (blank values, blanks around a type, times with "
            "seconds) is written as it was read.",
        ),
    ),
    Column(
        MESSAGE_UID_KEY,
        "string",
        read="The id by which repeats of the message are recognised, if its producer stamped one. Only when "
        "the schema names it.",
        nullable=True,
        by_default=False,
        written=Written(
            "string",
            "The message's id, by which readers recognise repeats. It takes precedence over the id that "
            "`stampMessageUid` gives.",
        ),
    ),
    Column(
        "inlongAttributes",
        "map<string,string>",
        nullable=True,
        unpacked="The attributes that InLong gave the message. Null in the row of a malformed body.",
    ),
    Column(
        "inlongTime",
        "timestamp",
        nullable=True,
        unpacked="The time in the body: when it was packed (versions 1 to 3), or that of its data (4). Null "
        "where there is none.",
    ),
    Column(
        "inlongIndex",
        "int",
        unpacked="The number of the row among those of its body, from 0 on.",
    ),
    Column(
        "_corrupt_record",
        "binary",
        nullable=True,
        unpacked="The whole body, if it is malformed and the mode is PERMISSIVE. Null in all other rows.",
    ),
    Column(
        "key",
        "binary",
        written=Written(
            "string or binary",
            "Rows with equal keys go to the same partition. The key is not stored. Rows with neither key nor "
            "partition go to all partitions in turn, up to 32 rows at a time.",
        ),
    ),
)
"""Every column, in the order a frame has them."""

READ: Final = {column.name: column for column in TABLE if column.read}
"""What a read can have."""
UNPACKED: Final = {
    column.name: dataclasses.replace(column, nullable=column.nullable or column.name == "value")
    for column in TABLE
    if column.read or column.unpacked
}
"""What a read of unpacked bodies can have."""
WRITTEN: Final = {column.name: column.written for column in TABLE if column.written is not None}
"""What a write uses."""
ORIGIN: Final = frozenset(UNPACKED) - frozenset(WRITTEN)
"""What only says where a row was read: a frame that was read from TubeMQ can be written back."""


def suggestion(name: str, columns: Iterable[str]) -> str:
    """Return how an error about an unknown column ends: with the column that was meant, if one is close."""
    closest = did_you_mean(name, columns)
    return f"; {closest}" if closest else "."


def name_beside(used: "DataType", name: str) -> str:
    """Return how to name a type to a user who has given another one.

    ``timestamp`` is ``timestamp_ntz`` where ``spark.sql.timestampType`` says so.
    """
    from pyspark.sql.types import TimestampNTZType

    return name.replace("timestamp", "timestamp_ltz") if isinstance(used, TimestampNTZType) else name
