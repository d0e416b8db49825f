"""Faults on demand, for tests of clients and of jobs: what each does, to which requests, and how often."""

import functools
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar, Unpack

from tubemq_spark.embedded.broker.groups import GrantedLease, OffsetKey
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.nodes import BrokerNodes, Ending
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.net.listener import Answer, Interceptor, Reply
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
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
        """End the rule, and release the requests that it holds."""
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

    def claim(self, server: int, request: rpc.Request) -> bool:
        """Count a request to a server if the rule applies to it; return whether it does."""
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


_Rule = TypeVar("_Rule", bound=Rule)


class RuleBook:
    """All rules. The first that applies to a request decides, so that rules can follow each other."""

    def __init__(self, intercept: Callable[[InterceptorOf | None], None]) -> None:
        """Start without rules; ``intercept`` puts functions between requests and servers, or removes them."""
        self._intercept = intercept
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._until_clear: list[Rule] = []
        """Every rule since ``clear``, also one that applies no more: it may still hold requests."""
        self._down: set[int] = set()

    def add(self, rule: _Rule) -> _Rule:
        """Add a rule after the others, and return it."""
        with self._lock:
            self._until_clear.append(rule)
            self._keep((*self._rules, rule))
        return rule

    def in_force(self) -> tuple[Rule, ...]:
        """Return the rules that apply to requests."""
        return tuple(rule for rule in self._rules if not rule.ended)

    def clear(self) -> None:
        """End all rules."""
        with self._lock:
            for rule in self._until_clear:
                rule.cancel()
            self._until_clear.clear()
            self._keep(())

    def release_requests_to(self, server: int) -> None:
        """Hold no request to a server that stops, because it waits for its connections to end."""
        with self._lock:
            self._down.add(server)
            for rule in self._until_clear:
                rule.wake()

    def allow_holding(self, server: int) -> None:
        """Allow rules to hold requests to a server that starts."""
        self._down.discard(server)

    def _keep(self, rules: tuple[Rule, ...]) -> None:
        """Drop the rules that have ended, and intercept requests while there are others; hold the lock."""
        self._rules = tuple(rule for rule in rules if not rule.ended)
        # Without rules, requests go straight to their handlers.
        self._intercept(self._interceptor if self._rules else None)

    def _interceptor(self, server: int) -> Interceptor:
        """Return the interceptor of a server, by its number: ``MASTER``, or a broker's id."""
        return functools.partial(self._reply, server)

    def _reply(self, server: int, request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        """Answer a request by the first rule that applies to it; without one, as the server does."""
        for rule in self._rules:
            if rule.claim(server, request):
                return rule.reply(functools.partial(self._pause, rule, server), request, handle)
        if any(rule.ended for rule in self._rules):
            with self._lock:
                self._keep(self._rules)
        return Reply(handle())

    def _pause(self, rule: Rule, server: int, timeout_s: float | None) -> bool:
        """Pause a request to a server as its rule wants; return whether the server still runs."""
        return rule.pause(lambda: server in self._down, timeout_s)


__all__ = ["ErrCode", "Faults", "Held", "Method", "Rule", "Script"]

_NO_OFFSET: Final = -1
_OTHER_CLIENT: Final = "another-client"


class Faults:
    """The faults of one server: ``server.faults``. Safe to use from any thread.

    Methods that take a ``Method`` create a rule, whose ``hits`` counts the requests that it was applied to.
    It ends with ``cancel``, at the end of a ``with`` block, or with ``clear``. The first rule that applies to
    a request decides, in the order of creation, so these two lines cause three refusals and then a lost
    connection::

        server.faults.answer(Method.GET_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, times=3)
        server.faults.drop_connection(Method.GET_MESSAGE, times=1)

    ``times``, ``skip``, ``broker`` and ``only`` say which requests a rule applies to (see ``Script``). While
    a request is held, other connections go on. With ``carried_out`` the server does what the request asks
    before the fault, so that only the answer is wrong, late or lost; otherwise ``answer`` and
    ``drop_connection`` leave it undone.
    """

    def __init__(
        self,
        nodes: BrokerNodes,
        master: MasterState,
        intercept: Callable[[InterceptorOf | None], None],
    ) -> None:
        """Create the faults of a server; servers do this themselves."""
        self._nodes = nodes
        self._master = master
        self._rules = RuleBook(intercept)

    def answer(
        self,
        method: Method,
        code: ErrCode | int,
        text: str = "a test asked for this answer",
        *,
        carried_out: bool = False,
        **script: Unpack[Script],
    ) -> Rule:
        """Answer with a result code."""

        def reply(request: rpc.Request) -> Reply:
            return Reply(refusal(Method(request.method), int(code), text))

        return self._rules.add(Rule(method, _instead(reply, carried_out=carried_out), script))

    def delay(
        self, method: Method, delay_ms: int, *, carried_out: bool = False, **script: Unpack[Script]
    ) -> Rule:
        """Delay requests."""
        return self._rules.add(Rule(method, _waiting(delay_ms / 1000, carried_out=carried_out), script))

    def hold(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Held:
        """Hold requests until they are released, or the server ends."""
        return self._rules.add(Held(method, _waiting(None, carried_out=carried_out), script))

    def drop_connection(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Rule:
        """Close the connection of a request without an answer."""
        act = _instead(lambda _request: Reply(None, hang_up=True), carried_out=carried_out)
        return self._rules.add(Rule(method, act, script))

    def truncate(self, method: Method, keep_bytes: int | None = None, **script: Unpack[Script]) -> Rule:
        """Send only the beginning of the answer's frame, by default half of it, and close the connection."""

        def cut(frame: bytes) -> bytes:
            return frame[: len(frame) // 2 if keep_bytes is None else keep_bytes]

        return self._rules.add(
            Rule(method, lambda _pause, _request, handle: Reply(handle(), cut, hang_up=True), script)
        )

    def corrupt(self, method: Method, at: int | bytes = 0, **script: Unpack[Script]) -> Rule:
        """Invert all bits of one byte of the answer's frame.

        Args:
            method: the method whose answers are damaged.
            at: the position of the byte: 0 damages the frame itself, negative numbers count from the end. Or
                some bytes, such as the value of a message: the last byte of their first occurrence is
                damaged, and an answer without them is not.
            script: which requests the rule applies to.
        """

        def damage(frame: bytes) -> bytes:
            place = (
                at if isinstance(at, int) else frame.index(at) + len(at) - 1 if at in frame else len(frame)
            )
            if not -len(frame) <= place < len(frame):
                return frame
            damaged = bytearray(frame)
            damaged[place] ^= 0xFF
            return bytes(damaged)

        return self._rules.add(Rule(method, lambda _pause, _request, handle: Reply(handle(), damage), script))

    def clear(self) -> None:
        """End all rules, release the requests that they hold, activate the master, and start all brokers."""
        self.release()
        self.become_active()
        for node in self._nodes:
            self.start_broker(node.id)

    def in_force(self) -> tuple[Rule, ...]:
        """Return the rules that apply to requests at present."""
        return self._rules.in_force()

    def release(self) -> None:
        """End all rules, and release the requests that they hold."""
        self._rules.clear()

    def stop_broker(self, broker_id: int, *, graceful: bool = False) -> None:
        """Close a broker's ports and connections until ``start_broker``; a stopped broker stays stopped.

        By default this is like killing its process: acknowledged messages are kept, batches that were not
        committed are delivered again, offsets are those that were last saved (``offsets_save_ms``), and
        partitions have no holder after the start. The master lists the broker until it has been silent for
        ``broker_timeout_ms``.

        Args:
            broker_id: which broker.
            graceful: like an orderly shutdown: what is in flight counts as consumed, and the master stops
                listing the broker at once.

        Raises:
            OptionError: there is no such broker.
        """
        self._stop(broker_id, Ending.ORDERLY if graceful else Ending.KILLED)

    def crash_broker(self, broker_id: int) -> None:
        """Stop a broker as a power failure does: messages that were not flushed are lost.

        Their offsets are reused.

        Raises:
            OptionError: there is no such broker.
            OSError: a store's files cannot be cut.
        """
        self._stop(broker_id, Ending.POWER_CUT)

    def freeze_broker(self, broker_id: int) -> None:
        """Freeze a broker until ``start_broker``: connecting succeeds, but nothing is read or answered.

        The master lists it until it has been silent for ``broker_timeout_ms``.

        Raises:
            OptionError: there is no such broker, or it is stopped.
        """
        self._nodes.get(broker_id).freeze()

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker on its former ports, or resume a frozen one; a running broker keeps running.

        The master lists it at once if it has not given up on it, and otherwise after ``broker_startup_ms``.

        Raises:
            OptionError: there is no such broker.
            TubeMQConnectionError: one of its ports is in use.
        """
        self._nodes.get(broker_id).start()
        self._rules.allow_holding(broker_id)

    def become_standby(self) -> None:
        """Make the master answer like one that does not lead its group."""
        self._master.standby.set()

    def become_active(self) -> None:
        """Make the master lead again."""
        self._master.standby.clear()

    def apply_retention(self, topic: str) -> None:
        """Delete all present messages of a topic, as if they were too old."""
        for node in self._nodes:
            node.apply_retention(topic, older_than_ms=0)

    def lose_messages(self, topic: str, count: int | None = None, *, store: int = 0, broker: int = 1) -> int:
        """Lose the newest messages of a store, as in a crash of the broker; their offsets are reused.

        The leases of the topic are forgotten too. Groups keep their offsets, even beyond the new end.

        Args:
            topic: the topic.
            count: how many messages; None: all that are not flushed.
            store: the number of the store.
            broker: the id of the broker.

        Returns:
            The offset of the next message, in index bytes.

        Raises:
            KeyError: there is no such topic or store on that broker.
            OptionError: there is no such broker, or it is stopped.
            OSError: the store's files cannot be cut.
        """
        state = self._nodes.get(broker).state
        spec = state.catalog.get(topic)
        if spec is None or not 0 <= store < spec.stores:
            raise KeyError(f"{topic}-{store}")
        log = state.stores.open(topic, store)
        bounds = log.bounds
        end = bounds.flushed if count is None else bounds.latest - count * INDEX_ENTRY_BYTES
        latest = log.lose_from(end)
        self.forget_leases(topic, broker=broker)
        return latest

    def expire_visit_tokens(self) -> None:
        """Invalidate the visit tokens of all clients; a broker that checks them answers 415."""
        self._master.tokens.expire()

    def forget_clients(self) -> None:
        """Make the master forget all clients, as a restart does; their heartbeats get 411."""
        with self._master.lock:
            self._master.members.forget_all()

    def forget_leases(
        self, topic: str | None = None, group: str | None = None, *, broker: int | None = None
    ) -> int:
        """Make brokers forget leases, as a restart does; fetches get 411.

        What was in flight is fetched again. Without a topic, group or broker: the leases of all.

        Returns:
            The number of leases.
        """
        return self._change_leases(topic, group, broker, None)

    def give_leases_away(
        self, topic: str | None = None, group: str | None = None, *, broker: int | None = None
    ) -> int:
        """Give leases to another consumer, until they expire; fetches get 412.

        Returns:
            The number of leases.
        """
        return self._change_leases(topic, group, broker, _OTHER_CLIENT)

    def _change_leases(
        self, topic: str | None, group: str | None, broker: int | None, holder: str | None
    ) -> int:
        nodes = self._nodes if broker is None else [self._nodes.get(broker)]
        partitions = [
            (running.state, partition)
            for node in nodes
            if (running := node.broker) is not None
            for partition in running.state.leases.all()
            if topic in (None, partition.topic) and group in (None, partition.group)
        ]
        for state, partition in partitions:
            _change_lease(state, partition, holder)
        return len(partitions)

    def _stop(self, broker_id: int, ending: Ending) -> None:
        node = self._nodes.get(broker_id)
        # A request that is held would delay the end of its connection.
        self._rules.release_requests_to(broker_id)
        node.stop(ending)


def _change_lease(state: BrokerState, partition: OffsetKey, holder: str | None) -> None:
    """End the lease of a partition, and grant it to another consumer, if one is named."""
    position = state.offsets.find_or_add(partition, 0)
    with position.lock:
        position.commit(consumed=False)
        state.leases.end(partition)
        if holder is not None:
            state.leases.grant(partition, GrantedLease(holder, frozenset(), UNDEFINED))


def refusal(method: Method, code: int, text: str) -> bytes:
    """Return the answer to a method with a result code and nothing else."""
    response = MESSAGES[method].response()
    fields = response.DESCRIPTOR.fields_by_name
    values = {
        "success": code == ErrCode.SUCCESS,
        "errCode": code,
        "errMsg": text,
        "currOffset": _NO_OFFSET,
    }
    for name, value in values.items():
        if name in fields:
            setattr(response, name, value)
    for name in response.FindInitializationErrors():  # type: ignore[attr-defined]  # the stubs lack it
        setattr(response, name, fields[name].default_value)
    return rpc.serialize_message(response)


def _instead(reply: Callable[[rpc.Request], Reply], *, carried_out: bool) -> Action:
    """Return an action that replaces the server's answer; with ``carried_out`` the server acts before."""

    def act(_pause: Pause, request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        if carried_out:
            handle()
        return reply(request)

    return act


def _waiting(seconds: float | None, *, carried_out: bool) -> Action:
    """Return an action that delays a request, or with ``carried_out`` its answer; None: to its rule's end."""

    def act(pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        answer = handle() if carried_out else None
        if not pause(seconds):
            return Reply(None, hang_up=True)
        return Reply(handle() if answer is None else answer)

    return act
