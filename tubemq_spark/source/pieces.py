"""Pieces of buffers become one Arrow array, without one Python object per piece."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tubemq_spark.protocol import speedups


class Pieces(NamedTuple):
    """The pieces ``data[start:end]``; they lie apart, in any order."""

    data: bytes | memoryview
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def gather(pieces: Sequence[Pieces]) -> pa.Array:
    """Return all pieces as one binary array."""
    if speedups.compiled is None:
        return pa.concat_arrays([_take(*some) for some in pieces])
    borders, values = speedups.compiled.gather(
        [
            (data, np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64))
            for data, starts, ends in pieces
        ]
    )
    count = sum(len(some.starts) for some in pieces)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(borders), pa.py_buffer(values)])


def _take(data: bytes | memoryview, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> pa.Array:
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
