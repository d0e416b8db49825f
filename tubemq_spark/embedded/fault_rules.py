"""Rules that make requests fail on purpose: what each does, to which requests, and how often."""

import functools
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypedDict

from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.net.listener import Answer, Interceptor, Reply
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.messages import MESSAGES

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 10.0


class Script(TypedDict, total=False):
    """Which requests of a method a rule applies to; without any of these, all."""

    times: int
    """At most this many."""
    skip: int
    """Not the first ones: 1 means from the second one on."""
    broker: int
    """Only those to this broker."""
    only: Callable[[Any], bool]
    """Only those for whose request message this function returns true; others are not counted."""


class Rule:
    """Something that happens to requests until ``cancel`` or the end of a ``with`` block.

    Safe to use from any thread.
    """

    def __init__(self, method: Method, act: "Action", script: Script) -> None:
        """Apply to requests of a method; ``Faults`` creates and adds rules."""
        self.method = method
        self.reply = act
        """Applies the rule to a request; its last argument lets the server carry the request out."""
        self._broker = script.get("broker")
        self._only = script.get("only")
        self._skip = script.get("skip", 0)
        self._times = script.get("times")
        self._changed = threading.Condition()
        self._seen = 0
        self._hits = 0
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __str__(self) -> str:
        where = "" if self._broker is None else f" at broker {self._broker}"
        return f"{self.method.name}{where}, applied to {self.hits} requests"

    @property
    def hits(self) -> int:
        """How many requests it has been applied to."""
        with self._changed:
            return self._hits

    @property
    def ended(self) -> bool:
        """Whether it applies to no more requests."""
        with self._changed:
            return self._ended or (self._times is not None and self._hits >= self._times)

    def wait_for_hits(self, count: int = 1, timeout_s: float = _PATIENCE_S) -> bool:
        """Wait until it has been applied to this many requests; return False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._hits >= count, timeout_s)

    def cancel(self) -> None:
        """Apply to no more requests, and release those that it holds."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def pause(self, is_down: Callable[[], bool], timeout_s: float | None) -> bool:
        """Pause a request for a time (None: for ever), until the rule ends or its server stops.

        Returns:
            Whether the server runs; ``is_down`` is called again at each ``wake``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or is_down(), timeout_s)
            return not is_down()

    def wake(self) -> None:
        """Make waiting requests check again whether their server runs."""
        with self._changed:
            self._changed.notify_all()

    def claims(self, server: int, request: rpc.Request) -> bool:
        """Return whether the rule applies to a request to a server, and count the request."""
        if request.method != self.method or self._broker not in (None, server):
            return False
        if not self._passes_only(request):
            return False
        with self._changed:
            if self.ended:
                return False
            self._seen += 1
            if self._seen <= self._skip:
                return False
            self._hits += 1
            self._changed.notify_all()
            return True

    def _passes_only(self, request: rpc.Request) -> bool:
        if self._only is None:
            return True
        try:
            return self._only(rpc.parse_message(MESSAGES[self.method].request, request.body))
        except RemoteProtocolError:
            return False
        except Exception:
            logger.exception("the function 'only' of a fault failed for a %s", self.method.name)
            return False


Pause = Callable[[float | None], bool]
"""Lets a request wait for some seconds, None for ever; False if its server stopped in the meantime."""
Action = Callable[[Pause, rpc.Request, Callable[[], Answer]], Reply]


class Held(Rule):
    """Requests that wait until they are released, at the latest at the end of the ``with`` block."""

    def release(self) -> None:
        """Release the requests, and hold no more."""
        self.cancel()


MASTER: Final = 0
"""The number of the master; brokers have their ids."""
InterceptorOf = Callable[[int], Interceptor]
"""Returns the function that intercepts the requests to a server."""


class RuleBook:
    """All rules. The first one that applies to a request decides, so rules can follow each other."""

    def __init__(self, intercept: Callable[[InterceptorOf | None], None]) -> None:
        """Start without rules; ``intercept`` puts functions between requests and servers, or removes them."""
        self._intercept = intercept
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._made: list[Rule] = []
        """Includes rules that apply no more: they may still hold requests."""
        self._down: set[int] = set()

    def add(self, rule: Rule) -> None:
        """Add a rule after the others."""
        with self._lock:
            self._made.append(rule)
            self._keep((*self._rules, rule))

    def in_force(self) -> tuple[Rule, ...]:
        """Return the rules that apply to requests."""
        return tuple(rule for rule in self._rules if not rule.ended)

    def clear(self) -> None:
        """End all rules."""
        with self._lock:
            for rule in self._made:
                rule.cancel()
            self._made.clear()
            self._keep(())

    def release_requests_to(self, server: int) -> None:
        """Hold no request to a server that stops, because it waits for its connections to end."""
        with self._lock:
            self._down.add(server)
            for rule in self._made:
                rule.wake()

    def allow_holding(self, server: int) -> None:
        """Allow rules to hold requests to a server that starts."""
        self._down.discard(server)

    def _keep(self, rules: tuple[Rule, ...]) -> None:
        self._rules = tuple(rule for rule in rules if not rule.ended)
        # Without rules, requests go straight to their handlers.
        self._intercept(self._interceptor if self._rules else None)

    def _interceptor(self, server: int) -> Interceptor:
        return functools.partial(self._reply, server)

    def _reply(self, server: int, request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        for rule in self._rules:
            if rule.claims(server, request):
                return rule.reply(functools.partial(self._pause, rule, server), request, handle)
        if any(rule.ended for rule in self._rules):
            with self._lock:
                self._keep(self._rules)
        return Reply(handle())

    def _pause(self, rule: Rule, server: int, timeout_s: float | None) -> bool:
        return rule.pause(lambda: server in self._down, timeout_s)
