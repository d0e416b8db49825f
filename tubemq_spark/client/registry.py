"""The producers and consumers of this process that are open, and what becomes of them when it ends or forks.

Each has a number of its own, from 1 on, which is never used again. A producer is open from the moment it is
made, a consumer from ``open``; both until ``close``. One that its user forgets is not kept alive by this.

When the process ends, consumers that are still open are closed, so that the others of
their groups need not wait for 30 s until servers have noticed. ``producer/producer.py`` closes
producers; batch senders hold nothing that others wait for.

In a forked child nothing is open: what the parent has opened is the parent's. A producer's connections are
abandoned there; if the child used one, its bytes would stand between those of the parent.
"""

import atexit
import dataclasses
import itertools
import logging
import os
import threading
import weakref
from typing import Protocol

logger = logging.getLogger(__name__)


class Client(Protocol):
    """A producer or a consumer."""

    @property
    def client_id(self) -> str:
        """The name under which servers know it."""

    def close(self) -> object:
        """End it; more than once is harmless."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenClient:
    """A producer or a consumer that is open.

    For example:

        for each in open_clients():
            print(each.number, each.kind, each.client_id)
    """

    number: int
    """The first of a process has 1."""
    kind: str
    """``producer``, ``asynchronous producer``, ``batch sender``, ``group consumer`` or ``assigned
    consumer``."""
    client_id: str
    """The name under which servers know it."""


class Registry:
    """What is open, by number; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may close a client on top of these lines
        self._numbers = itertools.count(1)
        self._open: weakref.WeakKeyDictionary[Client, tuple[OpenClient, bool]] = weakref.WeakKeyDictionary()
        """What is open, and whether it is closed when the process ends."""

    def enter(self, client: Client, kind: str, *, closes_at_exit: bool = False) -> None:
        """Give a number to a client that is open now."""
        with self._lock:
            entry = OpenClient(next(self._numbers), kind, client.client_id)
            self._open[client] = entry, closes_at_exit

    def leave(self, client: Client) -> None:
        """Forget a client that closes; it may be forgotten already, or be the parent's."""
        with self._lock:
            self._open.pop(client, None)

    def open_clients(self) -> tuple[OpenClient, ...]:
        """Return the open clients, in the order in which they were opened."""
        with self._lock:
            entries = list(self._open.values())
        return tuple(entry for entry, _ in entries)

    def close_all(self) -> None:
        """Close what is closed when the process ends."""
        with self._lock:
            clients = [client for client, (_, closes_at_exit) in self._open.items() if closes_at_exit]
        for client in clients:
            logger.warning("%s is closed because the process ends; close it before", client.client_id)
            try:
                client.close()
            except Exception:
                # The others are to be closed all the same.
                logger.warning("%s could not be closed", client.client_id, exc_info=True)


_process_registry = Registry()


def process_registry() -> Registry:
    """Return the registry of this process."""
    return _process_registry


def open_clients() -> tuple[OpenClient, ...]:
    """Return the producers and consumers of this process that are open, in the order of their opening.

    For an example see ``OpenClient``.
    """
    return _process_registry.open_clients()


class Inherited(Protocol):
    """Something that owns connections."""

    def abandon(self) -> None:
        """Drop the connections without a word to the peers, and refuse to be used."""


_owners: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def abandon_in_child(owner: Inherited) -> None:
    """Register an owner of connections, which every forked child abandons; it is not kept alive."""
    _owners.add(owner)


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held the lock.
    global _process_registry
    _process_registry = Registry()
    for owner in list(_owners):
        owner.abandon()


def _at_exit() -> None:
    _process_registry.close_all()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
