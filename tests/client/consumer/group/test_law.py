"""Whatever masters, users and brokers do, in any order: each partition has one reader, messages come in
order, none is lost, and none that is confirmed comes again.

The test is the master: it gives members partitions and takes them away, and they carry that out at once. The
brokers are three embedded ones, the same for all runs; each run is a group of its own, which begins at the
ends of the logs. Time stands still but where a run lets it pass.
"""

import contextlib
import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from testkit.examples import examples
from tests.client.assigned import ROW, TOPIC, client_of, keep_leases, partition
from tubemq_spark.client import ConsumePosition
from tubemq_spark.client.consumer import engine, state
from tubemq_spark.client.consumer.cache import BrokerHealth
from tubemq_spark.client.consumer.partition import Standing
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.messages import EventType, RebalanceEvent
from tubemq_spark.protocol.packed_strings import PartitionInfo

PARTITIONS = [partition(broker) for broker in (1, 2, 3)]
MEMBERS = range(2)
CONFIRM_TIMEOUT_S = 60
FETCH, COMMIT, REGISTER = Method.GET_MESSAGE, Method.COMMIT_OFFSET, Method.PARTITION_REGISTER
each = st.sampled_from(PARTITIONS)
who = st.sampled_from(MEMBERS)
groups = itertools.count()
numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    # The master of the server stays out of it.
    limits = EmbeddedSettings(max_entries=3, balance_period_ms=3_600_000)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3, settings=limits) as running:
        yield running


def test_the_law(server, monkeypatch):
    # Each fetch waits for the answer that it has asked for, or examples would depend on time.
    monkeypatch.setattr(engine, "PATIENCE_S", 30.0)
    monkeypatch.setattr(state, "REGISTER_MS", 1)
    with client_of(server, "other") as client:
        layout = client.layout(TOPIC).partitions

    class Machine(GroupMachine):
        running = server
        endpoints = layout

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples(20, by_night=300), stateful_step_count=60, deadline=None),
    )


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class GroupMachine(RuleBasedStateMachine):
    """Compares two members with the simplest model: a list of messages per partition, and how many count."""

    running = None
    endpoints = None

    @initialize()
    def open(self):
        self.clock = Clock()
        self.client = client_of(
            self.running,
            f"law_{next(groups)}",
            consume_position=ConsumePosition.LATEST,
            confirm_timeout_ms=CONFIRM_TIMEOUT_S * 1000,
            not_found_wait_ms=0,
            rebalance_wait_ms=0,
            # Faults end connections; an answer that is late on a busy machine is not one of them.
            rpc_timeout_ms=60_000,
        )
        self.producer = self.client.producer()
        self.members = [self.member() for _ in MEMBERS]
        self.events = itertools.count(1)
        self.sent = {one: [] for one in PARTITIONS}
        self.owners = {}
        self.out = {}
        """Batches that users have, by partition: the member, the batch, and until when it counts."""
        self.least = dict.fromkeys(PARTITIONS, 0)
        """Messages that the group has certainly confirmed."""
        self.most = dict.fromkeys(PARTITIONS, 0)
        """Messages that it may have confirmed: an answer was lost."""
        self.begin = {one: self.place(one) for one in PARTITIONS}

    def member(self):
        member = self.client.group_consumer(TOPIC).open()
        member._core.state.cache._clock = self.clock
        member._core.state.cache._brokers = BrokerHealth(self.clock, lambda: 0.0)
        return member

    def place(self, where):
        """Give the group a position at the end of a log, and return it."""
        self.tell(0, EventType.ONLY_CONNECT, where)
        begin = self.members[0].positions()[where].offset
        self.tell(0, EventType.ONLY_DISCONNECT, where)
        return begin

    def tell(self, number, kind, *places):
        infos = tuple(
            PartitionInfo(one.broker_id, self.endpoints[one], one.topic, one.partition_id) for one in places
        )
        rebalancing = self.members[number]._core._rebalancing
        run(rebalancing._carry_out(RebalanceEvent(next(self.events), kind, infos)))

    def teardown(self):
        if not hasattr(self, "begin"):
            return
        self.running.faults.clear()
        try:
            self.drain()
        finally:
            for member in self.members:
                member.close()
            self.producer.close()
            self.client.close()

    # What the world does.

    @rule(where=each, count=st.integers(1, 7))
    def produce(self, where, count):
        for _ in range(count):
            value = b"%d" % next(numbers)
            self.producer.send(TOPIC, value, partition=(where.broker_id, where.partition_id))
            self.sent[where].append(value)
        self.producer.flush()

    @rule(number=who, places=st.sets(each, min_size=1), kind=st.sampled_from(["CONNECT", "ONLY_CONNECT"]))
    def give(self, number, places, kind):
        """Give a member partitions; what another one holds, its broker refuses."""
        self.tell(number, EventType[kind], *sorted(places))
        self.look()

    @rule(
        number=who, places=st.sets(each, min_size=1), kind=st.sampled_from(["DISCONNECT", "ONLY_DISCONNECT"])
    )
    def take(self, number, places, kind):
        self.tell(number, EventType[kind], *sorted(places))
        assert not places & set(self.members[number].connected)
        self.look()

    @rule(number=who, kind=st.sampled_from(["REPORT", "REFRESH", "STOP_REBALANCE", "UNKNOWN"]), where=each)
    def say_something_else(self, number, kind, where):
        before = self.members[number].connected
        self.tell(number, EventType[kind], where)
        assert self.members[number].connected == before

    @rule(seconds=st.sampled_from([1, CONFIRM_TIMEOUT_S - 1, CONFIRM_TIMEOUT_S]))
    def let_time_pass(self, seconds):
        self.clock.now += seconds

    @rule(where=each)
    def lose_lease(self, where):
        self.running.faults.forget_leases(broker=where.broker_id)

    @rule(where=each, number=who)
    def let_another_read_on(self, where, number):
        """The holder of the partition was silent too long, and does not know that."""
        self.running.faults.clear()
        self.running.faults.forget_leases(broker=where.broker_id)
        self.members[number].resume([where])
        self.tell(number, EventType.ONLY_CONNECT, where)
        for _ in PARTITIONS:
            self.fetch(number)
        if (number, where) in self.out:
            self.end(number, where, consumed=True)
        self.tell(number, EventType.ONLY_DISCONNECT, where)
        self.look()

    @rule(number=who)
    def keep(self, number):
        keep_leases(self.members[number])
        self.look()

    @rule(number=who, where=each, pause=st.booleans())
    def pause_or_resume(self, number, where, pause):
        member = self.members[number]
        if pause:
            member.pause([where])
        else:
            member.resume([where])

    @rule(
        method=st.sampled_from([FETCH, COMMIT, REGISTER, Method.PARTITION_HEARTBEAT]),
        how=st.sampled_from(["lost", "answer lost", "503", "411", "412"]),
    )
    def break_something(self, method, how):
        faults = self.running.faults
        if how in ("lost", "answer lost"):
            faults.drop_connection(method, carried_out=how == "answer lost", times=1)
        else:
            code = {"503": 503, "411": ErrCode.HB_NO_NODE, "412": ErrCode.DUPLICATE_PARTITION}[how]
            faults.answer(method, code, times=1)

    @rule()
    def mend(self):
        self.running.faults.clear()

    # What users do.

    @rule(number=who)
    def fetch(self, number):
        member = self.members[number]
        batch = member.fetch(0)
        self.look()
        if batch is None:
            return
        where, values = batch.partition, [record.value for record in batch]
        assert where in member.connected
        assert where not in member.paused
        mine = self.out.get((number, where))
        assert mine is None or self.clock.now >= mine[1], "one batch at a time"
        at = (batch.offset - self.begin[where]) // ROW
        assert self.least[where] <= at <= self.most[where]
        assert values == self.sent[where][at : at + len(values)]
        # The broker has told where the group stands.
        self.least[where] = self.most[where] = at
        self.out[number, where] = batch, self.clock.now + CONFIRM_TIMEOUT_S

    @rule(number=who, where=each, at=st.integers(0, 20))
    def seek(self, number, where, at):
        member, count = self.members[number], min(at, len(self.sent[where]))
        is_held = where in member.connected
        batch, _ = self.out.pop((number, where), (None, None))
        try:
            found = member.seek(where, self.begin[where] + ROW * count)
        except ConsumeError:
            assert not is_held
        except TubeMQError:
            self.least[where] = min(self.least[where], count)
            self.most[where] = max(self.most[where], count)
        else:
            assert found.offset == self.begin[where] + ROW * count
            self.least[where] = self.most[where] = count
        if batch is not None:
            with pytest.raises(ConsumeError):
                member.confirm(batch)
        self.look()

    @rule(consumed=st.booleans(), place=st.integers(0, len(PARTITIONS) - 1))
    def confirm(self, consumed, place):
        if not self.out:
            return
        number, where = sorted(self.out)[place % len(self.out)]
        self.end(number, where, consumed=consumed)
        self.look()

    def end(self, number, where, *, consumed):
        batch, until = self.out.pop((number, where))
        member = self.members[number]
        behind = (batch.offset - self.begin[where]) // ROW + len(batch)
        in_time = self.clock.now < until
        try:
            confirmed = member.confirm(batch, consumed=consumed)
        except ConsumeError:
            # It was refused here, and so at no broker.
            pass
        except TubeMQError:
            if consumed:
                self.most[where] = max(self.most[where], behind)
        else:
            assert in_time
            if consumed:
                assert confirmed.offset == self.begin[where] + behind * ROW
                self.least[where] = self.most[where] = behind
        with pytest.raises(ConsumeError):
            member.confirm(batch)

    def look(self):
        """Forget the batches whose partitions were given up; their confirmations are refused."""
        for number, where in list(self.out):
            member = self.members[number]
            if where not in member.connected:
                batch, _ = self.out.pop((number, where))
                with pytest.raises(ConsumeError):
                    member.confirm(batch)

    # What holds at any time.

    @invariant()
    def nothing_is_in_two_states(self):
        for member in getattr(self, "members", []):
            cache = member._core.state.cache
            held = set(member.connected)
            assert held == set(cache.positions())
            assert sum(len(partitions) for partitions in cache._sets.values()) == len(held)
            standings = {member._core.state.connected[place].standing for place in held}
            assert Standing.RELEASED not in standings

    def drain(self):
        """Nothing is lost: one member gets everything that was not certainly confirmed."""
        for member in self.members:
            member.resume()
        for number, where in list(self.out):
            self.end(number, where, consumed=False)
        self.tell(1, EventType.DISCONNECT, *PARTITIONS)
        self.running.faults.forget_leases()
        self.tell(0, EventType.CONNECT, *PARTITIONS)
        for _ in range(2_000):
            if all(self.least[one] == len(self.sent[one]) for one in PARTITIONS):
                return
            self.clock.now += 1
            self.fetch(0)
            for number, where in list(self.out):
                with contextlib.suppress(TubeMQError):
                    self.end(number, where, consumed=True)
            if self.most_is_all():
                return
        raise AssertionError(f"not all came: {self.least}, {self.members[0].positions()}")

    def most_is_all(self):
        """Whether what did not come was confirmed, though its user was not told."""
        positions = self.members[0].positions()
        return all(
            one in positions and positions[one].offset == self.begin[one] + ROW * len(self.sent[one])
            for one in PARTITIONS
            if self.least[one] < len(self.sent[one])
        ) and all(self.most[one] == len(self.sent[one]) for one in PARTITIONS)
