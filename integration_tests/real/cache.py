"""Where fetched artifacts are kept, outside the build tree.

The cache is `$TUBEMQ_SPARK_CACHE`, or `~/.cache/tubemq_spark`. Every file is checked against
its pinned SHA-256 before it is used, and becomes visible under its final name by a rename, so
that a run cut off in the middle leaves nothing half done. A lock lets several test runs on one
machine share the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "TUBEMQ_SPARK_CACHE"


class ChecksumError(Exception):
    """A fetched file is not the one that was pinned."""


def cache_dir() -> Path:
    """Return where artifacts are kept; the directory need not exist yet."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path.home() / ".cache" / "tubemq_spark"


@contextmanager
def cache_lock() -> Iterator[None]:
    """Lock the cache: one process at a time fills it."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_dir() -> Iterator[Path]:
    """Give a directory on the cache's own file system, so that a rename out of it is atomic."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache_dir()) as scratch:
        yield Path(scratch)


def check_sha256(path: Path, what: str, pinned: str) -> None:
    """Compare a fetched file with its pin."""
    with path.open("rb") as handle:
        seen = hashlib.file_digest(handle, "sha256").hexdigest()
    if seen != pinned:
        raise ChecksumError(f"{what} has SHA-256 {seen}, pinned is {pinned}; refusing to use it")
