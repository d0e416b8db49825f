"""Arrow's columns as a sender takes them: bytes one behind the other, and repeated values told once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.protocol.send_batch import Bools, BytesColumn, Coded, Int64s, Value

_MINUTE_US = 60_000_000


def constant(value: Value, rows: int) -> Coded[Value]:
    """Return a column of one value."""
    return Coded((value,), np.zeros(rows, np.int64))


def coded(column: pa.Array) -> Coded[Any]:
    """Return a column's values, each once and in the order of appearance; null is one of them."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return Coded(tuple(encoded.dictionary.to_pylist()), _codes(encoded))


def coded_maps(column: pa.MapArray) -> Coded[Any]:
    """Return a column's maps as lists of pairs; those equal in all pairs and their order are told once.

    Arrow cannot compare maps, but texts. A map's text is that of its codes, so no two maps share one; except
    that null and a map without pairs do.
    """
    pairs = pc.binary_join_element_wise(_code_texts(column.keys), _code_texts(column.items), ":")
    texts = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pairs), ",")
    codes = _codes(texts.dictionary_encode(null_encoding="encode"))
    _, first_rows = np.unique(codes, return_index=True)
    return Coded(tuple(column.take(pa.array(first_rows)).to_pylist()), codes)


def coded_minutes(column: pa.TimestampArray) -> Coded[Any]:
    """Return a column of timestamps as minutes since the epoch."""
    moments = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    microseconds = moments.fill_null(0).to_numpy()
    return coded(pa.array(microseconds // _MINUTE_US, mask=nulls(column)))


def combined(*columns: Coded[Any]) -> Coded[tuple[Any, ...]]:
    """Return the combinations of values that columns have, each once."""
    numbers: Int64s = np.zeros(len(columns[0].codes), np.int64)
    for column in columns:
        numbers = numbers * len(column.values) + column.codes
    _, first_rows, codes = np.unique(numbers, return_index=True, return_inverse=True)
    return Coded(tuple(tuple(column.value(row) for column in columns) for row in first_rows), codes)


def bytes_column(column: pa.Array) -> BytesColumn:
    """Return a column of texts or bytes as bytes: Spark's texts may hold bytes that are not UTF-8."""
    values = column.cast(pa.large_binary())
    _, offsets_buffer, data = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset : values.offset + len(values) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    return BytesColumn(
        b"" if data is None else memoryview(data).cast("B")[start:end],
        offsets - start,
        nulls(column) if column.null_count else None,
    )


def nulls(column: pa.Array) -> Bools:
    """Tell which values are null."""
    is_null: Bools = column.is_null().to_numpy(zero_copy_only=False)
    return is_null


def _codes(column: pa.DictionaryArray) -> Int64s:
    codes: Int64s = column.indices.to_numpy().astype(np.int64)
    return codes


def _code_texts(column: pa.Array) -> pa.Array:
    """Return a text for each value, equal for equal values."""
    return column.dictionary_encode(null_encoding="encode").indices.cast(pa.string())
