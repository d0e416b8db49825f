"""Hosts of clients whose processes freeze: nothing of one runs until it is thawed, then all that is due."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, Final

import simloom
from simloom._context import current_host

_held_back: Final[dict[simloom.Host, list[asyncio.Handle]]] = {}
"""By frozen host, what is due."""
_thawed_at: Final[dict[simloom.Host, float]] = {}
_run: Final[Callable[[asyncio.Handle], None]] = asyncio.Handle._run  # noqa: SLF001


def begin_universe() -> None:
    """Forget the hosts of other universes."""
    _held_back.clear()
    _thawed_at.clear()


def freeze(host: simloom.Host) -> None:
    """Stop the process of a host; what it is sent waits in its sockets."""
    _held_back.setdefault(host, [])


def drop(host: simloom.Host) -> None:
    """Forget what is due on a host that crashes, now and later."""
    _held_back.pop(host, None)
    loop: Any = asyncio.get_running_loop()
    timers = [timer for _, _, timer in loop._scheduled]  # noqa: SLF001
    for handle in (*loop._ready, *timers):  # noqa: SLF001
        if handle._context.get(current_host) is host:  # noqa: SLF001
            handle.cancel()


def thaw(host: simloom.Host) -> None:
    """Continue the process of a host; its timers have gone on."""
    if (handles := _held_back.pop(host, None)) is not None:
        loop: Any = asyncio.get_running_loop()
        _thawed_at[host] = loop.time()
        loop._ready.extend(handles)  # noqa: SLF001


def is_frozen(host: simloom.Host) -> bool:
    """Return whether a host is frozen."""
    return host in _held_back


def was_frozen(host: simloom.Host, since: float) -> bool:
    """Return whether a host is frozen, or was at some time since a moment."""
    return is_frozen(host) or _thawed_at.get(host, -1.0) >= since


def call(host: simloom.Host, function: Callable[[], object]) -> None:
    """Call a function as a process of a host: the tasks and connections that it begins belong to that."""
    context = contextvars.copy_context()
    context.run(current_host.set, host)
    context.run(function)


def run_unless_frozen(handle: Any) -> None:  # noqa: ANN401 (its private parts)
    """Do what a loop does with a handle that is due, or keep it when its host is frozen."""
    if _held_back:
        host = handle._context.get(current_host)  # noqa: SLF001
        if host in _held_back:
            _held_back[host].append(handle)
            return
    _run(handle)
