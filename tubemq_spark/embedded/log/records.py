"""The two layouts on disk: an entry of the index log and the header of a record in the data log.

Both are TubeMQ's (DataStoreUtils.STORE_INDEX_HEAD_LEN, STORE_DATA_HEADER_LEN), big-endian.
"""

import struct
from typing import Final, NamedTuple

import numpy as np

INDEX_ENTRY: Final = struct.Struct(">iqiiq")
"""Partition, position in the data log, size there, key code, time of arrival in ms."""

INDEX_DTYPE: Final = np.dtype(
    [("partition", ">i4"), ("position", ">i8"), ("size", ">i4"), ("key", ">i4"), ("time", ">i8")]
)
"""The same entry for numpy."""

RECORD_HEADER: Final = struct.Struct(">iIiiqqiiqi")
"""Length (48 + payload), magic, checksum, partition, index offset, time, sender, key code, id, flag."""

RECORD_DTYPE: Final = np.dtype(
    [
        ("length", ">i4"),
        ("magic", ">u4"),
        ("checksum", ">i4"),
        ("partition", ">i4"),
        ("offset", ">i8"),
        ("time", ">i8"),
        ("sender", ">i4"),
        ("key", ">i4"),
        ("id", ">i8"),
        ("flag", ">i4"),
    ]
)
"""The same header for numpy."""

RECORD_MAGIC: Final = 0x02C998B8
LENGTH_BYTES: Final = 4
"""The length in a record's header does not count its own four bytes."""

NO_KEY: Final = -1
"""The key code of a message without a type."""


class NewRecord(NamedTuple):
    """A message to store; a named tuple, because one is created for every message sent."""

    partition_id: int
    payload: bytes
    checksum: int
    key_code: int
    sent_address: int
    flag: int
