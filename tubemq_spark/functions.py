"""Functions for DataFrames and SQL: ``parse_inlong_msg`` unpacks what InLong's data proxies packed.

They are Arrow UDFs: whole batches go from Spark to a Python worker and back, without one Python object per
row. They work in batches, in streams, in SQL and through Spark Connect. This package must be installed where
the tasks run.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, StructField, StructType

from tubemq_spark.errors import InLongMsgError, OptionError
from tubemq_spark.options import ParseMode
from tubemq_spark.options.table import NAMED
from tubemq_spark.source.inlong import ATTRIBUTES, TIME, Unpacked, unpack_bodies
from tubemq_spark.spark.columns import UNPACKED

if TYPE_CHECKING:
    from pyspark.sql._typing import ColumnOrName

__all__ = ["parse_inlong_msg", "register_functions"]

_COLUMNS: Final = {
    "value": pa.binary(),
    "inlongAttributes": ATTRIBUTES,
    "inlongTime": TIME,
    "inlongIndex": pa.int32(),
    "_corrupt_record": pa.binary(),
}
"""The fields of a message, as ``payload=inlong`` names the columns."""
_RETURNS: Final = ArrayType(StructType([StructField(name, UNPACKED[name].type) for name in _COLUMNS]))
_LARGEST_ARRAY: Final = 2**31 - 1


def parse_inlong_msg(value: "ColumnOrName", mode: str = ParseMode.PERMISSIVE.value) -> Column:
    """Unpack bodies that are InLongMsgs, versions 0 to 4: ``select(inline(parse_inlong_msg("value")))``.

        frame.select("topic", inline(parse_inlong_msg("value", "DROPMALFORMED")))

    Args:
        value: a binary column, such as ``value`` of a read from TubeMQ.
        mode: what becomes of a malformed body, in Spark's words. ``PERMISSIVE``: one message of nulls, with
            the body in ``_corrupt_record``. ``DROPMALFORMED``: no message. ``FAILFAST``: the query fails.

    Returns:
        The messages of each body, ``array<struct<value binary, inlongAttributes map<string,string>,
        inlongTime timestamp, inlongIndex int, _corrupt_record binary>>``; null where the body is null.

    Raises:
        OptionError: there is no such mode.
        InLongMsgError: in the query: a body is malformed, and the mode is ``FAILFAST``.
    """
    return _function(NAMED["mode"].read(mode))(value)


def register_functions(spark: SparkSession) -> None:
    """Make the functions of this module known to SQL in a session, each by its name.

    The mode of ``parse_inlong_msg(value)`` is ``PERMISSIVE``; ``parse_inlong_msg(value, 'FAILFAST')`` names
    another.

        register_functions(spark)
        spark.sql("SELECT topic, inline(parse_inlong_msg(value)) FROM clicks")
    """
    spark.udf.register("parse_inlong_msg", _arrow_udf(_parse_in_sql))


def _function(mode: ParseMode) -> Callable[["ColumnOrName"], Column]:
    """Return the function of a mode."""

    def parse_inlong_msg(value: pa.Array) -> pa.Array:
        return _parse(value, mode)

    return _arrow_udf(parse_inlong_msg)


def _arrow_udf(function: Callable[..., pa.Array]) -> Callable[["ColumnOrName"], Column]:
    """Return a UDF for the present kind of session, classic or Connect."""
    # PySpark's types do not let it return arrays, but it does.
    return cast("Callable[..., Callable[[ColumnOrName], Column]]", arrow_udf)(function, _RETURNS)


def _parse_in_sql(value: pa.Array, mode: pa.Array = None) -> pa.Array:
    """Parse in the mode that the second argument names, which is the same for all rows."""
    if mode is None or not len(mode):
        return _parse(value, ParseMode.PERMISSIVE)
    modes = mode.unique().to_pylist()
    if len(modes) != 1 or modes[0] is None:
        raise OptionError("TUBEMQ_OPTION_VALUE", option="mode", value=modes, expected="the same in all rows")
    return _parse(value, NAMED["mode"].read(modes[0]))


def _parse(bodies: pa.Array, mode: ParseMode) -> pa.Array:
    """Return for each body the list of its messages."""
    if bodies.type != pa.binary():
        bodies = bodies.cast(pa.binary())
    parts: list[Unpacked] = []
    size = 0
    for part in unpack_bodies(bodies, mode, _ignore_malformed):
        size += part.nbytes
        if size > _LARGEST_ARRAY:
            raise InLongMsgError("TUBEMQ_INLONG_TOO_MUCH", count=len(bodies))
        parts.append(part)
    counts = np.zeros(len(bodies), np.int64)
    for part in parts:
        counts += np.bincount(part.body, minlength=len(bodies))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    fields = [
        pa.concat_arrays([part.columns[name]() for part in parts]) if parts else pa.array([], kind)
        for name, kind in _COLUMNS.items()
    ]
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        pa.StructArray.from_arrays(fields, list(_COLUMNS)),
        mask=bodies.is_null() if bodies.null_count else None,
    )


def _ignore_malformed(number: int, error: InLongMsgError) -> None:
    """Do nothing about a malformed body: the mode says what becomes of it."""
