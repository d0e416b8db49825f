"""What the C library does with memory that Python frees."""

import functools
from typing import Final

_KEPT_BYTES: Final = 4 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Let malloc keep pieces of up to 4 MiB for the next use instead of giving each back to the kernel.

    A fetch makes and frees several pieces of half a megabyte on either side. At first glibc maps and unmaps
    every one of them, and to touch new pages takes longer than to fill them: without this a reader gets two
    thirds. glibc raises its limits by itself (``M_MMAP_THRESHOLD`` in mallopt(3)) when something larger is
    freed, as is done here once a process; to other C libraries it means nothing. What each thread keeps
    stays below 8 MiB.
    """
    bytes(_KEPT_BYTES)
