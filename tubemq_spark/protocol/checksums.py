"""Checksums of bodies, as receipts have them: sums of CRC-32. Reading and sending compute them in one way."""

import itertools
import zlib

import numpy as np

from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.send_batch import BytesColumn, Int64s


def running_checksums(values: BytesColumn) -> list[int]:
    """Return the sum of the CRC-32 of no value, of the first, of the first two, and so on.

    So the sum of values one behind the other is the difference of two numbers.
    """
    return _running(values.data, values.offsets[:-1], values.offsets[1:])


def sum_of_checksums(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> int:
    """Return the sum of the CRC-32 of values that lie anywhere in a buffer."""
    return _running(data, starts, ends)[-1]


def _running(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> list[int]:
    if speedups.compiled is not None:
        result = speedups.compiled.running_checksums(
            data, np.ascontiguousarray(starts), np.ascontiguousarray(ends)
        )
        if result is not None:
            sums: list[int] = np.frombuffer(result, np.int64).tolist()
            return sums
    crc32, view = zlib.crc32, memoryview(data)  # all 32 bits, of bodies: a checkSum has 31, of payloads
    bounds = zip(starts.tolist(), ends.tolist(), strict=True)
    return list(itertools.accumulate((crc32(view[start:end]) for start, end in bounds), initial=0))
