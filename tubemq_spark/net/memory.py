"""What the C library does with memory that Python frees."""

import functools
from typing import Final

_FETCH_BYTES: Final = 4 << 20
"""More than what a fetch makes on either side."""


@functools.cache
def keep_freed_memory(largest_bytes: int = _FETCH_BYTES) -> None:
    """Make malloc keep freed pieces of up to so many bytes instead of giving each back.

    A fetch makes and frees several pieces of half a megabyte on either side. At first glibc maps and unmaps
    every one of them, and to touch new pages takes longer than to fill them: without this a reader gets two
    thirds. glibc raises its limits by itself (``M_MMAP_THRESHOLD`` in mallopt(3)) when something larger is
    freed, as is done here once a process; to other C libraries it means nothing. What each thread keeps
    stays below twice that size (``M_TRIM_THRESHOLD``).

    glibc takes at most 32 MiB as that size.
    """
    bytes(largest_bytes)
