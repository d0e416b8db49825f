"""Faults on demand, for tests of clients and of jobs that read and write TubeMQ."""

from collections.abc import Callable
from typing import Final, Unpack

from tubemq_spark.embedded.broker.groups import GrantedLease, GroupPartition
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.fault_rules import Action, Held, InterceptorOf, Pause, Rule, RuleBook, Script
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.nodes import BrokerNodes, Ending
from tubemq_spark.model import INDEX_ENTRY_BYTES
from tubemq_spark.net.listener import Answer, Reply
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import UNDEFINED, Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import MESSAGES

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

        def act(_pause: Pause, request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            if carried_out:
                handle()
            return Reply(refusal(Method(request.method), int(code), text))

        return self._add(Rule(method, act, script))

    def delay(
        self, method: Method, delay_ms: int, *, carried_out: bool = False, **script: Unpack[Script]
    ) -> Rule:
        """Delay requests."""
        return self._add(Rule(method, _waiting(delay_ms / 1000, carried_out=carried_out), script))

    def hold(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Held:
        """Hold requests until they are released, or the server ends."""
        rule = Held(method, _waiting(None, carried_out=carried_out), script)
        self._rules.add(rule)
        return rule

    def drop_connection(self, method: Method, *, carried_out: bool = False, **script: Unpack[Script]) -> Rule:
        """Close the connection of a request without an answer."""

        def act(_pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            if carried_out:
                handle()
            return Reply(None, hang_up=True)

        return self._add(Rule(method, act, script))

    def truncate(self, method: Method, keep_bytes: int | None = None, **script: Unpack[Script]) -> Rule:
        """Send only the beginning of the answer's frame, by default half of it, and close the connection."""

        def cut(frame: bytes) -> bytes:
            return frame[: len(frame) // 2 if keep_bytes is None else keep_bytes]

        def act(_pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
            return Reply(handle(), cut, hang_up=True)

        return self._add(Rule(method, act, script))

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
            count: how many messages; None: all that are not flushed yet.
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

    def _add(self, rule: Rule) -> Rule:
        self._rules.add(rule)
        return rule


def _change_lease(state: BrokerState, partition: GroupPartition, holder: str | None) -> None:
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


def _waiting(seconds: float | None, *, carried_out: bool) -> Action:
    def act(pause: Pause, _request: rpc.Request, handle: Callable[[], Answer]) -> Reply:
        answer = handle() if carried_out else None
        if not pause(seconds):
            return Reply(None, hang_up=True)
        return Reply(handle() if answer is None else answer)

    return act


def _last_of(part: bytes, frame: bytes) -> int | None:
    start = frame.find(part)
    return None if start < 0 else start + len(part) - 1
