"""Rules by which requests are answered wrongly on purpose: what each does, to which requests, how often."""

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
    """Which requests of a method a rule takes; without any of these: every one."""

    times: int
    """So many, and no more."""
    skip: int
    """Not the first so many: 1 means from the second on."""
    broker: int
    """Those that come to this broker."""
    only: Callable[[Any], bool]
    """Those whose request message this function says yes to; others are not counted."""


class Rule:
    """Something that happens to requests; it ends by ``cancel``, or at the end of a ``with`` block.

    Safe to use from any thread.
    """

    def __init__(self, method: Method, act: "Action", script: Script) -> None:
        """Take requests of a method; ``Faults`` makes and adds rules."""
        self.method = method
        self._act = act
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

    @property
    def hits(self) -> int:
        """How many requests it has taken."""
        with self._changed:
            return self._hits

    @property
    def ended(self) -> bool:
        """Whether it takes no more requests."""
        with self._changed:
            return self._ended or (self._times is not None and self._hits >= self._times)

    def wait_for_hits(self, count: int = 1, timeout_s: float = _PATIENCE_S) -> bool:
        """Wait until it has taken so many requests; return False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._hits >= count, timeout_s)

    def cancel(self) -> None:
        """Take no more requests, and let those go on that wait because of it."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def pause(self, is_down: Callable[[], bool], timeout_s: float | None) -> bool:
        """Let a request wait for so long, None for ever; the end of the rule, or of its server, ends it.

        Returns:
            Whether the server is there: what ``is_down`` tells, which is asked again at each ``wake``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or is_down(), timeout_s)
            return not is_down()

    def wake(self) -> None:
        """Let requests that wait look again whether their server is there."""
        with self._changed:
            self._changed.notify_all()

    def takes(self, server: int, request: rpc.Request) -> bool:
        """Count a request to a server, and say whether it is one of those the rule is for."""
        if request.method != self.method or self._broker not in (None, server):
            return False
        if not self._is_meant(request):
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

    def reply(self, pause: "Pause", request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        """Do to a request what the rule is for; ``handle`` lets the server carry it out."""
        return self._act(pause, request, handle)

    def _is_meant(self, request: rpc.Request) -> bool:
        if self._only is None:
            return True
        try:
            return self._only(rpc.parse_message(MESSAGES[self.method].request, request.body))
        except RemoteProtocolError:
            return False
        except Exception:
            logger.exception("a fault's function cannot tell whether it means a %s", self.method.name)
            return False


Pause = Callable[[float | None], bool]
"""Lets a request wait for so many seconds, None for ever; False when its server was stopped meanwhile."""
Action = Callable[[Pause, rpc.Request, Callable[[], Answer]], Reply]


class Held(Rule):
    """Requests that wait until they are released; ``with`` releases them at its end."""

    def release(self) -> None:
        """Let the requests go on, and hold no more."""
        self.cancel()


MASTER: Final = 0
"""Stands for the master where servers have numbers; brokers have their ids."""
InterceptorOf = Callable[[int], Interceptor]
"""Makes the function that stands before a server."""


class RuleBook:
    """The rules there are; the first that takes a request decides, so rules can follow each other."""

    def __init__(self, intercept: Callable[[InterceptorOf | None], None]) -> None:
        """Begin without rules; ``intercept`` puts functions between requests and the servers, or none."""
        self._intercept = intercept
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._made: list[Rule] = []
        """Those that have had their last hit, too: requests may still wait because of them."""
        self._down: set[int] = set()

    def add(self, rule: Rule) -> None:
        """Ask this rule as well, after those that are there."""
        with self._lock:
            self._made.append(rule)
            self._keep((*self._rules, rule))

    def clear(self) -> None:
        """End all rules."""
        with self._lock:
            for rule in self._made:
                rule.cancel()
            self._made.clear()
            self._keep(())

    def let_go(self, server: int) -> None:
        """Let no request to a server wait from now on: it stops, and waits for its connections to end."""
        with self._lock:
            self._down.add(server)
            for rule in self._made:
                rule.wake()

    def back(self, server: int) -> None:
        """Requests to a server may wait again: it starts."""
        self._down.discard(server)

    def _keep(self, rules: tuple[Rule, ...]) -> None:
        self._rules = tuple(rule for rule in rules if not rule.ended)
        # Without rules requests take the straight way again.
        self._intercept(self._interceptor if self._rules else None)

    def _interceptor(self, server: int) -> Interceptor:
        return functools.partial(self._reply, server)

    def _reply(self, server: int, request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        for rule in self._rules:
            if rule.takes(server, request):
                return rule.reply(functools.partial(self._pause, rule, server), request, handle)
        if any(rule.ended for rule in self._rules):
            with self._lock:
                self._keep(self._rules)
        return Reply(handle())

    def _pause(self, rule: Rule, server: int, timeout_s: float | None) -> bool:
        return rule.pause(lambda: server in self._down, timeout_s)
