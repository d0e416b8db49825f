"""Which PySpark this package needs; imports nothing of it."""

from typing import Final

from tubemq_spark.errors import TubeMQError

OLDEST: Final = "4.2"
"""The first release whose Python data sources have what ours needs (read limits, Arrow writers)."""


def too_old(version: str) -> bool:
    """Return whether a release of PySpark precedes the oldest that works."""
    return _numbers(version) < _numbers(OLDEST)


def check_spark_version(version: str) -> None:
    """Refuse a PySpark that would fail later, in the middle of a task."""
    if too_old(version):
        raise TubeMQError("TUBEMQ_SPARK_TOO_OLD", found=version, oldest=OLDEST)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
