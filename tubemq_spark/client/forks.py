"""What a forked child inherits of producers: connections and threads that are the parent's.

If the child used a connection, its bytes would stand between those of the parent.
"""

import os
import weakref
from typing import Protocol


class Inherited(Protocol):
    """Something that owns connections."""

    def abandon(self) -> None:
        """Drop the connections without a word to the peers, and refuse to be used."""


_owners: "weakref.WeakSet[Inherited]" = weakref.WeakSet()


def abandon_in_child(owner: Inherited) -> None:
    """Register an owner of connections, which every forked child abandons; it is not kept alive."""
    _owners.add(owner)


def _after_fork_in_child() -> None:
    for owner in list(_owners):
        owner.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
