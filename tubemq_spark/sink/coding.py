"""Arrow's columns as a sender takes them: bytes one behind the other, and repeated values told once."""

import itertools
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
    return Coded(tuple(_values(encoded.dictionary)), _codes(encoded))


def is_text(text: str) -> bool:
    """Tell whether a text of ``coded`` or ``coded_maps`` is one: Spark's may have bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def coded_maps(column: pa.MapArray) -> Coded[Any]:
    """Return a column's maps as lists of pairs; those equal in all pairs and their order are told once.

    Arrow cannot compare maps, but texts. A map's text is that of its codes, so no two maps share one; except
    that null and a map without pairs do, and both are None.
    """
    pairs = pc.binary_join_element_wise(_code_texts(column.keys), _code_texts(column.items), ":")
    texts = pc.binary_join(pa.ListArray.from_arrays(column.offsets, pairs), ",")
    codes = _codes(texts.dictionary_encode(null_encoding="encode"))
    _, first_rows = np.unique(codes, return_index=True)
    first = column.take(pa.array(first_rows))
    pairs_of_all = list(zip(_values(first.keys), _values(first.items), strict=True))
    bounds = itertools.pairwise(first.offsets.to_pylist())
    return Coded(tuple(pairs_of_all[start:end] or None for start, end in bounds), codes)


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


def _values(column: pa.Array) -> list[Any]:
    """Return values; of texts that are none, those of their bytes that are not UTF-8 are surrogates."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="surrogateescape") for text in raw]
    return values


def _codes(column: pa.DictionaryArray) -> Int64s:
    codes: Int64s = column.indices.to_numpy().astype(np.int64)
    return codes


def _code_texts(column: pa.Array) -> pa.Array:
    """Return a text for each value, equal for equal values."""
    return column.dictionary_encode(null_encoding="encode").indices.cast(pa.string())
