"""Things that go wrong, on demand: for tests of clients and of jobs that read and write TubeMQ."""

from collections.abc import Callable
from typing import Final, Unpack

from tubemq_spark.embedded.broker.leases import GrantedLease
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.fault_rules import Action, Held, InterceptorOf, Pause, Rule, RuleBook, Script
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.nodes import BrokerNodes
from tubemq_spark.embedded.running import Ending
from tubemq_spark.net.listener import Answer, Reply
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import MESSAGES

__all__ = ["Faults", "Held", "Rule", "Script"]

_NO_OFFSET: Final = -1
_NOBODY: Final = "somebody-else"


class Faults:
    """What can go wrong at one server: ``server.faults``. Safe to use from any thread.

    Methods that take a ``Method`` make a rule, which says how often it was ``hits``; it ends by its
    ``cancel``, at the end of a ``with`` block, or by ``clear``. Rules are asked in the order they were made
    and the first that takes a request decides, so these two lines are three refusals and then a lost
    connection::

        server.faults.answer(Method.GET_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, times=3)
        server.faults.drop_connection(Method.GET_MESSAGE, times=1)

    ``times``, ``skip`` and ``only`` say which requests a rule takes (see ``Script``). A rule concerns one
    connection at a time: others go on while a request is held. ``carried_out`` says whether the server does
    what the request asks before the fault, so that only the answer is late or lost.
    """

    def __init__(
        self,
        nodes: BrokerNodes,
        master: MasterState,
        intercept: Callable[[InterceptorOf | None], None],
    ) -> None:
        """Belong to a server, which makes its own."""
        self._nodes = nodes
        self._master = master
        self._rules = RuleBook(intercept)

    def answer(
        self,
        method: Method,
        code: ErrCode | int,
        text: str = "a test asked for this answer",
        **script: Unpack[Script],
    ) -> Rule:
        """Answer with a result code, and do not do what was asked."""

        def act(_pause: Pause, request: rpc.Request, _handle: Callable[[], Answer]) -> Reply:
            return Reply(refusal(Method(request.method), int(code), text))

        return self._add(Rule(method, act, script))

    def delay(
        self, method: Method, delay_ms: int, *, carried_out: bool = False, **script: Unpack[Script]
    ) -> Rule:
        """Let requests wait for so long."""
        return self._add(Rule(method, _waiting(delay_ms / 1000, carried_out=carried_out), script))

    def hold(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Held:
        """Let requests wait until they are released; the end of the server releases them too."""
        held = Held(method, _waiting(None, carried_out=carried_out), script)
        self._rules.add(held)
        return held

    def drop_connection(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Rule:
        """Close the connection a request comes on, without an answer."""

        def act(_pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            if carried_out:
                handle()
            return Reply(None, hang_up=True)

        return self._add(Rule(method, act, script))

    def truncate(self, method: Method, keep_bytes: int | None = None, **script: Unpack[Script]) -> Rule:
        """Send only the beginning of an answer's frame, by default half of it, and close the connection."""

        def cut(frame: bytes) -> bytes:
            return frame[: len(frame) // 2 if keep_bytes is None else keep_bytes]

        def act(_pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            return Reply(handle(), cut, hang_up=True)

        return self._add(Rule(method, act, script))

    def corrupt(self, method: Method, at: int | bytes = 0, **script: Unpack[Script]) -> Rule:
        """Turn over all bits of one byte of an answer's frame.

        Args:
            method: whose answers.
            at: the byte's place: 0, the first one, damages the frame itself; negative numbers count from
                the end. Or some bytes, such as a message's: the last of them is damaged where they are
                first found; an answer without them stays as it is.
            script: which requests.
        """

        def damage(frame: bytes) -> bytes:
            place = _last_of(at, frame) if isinstance(at, bytes) else at
            if place is None or not -len(frame) <= place < len(frame):
                return frame
            damaged = bytearray(frame)
            damaged[place] ^= 0xFF
            return bytes(damaged)

        def act(_pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            return Reply(handle(), damage)

        return self._add(Rule(method, act, script))

    def clear(self) -> None:
        """End all rules, let go what waits because of them, be the active master, and start all brokers."""
        self.release()
        self.become_active()
        for node in self._nodes:
            self.start_broker(node.id)

    def release(self) -> None:
        """End all rules, and let go what waits because of them."""
        self._rules.clear()

    def stop_broker(self, broker_id: int, *, graceful: bool = False) -> None:
        """Close a broker's ports and drop its connections, until ``start_broker``; a stopped one stays so.

        Usually as when its process is killed: what was acknowledged is kept; batches that were not confirmed
        come again; groups stand where they stood when offsets were saved last (``offsets_save_ms``); nobody
        holds a partition after the start. The master lists the broker until it has been silent for
        ``broker_timeout_ms``.

        Args:
            broker_id: which broker.
            graceful: as when it is told to end: what is in flight counts as consumed, and the master lists
                it no more at once.

        Raises:
            OptionError: there is no such broker.
        """
        self._stop(broker_id, Ending.ORDERLY if graceful else Ending.KILLED)

    def crash_broker(self, broker_id: int) -> None:
        """Stop a broker as when its machine loses power: messages that were not flushed are lost.

        Their offsets are used again.

        Raises:
            OptionError: there is no such broker.
            OSError: a store's files cannot be cut.
        """
        self._stop(broker_id, Ending.POWER_CUT)

    def freeze_broker(self, broker_id: int) -> None:
        """Let a broker stand still, until ``start_broker``: connect succeeds, nothing is read or answered.

        The master lists it until it has been silent for ``broker_timeout_ms``.

        Raises:
            OptionError: there is no such broker, or it is stopped.
        """
        self._nodes.get(broker_id).freeze()

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker on the ports it had, or let a frozen one go on; a running one stays so.

        The master lists it at once if it had not given it up yet, else after ``broker_startup_ms``.

        Raises:
            OptionError: there is no such broker.
            TubeMQConnectionError: somebody else has taken a port of it.
        """
        self._nodes.get(broker_id).start()
        self._rules.back(broker_id)

    def become_standby(self) -> None:
        """Let the master answer as one that is not the leader of its group."""
        self._master.standby.set()

    def become_active(self) -> None:
        """Let the master lead again."""
        self._master.standby.clear()

    def apply_retention(self, topic: str) -> None:
        """Delete all messages a topic has now, as happens when they are too old."""
        for node in self._nodes:
            node.apply_retention(topic, older_than_ms=0)

    def lose_messages(self, topic: str, count: int | None = None, *, store: int = 0, broker: int = 1) -> int:
        """Lose the newest messages of a store, as a broker that crashes; their offsets are used again.

        Leases of the topic are forgotten with them; groups that had come further are left where they are.

        Args:
            topic: whose messages.
            count: how many; None: all that are not brought to the disk yet.
            store: number of the store.
            broker: whose store.

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
        found = state.stores.open(topic, store)
        bounds = found.bounds
        end = bounds.flushed if count is None else bounds.latest - count * INDEX_ENTRY_BYTES
        latest = found.lose_from(end)
        self.forget_leases(topic, broker=broker)
        return latest

    def expire_visit_tokens(self) -> None:
        """Let no client's visit token be good any more (where the broker looks at them: 415)."""
        self._master.tokens.expire()

    def forget_clients(self) -> None:
        """Let the master forget who is registered, as after its restart (heartbeats get 411)."""
        with self._master.lock:
            self._master.members.forget_all()

    def forget_leases(
        self, topic: str | None = None, group: str | None = None, *, broker: int | None = None
    ) -> int:
        """Let brokers forget who holds their partitions, as after a restart (fetches get 411).

        What was in flight is fetched again. Without topic, group or broker: those of all.

        Returns:
            How many leases there were.
        """
        return self._change_leases(topic, group, broker, None)

    def give_leases_away(
        self, topic: str | None = None, group: str | None = None, *, broker: int | None = None
    ) -> int:
        """Let somebody else hold the partitions that are held (fetches get 412), until his lease runs out.

        Returns:
            How many leases there were.
        """
        return self._change_leases(topic, group, broker, _NOBODY)

    def _change_leases(
        self, topic: str | None, group: str | None, broker: int | None, holder: str | None
    ) -> int:
        nodes = self._nodes if broker is None else [self._nodes.get(broker)]
        seats = [
            (running.state, seat)
            for node in nodes
            if (running := node.running) is not None
            for seat in running.state.leases.all()
            if topic in (None, seat.topic) and group in (None, seat.group)
        ]
        for state, seat in seats:
            _change_lease(state, seat, holder)
        return len(seats)

    def _stop(self, broker_id: int, ending: Ending) -> None:
        node = self._nodes.get(broker_id)
        # What a rule holds would hold up the end of the broker's connections.
        self._rules.let_go(broker_id)
        node.stop(ending)

    def _add(self, rule: Rule) -> Rule:
        self._rules.add(rule)
        return rule


def _change_lease(state: BrokerState, seat: Seat, holder: str | None) -> None:
    position = state.offsets.find_or_add(seat, 0)
    with position.lock:
        position.commit(consumed=False)
        state.leases.end(seat)
        if holder is not None:
            state.leases.grant(seat, GrantedLease(holder, frozenset(), UNDEFINED))


def refusal(method: Method, code: int, text: str) -> bytes:
    """Return the answer to a method that carries a result code and nothing else."""
    response = MESSAGES[method].response()
    known = response.DESCRIPTOR.fields_by_name
    values = {
        "success": code == ErrCode.SUCCESS,
        "errCode": code,
        "errMsg": text,
        "currOffset": _NO_OFFSET,
    }
    for name, value in values.items():
        if name in known:
            setattr(response, name, value)
    for name in response.FindInitializationErrors():  # type: ignore[attr-defined]  # the stubs lack it
        setattr(response, name, known[name].default_value)
    return rpc.serialize_message(response)


def _waiting(seconds: float | None, *, carried_out: bool) -> Action:
    def act(pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        answer = handle() if carried_out else None
        if not pause(seconds):
            return Reply(None, hang_up=True)
        return Reply(handle() if answer is None else answer)

    return act


def _last_of(wanted: bytes, frame: bytes) -> int | None:
    start = frame.find(wanted)
    return None if start < 0 else start + len(wanted) - 1
