"""Ids of rows that stay the same however often a row is sent, so that readers can drop repeats.

An id has two parts of fixed length, both in the alphabet of base64 for URLs, which TubeMQ's attributes allow:

- ``WRITE_CHARACTERS`` name the write: a micro-batch of a query, or one run of a batch write. They are the
  same in all rows of the write.
- The others are a digest of the row's content, of the number of its task, and of how many rows with this
  content the task had before it.

**Why this is stable.** Spark repeats a task with the rows that it had, but perhaps in another order, when
they come out of a shuffle. So nothing here depends on the order: of rows with equal content it does not
matter which one is the first. The number of the task keeps rows with equal content in different tasks apart.

**When it is not stable.** When a repeated micro-batch has other rows (a source that does not replay, a
function that is not deterministic), or when its rows are spread over tasks in another way. Then a repeat is
not recognised; no row is ever taken for another one.
"""

import base64
import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from tubemq_spark.sink.occurrences import Occurrences

WRITE_CHARACTERS: Final = 8
UID_CHARACTERS: Final = 28

_WRITE_BYTES: Final = WRITE_CHARACTERS * 3 // 4
_ROW_BYTES: Final = (UID_CHARACTERS - WRITE_CHARACTERS) * 3 // 4
_HASH_BYTES: Final = 8


def write_prefix(write: str) -> bytes:
    """Return how the ids of a write begin, whose name may be any text."""
    return base64.urlsafe_b64encode(hashlib.blake2b(write.encode(), digest_size=_WRITE_BYTES).digest())


class TaskUids:
    """The ids of the rows of one task."""

    def __init__(self, write: str, task: int) -> None:
        """Begin a task.

        Args:
            write: names the micro-batch, or the run of a batch write, among all others.
            task: the task's number, which its repetitions have as well.
        """
        self._prefix = write_prefix(write)
        self._hash = hashlib.blake2b(f"{write}/{task}".encode(), digest_size=_ROW_BYTES)
        self._occurrences = Occurrences()

    def of(self, contents: Iterable[bytes]) -> list[bytes]:
        """Return the ids of some rows, whose contents no two different rows share."""
        digests = [self._digest(content) for content in contents]
        hashes = np.frombuffer(b"".join([digest[:_HASH_BYTES] for digest in digests]), np.dtype("<u8"))
        numbers = self._occurrences.numbers(hashes)
        for row in np.flatnonzero(numbers).tolist():
            digests[row] = self._digest(digests[row] + int(numbers[row]).to_bytes(8, "little"))
        encode, prefix = base64.urlsafe_b64encode, self._prefix
        return [prefix + encode(digest) for digest in digests]

    def _digest(self, content: bytes) -> bytes:
        state = self._hash.copy()
        state.update(content)
        return state.digest()
