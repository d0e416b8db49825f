"""Takes message ids out of texts of attributes, all at once.

Attributes repeat from message to message and are parsed once each, but an id makes every text another one. So
the ids are cut out first, where our sink puts them: one pair at the end. Anything else is left to the parser
of attributes, which takes any text.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tubemq_spark.model import MESSAGE_UID_KEY
from tubemq_spark.source.pieces import Pieces, gather

_NAME: Final = f"{MESSAGE_UID_KEY}=".encode()
_SEPARATORS: Final = b"[,=]"
_COMMA: Final = ord(",")


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
    if not len(texts) or _NAME not in texts[0].as_py():
        return None
    places = pc.find_substring(texts, _NAME).to_numpy().astype(np.int64)
    _, borders, buffer = texts.buffers()
    starts = np.frombuffer(borders, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    starts, ends = starts[:-1], starts[1:]
    data = memoryview(buffer)
    without, later = places < 0, places > 0
    if (np.frombuffer(buffer, np.uint8)[(starts + places - 1)[later]] != _COMMA).any():
        return None  # the end of another name
    uids = gather([Pieces(data, np.where(without, ends, starts + places + len(_NAME)), ends)])
    if pc.any(pc.match_substring_regex(uids, _SEPARATORS)).as_py():
        return None
    cuts = np.where(without, ends, starts + np.maximum(places - 1, 0))
    return Split(
        gather([Pieces(data, starts, cuts)]),
        pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), uids) if without.any() else uids,
    )
