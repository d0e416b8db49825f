"""Whatever users and brokers do, in any order: messages come in order, none is lost, and none that is
confirmed comes again, unless an answer was lost.

The server is the embedded one, with three brokers, and is the same for all runs; each run is a group of its
own, which begins at the ends of the logs.
"""

import contextlib
import itertools
import time

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
from tests.client.assigned import ROW, TOPIC, client_of, partition, upkeep
from tubemq_spark.client.consumer import engine, state
from tubemq_spark.client.consumer.cache import BrokerHealth
from tubemq_spark.client.consumer.values import PartitionState
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

PARTITIONS = [partition(broker) for broker in (1, 2, 3)]
each = st.sampled_from(PARTITIONS)
FETCH, COMMIT, REGISTER = Method.GET_MESSAGE, Method.COMMIT_OFFSET, Method.PARTITION_REGISTER
groups = itertools.count()
numbers = itertools.count()


@pytest.fixture(scope="module")
def server():
    limits = EmbeddedSettings(max_entries=3)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3, settings=limits) as running:
        yield running


@pytest.mark.parametrize("locally", [False, True], ids=["remote", "local"])
def test_the_law(server, locally, monkeypatch):
    # Each fetch waits for the answer that it has asked for, or examples would depend on time.
    monkeypatch.setattr(engine, "PATIENCE_S", 30.0)
    monkeypatch.setattr(state, "REGISTER_MS", 1)

    class Machine(AssignedMachine):
        running = server
        confirms_locally = locally

    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=examples(12, by_night=150), stateful_step_count=50, deadline=None),
    )


class AssignedMachine(RuleBasedStateMachine):
    """Compares a consumer with the simplest model: a list of messages per partition, and how many count."""

    running = None
    confirms_locally = False

    @initialize()
    def open(self):
        self.client = client_of(
            self.running,
            f"law_{next(groups)}",
            confirm_locally=self.confirms_locally,
            not_found_wait_ms=0,
            rebalance_wait_ms=0,
            confirm_timeout_ms=86_400_000,
            # Faults end connections; an answer that is late on a busy machine is not one of them.
            rpc_timeout_ms=60_000,
        )
        self.producer = self.client.producer()
        self.consumer = self.client.assigned_consumer(TOPIC).open()
        # Rests and pauses are over with the next fetch, however fast this machine is; bookings do not end.
        self.fetches = 0
        cache = self.consumer._core.state.cache
        cache._clock = lambda: self.fetches * 60.0
        cache._brokers = BrokerHealth(cache._clock, lambda: 0.0)
        self.sent = {one: [] for one in PARTITIONS}
        self.begin = {one: self.consumer.connect(one).latest for one in PARTITIONS}
        for one in PARTITIONS:
            self.consumer.disconnect(one)
        self.connected = set()
        self.batches = {}
        self.least = dict.fromkeys(PARTITIONS, 0)
        """Messages that the group has certainly confirmed."""
        self.most = dict.fromkeys(PARTITIONS, 0)
        """Messages that it may have confirmed: an answer was lost, or goes out later."""
        self.placed = set()
        """Partitions in which the group has a position of this run."""

    def teardown(self):
        if not hasattr(self, "client"):
            return
        self.running.faults.clear()
        try:
            self.drain()
        finally:
            self.consumer.close()
            self.producer.close()
            self.client.close()

    @rule(where=each, count=st.integers(1, 7))
    def produce(self, where, count):
        for _ in range(count):
            value = b"%d" % next(numbers)
            self.producer.send(TOPIC, value, partition=(where.broker_id, where.partition_id))
            self.sent[where].append(value)
        self.producer.flush()

    # What is drawn does not depend on what servers did, which threads may see earlier or later.
    @rule(where=each, named=st.booleans(), at=st.integers(0, 20))
    def connect(self, where, named, at):
        before = where in self.connected
        offset = None
        if where not in self.placed and not before:
            offset = self.begin[where]
        elif not before and named:
            offset = self.begin[where] + ROW * min(at, len(self.sent[where]))
        try:
            found = self.consumer.connect(where, offset)
        except (RpcError, TubeMQConnectionError, ConsumeError):
            # Whether the broker moved the position is not known.
            if not before:
                self.doubt(where, offset)
            return
        count = (found.offset - self.begin[where]) // ROW
        if before:
            return
        if offset is None:
            assert self.least[where] <= count <= self.most[where]
        else:
            assert found.offset == offset
        self.connected.add(where)
        self.least[where] = self.most[where] = count
        self.placed.add(where)

    def doubt(self, where, offset):
        if offset is None:
            return
        count = (offset - self.begin[where]) // ROW
        self.least[where] = min(self.least[where], count)
        self.most[where] = max(self.most[where], count)

    @rule(where=each)
    def disconnect(self, where):
        assert self.consumer.disconnect(where) == (where in self.connected)
        self.connected.discard(where)
        self.batches.pop(where, None)

    @rule(where=each, at=st.integers(0, 20))
    def seek(self, where, at):
        offset = self.begin[where] + ROW * min(at, len(self.sent[where]))
        batch = self.batches.pop(where, None)
        try:
            found = self.consumer.seek(where, offset)
        except ConsumeError:
            assert where not in self.connected
        except (RpcError, TubeMQConnectionError):
            assert where in self.connected
            self.doubt(where, offset)
        else:
            assert where in self.connected
            assert found.offset == offset == self.consumer.committed(where)[where]
            self.least[where] = self.most[where] = (offset - self.begin[where]) // ROW
        if batch is not None:
            with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
                self.consumer.confirm(batch)

    @rule()
    def fetch(self):
        self.fetches += 1
        batch = self.consumer.fetch(0)
        if batch is None:
            return
        where = batch.partition
        assert where in self.connected
        assert where not in self.batches, "one batch at a time"
        values = [record.value for record in batch]
        at = (batch.offset - self.begin[where]) // ROW
        assert self.least[where] <= at <= self.most[where]
        assert values == self.sent[where][at : at + len(values)]
        assert [record.offset for record in batch] == [batch.offset + ROW * i for i in range(len(values))]
        self.least[where] = self.most[where] = at
        self.batches[where] = batch

    @rule(consumed=st.booleans(), number=st.integers(0, 5))
    def confirm(self, consumed, number):
        if not self.batches:
            return
        where = sorted(self.batches)[number % len(self.batches)]
        batch = self.batches.pop(where)
        behind = (batch.offset - self.begin[where]) // ROW + len(batch)
        try:
            confirmed = self.consumer.confirm(batch, consumed=consumed)
        except TubeMQError:
            assert not consumed or self.most[where] <= behind
            if consumed:
                self.most[where] = behind
            return
        if consumed:
            self.most[where] = behind
            if not self.confirms_locally:
                assert confirmed.offset == self.begin[where] + behind * ROW
                self.least[where] = behind
        with pytest.raises(ConsumeError):
            self.consumer.confirm(batch)

    @rule(where=each)
    def lose_lease(self, where):
        self.running.faults.forget_leases(broker=where.broker_id)

    @rule()
    def keep(self):
        upkeep(self.consumer)

    @rule(
        method=st.sampled_from(
            [FETCH, COMMIT, REGISTER, Method.PARTITION_HEARTBEAT, Method.BALANCE_PARTITION_META]
        ),
        carried_out=st.booleans(),
        how=st.sampled_from(["drop", "503", "411"]),
    )
    def break_something(self, method, carried_out, how):
        faults = self.running.faults
        if how == "drop":
            faults.drop_connection(method, carried_out=carried_out, times=1)
        else:
            code = 503 if how == "503" else ErrCode.HB_NO_NODE
            faults.answer(method, code, times=1)

    @rule()
    def mend(self):
        self.running.faults.clear()

    @invariant()
    def partitions_are_what_the_user_made_them(self):
        if not hasattr(self, "client"):
            return
        assert set(self.consumer.connected) == self.connected
        for where in self.batches:
            assert self.consumer.status()[where].state is PartitionState.IN_USE

    def drain(self):
        """Nothing is lost: everything that was not confirmed still comes."""
        for batch in self.batches.values():
            with contextlib.suppress(TubeMQError):
                self.consumer.confirm(batch, consumed=False)
        self.batches.clear()
        for where in PARTITIONS:
            if where not in self.connected:
                self.consumer._core._connecting._refused.clear()
                self.connect_at_least(where)
        missing = {where for where in PARTITIONS if self.most[where] < len(self.sent[where])}
        for _ in range(2_000):
            if not missing:
                return
            self.fetch_and_confirm()
            missing = {where for where in PARTITIONS if self.most[where] < len(self.sent[where])}
        raise AssertionError(f"these did not come: {missing}, {self.consumer.status()}")

    def connect_at_least(self, where):
        offset = None if where in self.placed else self.begin[where]
        found = self.consumer.connect(where, offset)
        self.connected.add(where)
        count = (found.offset - self.begin[where]) // ROW
        assert self.least[where] <= count <= self.most[where] or offset is not None
        self.least[where] = self.most[where] = count

    def fetch_and_confirm(self):
        self.fetch()
        for where, batch in list(self.batches.items()):
            del self.batches[where]
            self.consumer.confirm(batch)
            behind = (batch.offset - self.begin[where]) // ROW + len(batch)
            self.least[where] = self.most[where] = behind
            if self.confirms_locally:
                self.least[where] = (batch.offset - self.begin[where]) // ROW
        time.sleep(0.001)
