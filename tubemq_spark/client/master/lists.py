"""Where masters are now, for a process whose list of masters can change while it runs.

A list is known by what it was at first: settings have that, and sessions with equal settings share
connections. Whoever asks a master asks ``current``; only one thread replaces a list.
"""

from typing import Final

from tubemq_spark.model import Endpoint

_replaced: Final[dict[tuple[Endpoint, ...], tuple[Endpoint, ...]]] = {}


def replace(first: tuple[Endpoint, ...], now: tuple[Endpoint, ...]) -> None:
    """Let clients whose settings have the first list ask these masters from now on."""
    _replaced[first] = now


def current(first: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return which masters to ask instead of the first list."""
    return _replaced.get(first, first)
