"""Pieces of buffers become one Arrow array, without one Python object per piece.

Message ids are cut out of texts of attributes in the same way. Attributes repeat from message to message and
are parsed once each, but an id makes every text another one. So the ids are cut out first, where our sink
puts them: one pair at the end. Anything else is left to the parser of attributes, which takes any text.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.protocol import speedups
from tubemq_spark.protocol.fetch_columns import Int64s

_UID_PREFIX: Final = f"{MESSAGE_UID_KEY}=".encode()
_SEPARATORS: Final = b"[,=]"
_COMMA: Final = ord(",")
_FIRST_BYTES: Final = 1 << 16
_FIRST_ROWS: Final = 1 << 10


Number = TypeVar("Number", np.uint8, np.int32)


class Pieces(NamedTuple):
    """The pieces ``data[start:end]``; they lie apart, in any order."""

    data: bytes | memoryview
    starts: Int64s
    ends: Int64s


class BinaryColumn:
    """Pieces on their way to binary arrays.

    They are copied at once: their bytes have just been read and checked, so the processor has them at hand,
    and the next answer of a broker can have the memory that they came in.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        """How long the pieces are together."""
        self._rows = 0
        self._values: NDArray[np.uint8] = np.empty(_FIRST_BYTES, np.uint8)
        self._borders: NDArray[np.int32] = np.zeros(_FIRST_ROWS, np.int32)
        """Where the first piece begins in the values, and where each one ends."""
        self._arrays: list[pa.Array] = []
        """Without the compiled twin, the pieces of each ``add``."""

    def add(self, pieces: Pieces) -> None:
        """Put pieces behind those that are here; 2 GiB in all at most."""
        data = pieces.data
        starts = np.ascontiguousarray(pieces.starts, np.int64)
        ends = np.ascontiguousarray(pieces.ends, np.int64)
        if speedups.compiled is None:
            self._arrays.append(_take(data, starts, ends))
            self.nbytes += int((ends - starts).sum())
            return
        rows = self._rows + len(starts)
        if rows >= len(self._borders):
            self._borders = _longer(self._borders, self._rows + 1, rows + 1)
        borders = self._borders[self._rows + 1 :]
        end = speedups.compiled.append(self._values, self.nbytes, borders, data, starts, ends)
        if end > len(self._values):
            self._values = _longer(self._values, self.nbytes, end)
            end = speedups.compiled.append(self._values, self.nbytes, borders, data, starts, ends)
        self._rows, self.nbytes = rows, end

    def finish(self) -> pa.Array:
        """Return all pieces as one array; the column is empty then."""
        if speedups.compiled is None:
            array = pa.concat_arrays(self._arrays) if self._arrays else pa.array([], pa.binary())
            self._arrays = []
        else:
            borders, values = self._borders[: self._rows + 1], self._values[: self.nbytes]
            buffers = [None, pa.py_buffer(borders), pa.py_buffer(values)]
            array = pa.Array.from_buffers(pa.binary(), self._rows, buffers)
            # The next pieces are probably as many as these.
            self._borders = _longer(borders[:1], 1, max(_FIRST_ROWS, len(borders)))
            self._values = _longer(values[:0], 0, max(_FIRST_BYTES, len(values)))
        self._rows = self.nbytes = 0
        return array


def gather(pieces: Iterable[Pieces]) -> pa.Array:
    """Return all pieces as one binary array."""
    column = BinaryColumn()
    for some in pieces:
        column.add(some)
    return column.finish()


def runs(texts: pa.Array, most: int) -> list[int] | None:
    """Return the rows that differ from the one before, the first row among them; at most so many.

    The texts have no nulls and begin where their buffers do. None when there are more such rows, or without
    the compiled twin: counting takes too long then.
    """
    if speedups.compiled is None:
        return None
    _, borders, data = texts.buffers()
    begins: list[int] | None = speedups.compiled.runs(data, borders, most)
    return begins


class Split(NamedTuple):
    """The parts of some texts; both have as many rows as these."""

    texts: pa.Array
    """The texts without ids."""
    uids: pa.Array
    """The ids; null where there is none."""


def split_uids(texts: pa.Array) -> Split | None:
    """Return texts of attributes and the ids at their ends; None when ids stand elsewhere, or none do."""
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


def _longer(array: NDArray[Number], used: int, least: int) -> NDArray[Number]:
    """Return an array that begins with the numbers used, and has room for a quarter more than the least."""
    longer = np.empty(least + least // 4, array.dtype)
    longer[:used] = array[:used]
    return longer


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
