"""The line of those who wait for batches: who gets what, which brokers are asked for them, and until when.

The life of a consumer as its core has it, whatever its kind.
"""

import asyncio
import collections
import contextlib

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from testkit.virtual_loop import VirtualLoop, in_virtual_time
from tests.client.consumer.scripted_partitions import ROW, ScriptedConsumer, place, settle, value_of
from tubemq_spark.client.consumer.cache import PATIENCE_S
from tubemq_spark.client.consumer.values import PartitionState
from tubemq_spark.client.tasks import Changes
from tubemq_spark.errors import ConsumeError, RpcError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error

HERE, THERE, ELSEWHERE = place(1), place(2), place(3)
REFUSAL = rpc_error(ErrCode.CONSUME_GROUP_FORBIDDEN, "no", peer="master", during="registering")


@contextlib.asynccontextmanager
async def consumer_of(*partitions, **settings):
    consumer = ScriptedConsumer(*partitions, **settings)
    try:
        yield consumer
    finally:
        await consumer.end()


def now():
    return asyncio.get_running_loop().time()


async def until_asked(consumer, *partitions):
    await settle()
    assert consumer.asked == sorted(partitions)


# Who gets what.


@in_virtual_time
async def test_the_first_that_came_is_the_first_that_gets_a_batch():
    async with consumer_of(HERE, THERE) as consumer:
        first, second = consumer.fetch(), consumer.fetch()
        await until_asked(consumer, HERE, THERE)
        consumer.answer(THERE)
        assert (await first).partition == THERE
        assert not second.done()
        consumer.answer(HERE)
        assert (await second).partition == HERE


@in_virtual_time
async def test_all_partitions_are_asked_until_one_has_something():
    async with consumer_of(HERE, THERE, not_found_wait_ms=100) as consumer:
        fetching = consumer.fetch()
        await until_asked(consumer, HERE)
        consumer.answer_nothing(HERE)
        await until_asked(consumer, THERE)
        consumer.answer_nothing(THERE)
        await until_asked(consumer)
        began = now()
        await asyncio.sleep(0.11)
        await until_asked(consumer, HERE)
        consumer.answer(HERE)
        assert (await fetching).partition == HERE
        assert now() - began < 0.2


# Those who wait no more.


@in_virtual_time
async def test_a_batch_goes_to_the_next_when_the_first_is_cancelled_in_the_moment_in_which_it_comes():
    """Once before it is given the batch, and once behind that."""
    async with consumer_of(HERE) as consumer:
        for ticks in range(6):
            first, second = consumer.fetch(), consumer.fetch()
            await until_asked(consumer, HERE)
            consumer.answer(HERE)
            for _ in range(ticks):
                await asyncio.sleep(0)
            if first.done():
                assert ticks > 2
                second.cancel()
                await settle()
                break
            first.cancel()
            await settle()
            assert first.cancelled()
            batch = await second
            assert value_of(batch) == ticks
            await consumer.confirm(batch)


# Until when.


@in_virtual_time
async def test_one_who_is_not_patient_waits_no_longer_than_asked():
    async with consumer_of(HERE) as consumer:
        for seconds in (0, 0.05, 7):
            began = now()
            assert await consumer.fetch(seconds) is None
            assert now() - began == pytest.approx(seconds, abs=0.001)


@in_virtual_time
async def test_one_who_is_patient_waits_until_each_partition_was_asked_once():
    async with consumer_of(HERE, THERE, ELSEWHERE, not_found_wait_ms=1_000) as consumer:
        fetching = consumer.fetch(0, patient=True)
        for partition in (HERE, THERE):
            await until_asked(consumer, partition)
            consumer.answer_nothing(partition)
        await until_asked(consumer, ELSEWHERE)
        consumer.answer(ELSEWHERE)
        assert (await fetching).partition == ELSEWHERE
        began = now()
        fetching = consumer.fetch(0, patient=True)
        await settle()
        assert fetching.result() is None, "two rest, and one is in use"
        assert now() - began < 0.001


@in_virtual_time
async def test_one_who_is_patient_asks_no_partition_twice():
    async with consumer_of(HERE) as consumer:
        began = now()
        fetching = consumer.fetch(0, patient=True)
        await until_asked(consumer, HERE)
        consumer.answer_nothing(HERE)
        assert await fetching is None
        assert now() - began < 0.001


@pytest.mark.parametrize("seconds", [0, 0.1, 5])
@in_virtual_time
async def test_a_silent_broker_prolongs_a_patient_wait_by_a_moment(seconds):
    async with consumer_of(HERE, THERE) as consumer:
        began = now()
        fetching = consumer.fetch(seconds, patient=True)
        await until_asked(consumer, HERE)
        assert await fetching is None
        assert seconds <= now() - began <= seconds + PATIENCE_S + 0.001


@in_virtual_time
async def test_one_who_waits_for_ever_gets_what_comes_in_the_end():
    async with consumer_of(HERE) as consumer:
        fetching = consumer.fetch()
        await asyncio.sleep(1_000_000)
        consumer.answer(HERE)
        assert value_of(await fetching) == 0


# Brokers that do not answer.


@in_virtual_time
async def test_another_broker_is_asked_when_one_is_silent_and_the_silent_one_only_once():
    async with consumer_of(HERE, place(1, 1), place(1, 2), THERE) as consumer:
        fetching = consumer.fetch()
        await until_asked(consumer, HERE)
        await asyncio.sleep(PATIENCE_S / 2)
        await until_asked(consumer, HERE)
        await asyncio.sleep(PATIENCE_S)
        await until_asked(consumer, HERE, THERE)
        consumer.answer(THERE)
        assert (await fetching).partition == THERE
        others = [consumer.fetch() for _ in range(3)]
        await asyncio.sleep(30)
        await until_asked(consumer, HERE)
        consumer.answer(HERE)
        assert (await others[0]).partition == HERE
        await until_asked(consumer, place(1, 1), place(1, 2))


@in_virtual_time
async def test_a_second_partition_is_not_asked_in_the_moment_in_which_its_broker_becomes_silent():
    """On a machine so busy that booking a partition takes time."""
    async with consumer_of(HERE, place(1, 1), place(1, 2)) as consumer:
        ask = consumer.state.cache.brokers.ask

        def take_time(*about):
            asyncio.get_running_loop().stand_still(0.005)
            ask(*about)
            asyncio.get_running_loop().stand_still(0.005)

        consumer.state.cache.brokers.ask = take_time
        fetching = consumer.fetch()
        await asyncio.sleep(10 * PATIENCE_S)
        await until_asked(consumer, HERE)
        consumer.answer(HERE)
        await fetching


@in_virtual_time
async def test_another_broker_is_asked_beside_the_trial_of_one_that_was_away():
    async with consumer_of(HERE) as consumer:
        assert await consumer.fetch(0) is None
        consumer.time_out(HERE)
        await asyncio.sleep(10)  # its pause
        consumer.add(THERE)
        consumer.add(ELSEWHERE)
        first = consumer.fetch()
        await until_asked(consumer, HERE, THERE)
        second = consumer.fetch()
        await until_asked(consumer, HERE, THERE, ELSEWHERE)
        consumer.answer(THERE)
        consumer.answer(ELSEWHERE)
        assert {(await one).partition for one in (first, second)} == {THERE, ELSEWHERE}


@in_virtual_time
async def test_none_waits_for_the_trial_of_a_broker_that_was_away():
    async with consumer_of(HERE, place(1, 1), THERE) as consumer:
        fetching = consumer.fetch()
        await until_asked(consumer, HERE)
        consumer.time_out(HERE)
        await until_asked(consumer, THERE)
        consumer.answer(THERE)
        assert (await fetching).partition == THERE
        fetching = consumer.fetch()
        await until_asked(consumer)
        await asyncio.sleep(10)  # its pause
        (trial,) = consumer.asked
        assert trial.broker_id == 1
        await asyncio.sleep(30)
        await until_asked(consumer, trial)
        consumer.add(ELSEWHERE)
        await until_asked(consumer, trial, ELSEWHERE)
        consumer.answer(trial)
        assert (await fetching).partition == trial


# Errors.


@in_virtual_time
async def test_an_error_that_none_has_heard_is_told_to_the_next():
    async with consumer_of(HERE, THERE) as consumer:
        first = consumer.fetch()
        await until_asked(consumer, HERE)
        consumer.refuse(HERE)
        first.cancel()
        await settle()
        with pytest.raises(RpcError, match="no"):
            await consumer.fetch()
        assert await consumer.fetch(1) is None


@in_virtual_time
async def test_what_was_told_beside_a_fetch_is_raised_once():
    async with consumer_of(HERE) as consumer:
        waiting = [consumer.fetch(5) for _ in range(2)]
        await until_asked(consumer, HERE)
        consumer.state.tell(REFUSAL)
        with pytest.raises(RpcError, match="no"):
            await waiting[0]
        assert await waiting[1] is None


@in_virtual_time
async def test_the_others_do_not_wait_on_when_the_last_partition_is_given_up_for_an_error():
    async with consumer_of(HERE) as consumer:
        consumer.line.has_nothing = lambda: not consumer.state.connected
        waiting = [consumer.fetch(20) for _ in range(3)]
        await until_asked(consumer, HERE)
        began = now()
        consumer.refuse(HERE)
        with pytest.raises(RpcError, match="no"):
            await waiting[0]
        assert await asyncio.gather(*waiting[1:]) == [None, None]
        assert now() - began < 0.001


@pytest.mark.parametrize("ticks", range(4))
@in_virtual_time
async def test_none_hears_later_that_the_master_has_refused_the_member(ticks):
    """One that waits is cancelled in the moment in which it is refused."""
    async with consumer_of(HERE) as consumer:
        fetching = consumer.fetch()
        await until_asked(consumer, HERE)
        consumer.state.refused = lambda: REFUSAL
        consumer.state.changes.note()
        for _ in range(ticks):
            await asyncio.sleep(0)
        was_waiting = fetching.cancel()
        await asyncio.wait([fetching])
        assert fetching.cancelled() if was_waiting else fetching.exception() is REFUSAL
        consumer.state.refused = lambda: None
        assert await consumer.fetch(1) is None, "it was taken in again"


@pytest.mark.parametrize("how", ["stopped", "closed"])
@in_virtual_time
async def test_all_hear_that_the_consumer_ends(how):
    async with consumer_of(HERE) as consumer:
        waiting = [consumer.fetch() for _ in range(3)]
        await until_asked(consumer, HERE)
        if how == "closed":
            consumer.state.end()
        else:
            consumer.state.stopped = True
            consumer.state.changes.note()
        for task in waiting:
            with pytest.raises(ConsumeError, match=f"is {how}"):
                await task
        consumer.answer(HERE)
        await settle()
        assert consumer.state.cache.state(HERE) is not PartitionState.FETCHING, "it comes again, to others"


# Batches that none has taken.


@in_virtual_time
async def test_a_batch_of_a_partition_that_was_given_up_does_not_come():
    async with consumer_of(HERE) as consumer:
        assert await consumer.fetch(0) is None
        consumer.answer(HERE)
        await settle()
        await consumer.state.release_all()
        assert await consumer.fetch(1) is None


def test_what_changes_between_two_runs_of_the_loop_is_looked_at_in_the_next_one():
    """As when a consumer for coroutines is paused there, while it has a batch."""

    async def with_a_batch():
        consumer = ScriptedConsumer(HERE)
        assert await consumer.fetch(0) is None
        consumer.answer(HERE)
        await settle()
        return consumer

    with contextlib.closing(VirtualLoop()) as loop:
        consumer = loop.run_until_complete(with_a_batch())
        assert consumer.state.cache.state(HERE) is PartitionState.FETCHING
        consumer.state.stopped = True
        consumer.state.changes.note()
        loop.run_until_complete(settle())
        assert consumer.state.cache.state(HERE) is not PartitionState.FETCHING
        loop.run_until_complete(consumer.end())


@in_virtual_time
async def test_a_fetch_of_a_partition_that_is_given_up_is_cancelled():
    async with consumer_of(HERE, THERE) as consumer:
        fetching = consumer.fetch()
        await until_asked(consumer, HERE)
        await consumer.state.release_all([HERE])
        await until_asked(consumer, THERE)
        consumer.answer(THERE)
        assert (await fetching).partition == THERE


@in_virtual_time
async def test_a_fetch_that_is_cancelled_before_it_begins_leaves_its_partition_to_the_next():
    async with consumer_of(HERE) as consumer:
        fetching = consumer.fetch()
        await asyncio.sleep(0)
        consumer.line.abandon(HERE)
        await until_asked(consumer, HERE)
        consumer.answer(HERE)
        assert value_of(await fetching) == 0


# A model, step by step.

PLACES = [place(1 + number % 2, number) for number in range(5)]
DAY_MS = 86_400_000


class LineAgrees(RuleBasedStateMachine):
    """Those who come, give up and are given something, in any order.

    No message is passed over or comes twice once it was confirmed, nothing waits while one waits for it,
    every one of those who wait has a fetch if there can be one, and no more is asked than they need.
    """

    def __init__(self):
        super().__init__()
        self.loop = VirtualLoop()
        self.waiting = []
        self.out = []
        """The batches that users have."""
        self.next = dict.fromkeys(PLACES, 0)
        """The number of the message that has to come next, by partition."""
        self.begun = {}
        """When fetches have begun that have not ended, by booking; None: a trial."""
        self.errors = 0
        self.is_refused = False
        self.is_closed = False
        self._run(self._begin())

    async def _begin(self):
        self.consumer = ScriptedConsumer(*PLACES, confirm_timeout_ms=DAY_MS)
        self.state = self.consumer.state
        self.state.refused = lambda: REFUSAL if self.is_refused else None
        self._watch(self.consumer.fetching)

    def _watch(self, fetching):
        select_now, fetch = fetching.select_now, fetching.fetch

        def select():
            assert self.consumer.line.waiting > self._fresh(), "more is asked than is needed"
            plan = select_now()
            if plan is not None:
                is_trial = self.state.cache.brokers.is_away(plan.booking.partition.broker_id)
                self.begun[plan.booking] = None if is_trial else self.loop.time()
            return plan

        async def take(plan):
            try:
                return await fetch(plan)
            finally:
                del self.begun[plan.booking]

        fetching.select_now, fetching.fetch = select, take

    def _fresh(self):
        return sum(
            began is not None and began + PATIENCE_S > self.loop.time() for began in self.begun.values()
        )

    def _run(self, coroutine):
        self.loop.run_until_complete(coroutine)
        self.loop.run_until_complete(settle())
        ended = [task for task in self.waiting if task.done()]
        self.waiting = [task for task in self.waiting if not task.done()]
        for task in ended:
            self._take(task)

    def _do(self, function, *arguments):
        async def call():
            function(*arguments)

        self._run(call())

    def _take(self, task):
        if task.cancelled():
            return
        error = task.exception()
        if error is REFUSAL:
            assert self.is_refused
        elif isinstance(error, RpcError):
            self.errors -= 1
            assert self.errors >= 0, "it was told twice"
        elif error is not None:
            assert isinstance(error, ConsumeError)
            assert self.is_closed
        elif (batch := task.result()) is not None:
            assert value_of(batch) == self.next[batch.partition]
            assert batch.partition not in {one.partition for one in self.out}, "it is in use"
            self.out.append(batch)

    @rule(seconds=st.sampled_from([None, None, 0, 0.1, 1]), patient=st.booleans())
    def fetch(self, seconds, patient):
        async def begin():
            self.waiting.append(self.consumer.fetch(seconds, patient=patient))

        self._run(begin())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data):
        self._do(data.draw(st.sampled_from(self.waiting)).cancel)

    @precondition(lambda self: self.consumer.asked)
    @rule(
        data=st.data(),
        what=st.sampled_from(["answer", "answer", "answer", "answer_nothing", "refuse", "time_out"]),
        ticks=st.integers(0, 5),
        gives_up=st.booleans(),
    )
    def answer(self, data, what, ticks, gives_up):
        """And the first one may give up in the moment in which the batch is given to it."""
        partition = data.draw(st.sampled_from(self.consumer.asked))
        self.errors += what == "refuse"

        async def act():
            getattr(self.consumer, what)(partition)
            for _ in range(ticks):
                await asyncio.sleep(0)
            if gives_up and self.waiting:
                self.waiting[0].cancel()

        self._run(act())

    @precondition(lambda self: self.out and not self.is_closed)
    @rule(data=st.data(), consumed=st.booleans())
    def confirm(self, data, consumed):
        batch = data.draw(st.sampled_from(self.out))
        self.out.remove(batch)

        async def end():
            await self.consumer.confirm(batch, consumed=consumed)
            self.next[batch.partition] += consumed

        self._run(end())

    @rule(partition=st.sampled_from(PLACES), is_paused=st.booleans())
    def pause_or_resume(self, partition, is_paused):
        cache = self.state.cache
        (cache.pause if is_paused else cache.resume)([partition])
        self._do(self.state.changes.note)

    @precondition(lambda self: not self.is_closed)
    @rule(partition=st.sampled_from(PLACES), number=st.integers(0, 9))
    def move(self, partition, number):
        async def move():
            if partition in self.state.connected:
                await self.consumer.fetching.seek(partition, number * ROW)
                self.next[partition] = number

        self.out = [batch for batch in self.out if batch.partition != partition]
        self._run(move())

    @precondition(lambda self: not self.is_closed)
    @rule(partition=st.sampled_from(PLACES))
    def give_up_or_come(self, partition):
        async def change():
            if partition in self.state.connected:
                await self.state.release_all([partition])
            else:
                self.consumer.add(partition, self.next[partition] * ROW)

        self.out = [batch for batch in self.out if batch.partition != partition]
        self._run(change())

    @rule(seconds=st.sampled_from([PATIENCE_S / 2, PATIENCE_S, 1, 20]))
    def wait(self, seconds):
        self._run(asyncio.sleep(seconds))

    @rule(is_refused=st.booleans())
    def refuse_or_take_in(self, is_refused):
        if is_refused != self.is_refused:
            self._do(self.state.changes.note)
            self.is_refused = is_refused
            self._do(self.state.changes.note)
            assert not (is_refused and self.waiting)

    @precondition(lambda self: not self.is_closed)
    @rule(is_the_time=st.integers(0, 9))
    def close(self, is_the_time):
        if not is_the_time:
            self.is_closed = True
            self._do(self.state.end)
            assert not self.waiting

    @invariant()
    def who_waits_has_a_fetch_if_there_can_be_one(self):
        if self.waiting:
            assert self._fresh() >= len(self.waiting) or self.state.cache._next_idle() is None

    @invariant()
    def what_is_booked_is_under_way_or_waits_to_be_taken(self):
        booked = set(self.state.cache.being_fetched())
        if self.waiting:
            assert booked <= set(self.begun), "a batch waits, and one waits for it"
        if self.is_closed:
            assert not self.waiting

    def teardown(self):
        """All that can come comes in the end."""
        if not (self.is_closed or self.is_refused):
            self.state.cache.resume()
            self._do(self.state.changes.note)
            self._drain()
        self.is_closed = True
        self._run(self.consumer.end())
        self.loop.close()

    def _drain(self):
        for _ in range(50):
            missing = set(self.state.connected) - {batch.partition for batch in self.out}
            if not missing:
                break
            while len(self.waiting) < len(PLACES):
                self.fetch(None, patient=False)
            for partition in self.consumer.asked:
                self._do(self.consumer.answer, partition)
            self.wait(20)
        assert not missing, self.state.cache.being_fetched()
        counts = collections.Counter(batch.partition for batch in self.out)
        assert set(counts.values()) <= {1}


LineAgrees.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
test_line = LineAgrees.TestCase


@in_virtual_time
async def test_waits_whose_time_is_over_leave_nothing_while_nothing_changes():
    changes = Changes()
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await changes.until(lambda: False)
    assert not changes._waiting
