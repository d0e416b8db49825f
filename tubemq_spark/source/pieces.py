"""Pieces of buffers become one Arrow array, without one Python object per piece.

Message ids are cut out of texts of attributes in the same way. Attributes repeat from message to message and
are parsed once each, but an id makes every text another one. So the ids are cut out first, where our sink
puts them: one pair at the end. Anything else is left to the parser of attributes, which takes any text.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import Int64s

_UID_PREFIX: Final = f"{MESSAGE_UID_KEY}=".encode()
_SEPARATORS: Final = b"[,=]"
_COMMA: Final = ord(",")


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


class Split(NamedTuple):
    """The parts of some texts; both have as many rows as these."""

    texts: pa.Array
    """The texts without ids."""
    uids: pa.Array
    """The ids; null where there is none."""


def split_uids(texts: pa.Array) -> Split | None:
    """Return texts of attributes and the ids at their ends.

    Args:
        texts: a binary array without nulls.

    Returns:
        None when the first text has no id, or when ids stand elsewhere.
    """
    if not len(texts) or _UID_PREFIX not in texts[0].as_py():
        return None
    # Takes longer to load than all of this package, and few messages have ids: imported where they are.
    import pyarrow.compute as pc

    places = pc.find_substring(texts, _UID_PREFIX).to_numpy().astype(np.int64)
    _, borders, buffer = texts.buffers()
    starts = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    starts, ends = starts[:-1], starts[1:]
    data = memoryview(buffer)
    without, later = places < 0, places > 0
    if (np.frombuffer(buffer, np.uint8)[(starts + places - 1)[later]] != _COMMA).any():
        return None  # the end of another name
    uids = gather([Pieces(data, np.where(without, ends, starts + places + len(_UID_PREFIX)), ends)])
    if pc.any(pc.match_substring_regex(uids, _SEPARATORS)).as_py():
        return None
    cuts = np.where(without, ends, starts + np.maximum(places - 1, 0))
    return Split(
        gather([Pieces(data, starts, cuts)]),
        pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), uids) if without.any() else uids,
    )


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
