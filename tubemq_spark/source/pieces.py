"""Pieces of buffers become one Arrow array, without one Python object per piece."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import Int64s


class Pieces(NamedTuple):
    """The pieces ``data[start:end]``; they lie apart, in any order."""

    data: bytes | memoryview
    starts: Int64s
    ends: Int64s


def gather(pieces: Sequence[Pieces]) -> pa.Array:
    """Return all pieces as one binary array."""
    if speedups.compiled is None:
        return pa.concat_arrays([_take(*some) for some in pieces])
    borders, values = speedups.compiled.gather(_buffers(pieces))
    count = sum(len(some.starts) for some in pieces)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(borders), pa.py_buffer(values)])


def runs(pieces: Sequence[Pieces], most: int) -> list[int] | None:
    """Return the rows whose piece differs from the one before, the first row among them.

    Returns:
        None when there are more than ``most``, or without the compiled twin: counting takes too long then.
    """
    return None if speedups.compiled is None else speedups.compiled.runs(_buffers(pieces), most)


def _buffers(pieces: Sequence[Pieces]) -> list[tuple[bytes | memoryview, Int64s, Int64s]]:
    return [
        (data, np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64))
        for data, starts, ends in pieces
    ]


def _take(data: bytes | memoryview, starts: Int64s, ends: Int64s) -> pa.Array:
    # One binary array over the whole buffer whose odd elements are the gaps between the pieces, then a
    # take of the even ones: a copy in C instead of a Python slice per row. Its borders must ascend.
    places = np.arange(0, 2 * len(starts), 2)
    if (starts[1:] < ends[:-1]).any():
        # An empty piece may start where another one does, and comes first.
        order = np.lexsort((ends, starts))
        starts, ends = starts[order], ends[order]
        places[order] = places.copy()
    borders = np.empty(2 * len(starts), dtype=np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    everything = pa.Array.from_buffers(
        pa.binary(), len(borders) - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)]
    )
    return everything.take(pa.array(places))
