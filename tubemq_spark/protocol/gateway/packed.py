"""Columns of numbers in fields of bytes: little-endian, so that neither side touches single numbers."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

INT32: Final = np.dtype("<i4")  # RecordBatch.borders, and MessageBatch's codes
INT64: Final = np.dtype("<i8")  # BytesColumn.borders, message_ids, ordinals
FLAG: Final = np.dtype("u1")  # has_attributes and nulls: a byte each


class MalformedMessageError(ValueError):
    """A message of the peer contradicts itself; its reader says which peer that is."""


def pack(numbers: NDArray[Any], kind: np.dtype[Any]) -> bytes:
    """Return numbers as bytes."""
    return np.ascontiguousarray(numbers, kind).tobytes()


def unpack(data: bytes, kind: np.dtype[Any], count: int, what: str) -> NDArray[Any]:
    """Return the numbers of a field."""
    if len(data) != kind.itemsize * count:
        raise MalformedMessageError(
            f"{what} has {len(data)} bytes for {count} numbers of {kind.itemsize} bytes"
        )
    return np.frombuffer(data, kind)


def ascending(borders: NDArray[Any], size: int, what: str) -> NDArray[np.int64]:
    """Return the borders between pieces of a field that has so many bytes, as int64."""
    wide = borders.astype(np.int64)
    if len(wide) == 0 or wide[0] < 0 or wide[-1] > size or (wide[1:] < wide[:-1]).any():
        raise MalformedMessageError(f"the borders of {what} do not ascend from 0 to {size} at most")
    return wide


def codes(data: bytes, count: int, values: int, what: str) -> NDArray[np.int64]:
    """Return the codes of a column that has so many different values; -1 stands for none."""
    numbers = unpack(data, INT32, count, what).astype(np.int64)
    if count and not (numbers.min() >= -1 and numbers.max() < values):
        raise MalformedMessageError(f"{what} has codes beyond its {values} values")
    return numbers
