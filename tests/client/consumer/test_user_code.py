"""Where functions of a consumer's user are called, and what becomes of what they raise.

Callbacks when partitions come and go: when they are called, what they may do, and what their errors do.
"""

import asyncio
import logging
import threading

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.assigned import ROW, TOPIC, numbered, partition, produce, take
from tests.client.members import client_of, member, refuse
from tests.client.ways import WAYS, only_direct, served
from tests.threads import refuse_threads
from tests.waiting import until, wait_until
from tubemq_spark.client.consumer.user_code import UserLoop, UserThread
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import ConsumeError, DataLossError
from tubemq_spark.protocol.constants import Method

ERRORS = [ValueError("no"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()]


def raising(error):
    def fail():
        raise error

    return fail


def threads_of(consumer):
    return sorted(thread.name for thread in threading.enumerate() if thread.name.endswith(consumer))


@pytest.fixture
def user_thread():
    thread = UserThread()
    thread.name = "etl_user"
    yield thread
    asyncio.run(thread.end())
    wait_until(lambda: not threads_of("etl_user"))


async def test_a_thread_is_started_for_the_first_function_and_calls_one_after_the_other(user_thread):
    assert not threads_of("etl_user")
    called = []
    await asyncio.gather(
        *(user_thread.call("on_assigned", lambda number=number: called.append(number)) for number in range(9))
    )
    assert called == list(range(9))
    assert threads_of("etl_user") == ["tubemq-callbacks-etl_user"]


async def test_losses_do_not_wait_for_other_functions(user_thread):
    goes_on = threading.Event()
    waiting = asyncio.ensure_future(user_thread.call("on_assigned", lambda: goes_on.wait(20)))
    await user_thread.call("on_loss", lambda: None)
    assert not waiting.done()
    goes_on.set()
    await waiting


@pytest.mark.parametrize("error", ERRORS, ids=repr)
async def test_what_a_function_raises_is_passed_on(user_thread, error):
    outcomes = await asyncio.gather(passed_on(user_thread, error), user_thread.call("on_loss", lambda: None))
    assert outcomes == [error, None]


async def passed_on(user_code, error):
    try:
        await user_code.call("on_loss", raising(error))
    except BaseException as raised:  # noqa: BLE001
        return raised


@pytest.mark.parametrize("error", [StopIteration("at its end"), StopAsyncIteration()], ids=repr)
async def test_the_end_of_an_iterator_is_an_error_as_others(user_thread, error):
    """A future cannot have it as its outcome."""
    with pytest.raises(Exception) as raised:  # noqa: PT011
        await user_thread.call("on_loss", raising(error))
    assert error in (raised.value, raised.value.__cause__)
    await user_thread.call("on_loss", lambda: None)


async def test_a_caller_that_is_cancelled_lets_the_function_end(user_thread):
    goes_on, ended = threading.Event(), threading.Event()

    def work():
        goes_on.wait(20)
        ended.set()

    calling = asyncio.ensure_future(user_thread.call("on_revoked", work))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    goes_on.set()
    await user_thread.call("on_revoked", lambda: None)
    assert ended.is_set()


async def test_coroutine_functions_are_called_in_the_loop_one_after_the_other():
    user_loop, called = UserLoop(), []

    async def first():
        await asyncio.sleep(0.01)
        called.append(asyncio.get_running_loop())

    await asyncio.gather(
        user_loop.call("on_assigned", first), user_loop.call("on_revoked", lambda: called.append("next"))
    )
    assert called == [asyncio.get_running_loop(), "next"]
    with pytest.raises(ValueError, match="no"):
        await user_loop.call("on_loss", raising(ValueError("no")))


async def test_a_task_that_a_function_has_begun_counts_as_the_function():
    user_loop, said = UserLoop(), []

    async def look():
        said.append(user_loop.is_current())

    async def begin():
        await asyncio.ensure_future(look())

    await user_loop.call("on_assigned", begin)
    await look()
    assert said == [True, False]


@in_virtual_time
async def test_a_function_that_takes_long_is_named_once(caplog):
    caplog.set_level(logging.WARNING)
    user_loop = UserLoop()
    user_loop.name = "etl_1"
    await user_loop.call("on_loss", lambda: asyncio.sleep(9))
    assert not caplog.records
    await user_loop.call("on_loss", lambda: asyncio.sleep(3_600))
    assert [record.getMessage() for record in caplog.records] == [
        "on_loss of etl_1 has not returned for 10 s, and holds up its consumer"
    ]


async def test_functions_that_wait_are_called_also_when_the_consumer_ends(user_thread):
    goes_on, called = threading.Event(), []
    calls = [
        asyncio.ensure_future(user_thread.call("on_revoked", call))
        for call in (lambda: goes_on.wait(20), lambda: called.append(1))
    ]
    await asyncio.sleep(0)
    await user_thread.end()
    goes_on.set()
    await asyncio.gather(*calls)
    assert called == [1]
    await until(lambda: not threads_of("etl_user"))


PLACES = {partition(broker, number) for broker in (1, 2) for number in (0, 10_000)}


server = served(stores=2, brokers=2, ways=WAYS, balance_period_ms=100, max_entries=10)


class Log:
    """What callbacks were told, and which partitions are there by that."""

    def __init__(self):
        self.calls = []
        self.here = set()
        self.threads = set()

    def assigned(self, partitions):
        assert not self.here & set(partitions)
        self.here |= set(partitions)
        self.calls.append(("assigned", partitions))
        self.threads.add(threading.current_thread())

    def revoked(self, partitions):
        assert set(partitions) <= self.here
        self.here -= set(partitions)
        self.calls.append(("revoked", partitions))


def listening(client, log, **more):
    return client.group_consumer(TOPIC, on_assigned=log.assigned, on_revoked=log.revoked, **more)


def test_partitions_come_and_go_with_other_members_and_the_end(server):
    first, second = Log(), Log()
    with client_of(server) as client:
        with listening(client, first) as consumer:
            wait_until(lambda: first.here == PLACES, 20)
            assert all(kind == "assigned" for kind, _ in first.calls)
            with listening(client, second):
                wait_until(lambda: len(first.here) == len(second.here) == 2, 20)
                assert first.here | second.here == PLACES
                wait_until(lambda: set(consumer.connected) == first.here, 20)
            assert second.here == set(), "its end is told before close returns"
            wait_until(lambda: first.here == PLACES, 20)
        assert first.here == set()
    assert threading.current_thread() not in first.threads


def test_no_message_comes_before_its_partition_was_told(server):
    for place in PLACES:
        produce(server, numbered(10), where=place)
    log, goes_on = Log(), threading.Event()

    def assigned(partitions):
        assert goes_on.wait(20)
        log.assigned(partitions)

    with client_of(server) as client, client.group_consumer(TOPIC, on_assigned=assigned) as consumer:
        wait_until(lambda: consumer.connected, 20)
        assert consumer.fetch(300) is None
        goes_on.set()
        values = []
        while len(values) < 40:
            batch = consumer.fetch(5_000)
            assert batch.partition in log.here
            values += batch.records
            consumer.confirm(batch)


@only_direct
def test_a_callback_may_say_where_its_partitions_begin(server):
    for place in PLACES:
        produce(server, numbered(30), where=place)

    def assigned(partitions):
        for place in partitions:
            consumer.seek(place, 20 * ROW)

    with client_of(server) as client:
        consumer = client.group_consumer(TOPIC, on_assigned=assigned)
        with consumer:
            assert sorted(take(consumer, 40)) == sorted(numbered(10, 20) * 4)
            assert consumer.lag() == dict.fromkeys(PLACES, 0)


@only_direct
def test_a_partition_is_given_up_only_when_that_was_told(server):
    log, goes_on = Log(), threading.Event()

    def revoked(partitions):
        assert goes_on.wait(20)
        assert set(partitions) <= set(consumer.connected)
        log.revoked(partitions)

    with client_of(server) as client:
        consumer = client.group_consumer(TOPIC, on_assigned=log.assigned, on_revoked=revoked)
        with consumer:
            wait_until(lambda: log.here == PLACES, 20)
            with member(server) as other:
                wait_until(lambda: consumer._core._rebalancing._under_way and not log.calls[1:], 20)
                assert not other.wait_until_ready(500)
                goes_on.set()
                assert other.wait_until_ready(20_000)
                assert set(other.connected) <= PLACES - log.here


@only_direct
def test_what_was_lost_is_told_behind_that(server):
    log = Log()
    with client_of(server) as client, listening(client, log):
        wait_until(lambda: log.here == PLACES, 20)
        refuse(server)
        wait_until(lambda: log.here == set(), 20)


@only_direct
def test_a_partition_that_is_given_up_for_a_loss_is_told(server):
    produce(server, numbered(30), where=partition(1))
    log = Log()
    with client_of(server) as client, listening(client, log) as consumer:
        assert take(consumer, 10) == numbered(10)
        server.faults.apply_retention(TOPIC)
        with pytest.raises(DataLossError):
            consumer.fetch(20_000)
        wait_until(lambda: ("revoked", (partition(1),)) in log.calls, 20)
        wait_until(lambda: log.here == PLACES, 20)


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_an_error_of_a_callback_is_told_by_the_next_fetch(server, name, raised):
    calls = []

    def fail(partitions):
        calls.append(partitions)
        if len(calls) == 1:
            raise raised("the database is away")

    with client_of(server) as client, client.group_consumer(TOPIC, **{name: fail}) as consumer:
        if name == "on_revoked":
            wait_until(lambda: set(consumer.connected) == PLACES, 20)
            with member(server) as other:
                assert other.wait_until_ready(20_000), "partitions go all the same"
                error = failed(consumer)
        else:
            error = failed(consumer)
            if not getattr(server, "gateways", ()):
                wait_until(lambda: len(calls) > 1, 20)  # they were given up, and come again
            wait_until(lambda: set(consumer.connected) == PLACES, 20)
        assert error.condition == "TUBEMQ_CALLBACK_FAILED"
        assert isinstance(error.__cause__, raised)
        assert f"{name} raised {raised.__name__}('the database is away') for {calls[0][0]}" in str(error)


@only_direct
def test_a_callback_that_exits_stops_no_heartbeats_of_others(server):
    def leave(_):
        raise SystemExit

    settings = EmbeddedSettings(balance_period_ms=100)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=settings) as other,
        client_of(server) as client,
        client.group_consumer(TOPIC, on_assigned=leave) as consumer,
        member(other) as sound,
    ):
        assert failed(consumer).condition == "TUBEMQ_CALLBACK_FAILED"
        assert sound.wait_until_ready(20_000)
        methods = (Method.CONSUMER_HEARTBEAT, Method.PARTITION_HEARTBEAT)
        beats = [other.faults.delay(method, 0) for method in methods]
        wait_until(lambda: all(beat.hits for beat in beats), 20)
        assert consumer.close(20)


@only_direct
def test_a_callback_for_which_no_thread_starts_is_told_and_called_when_they_come_again(server, monkeypatch):
    refused = refuse_threads(monkeypatch, "tubemq-callbacks-", times=1)
    log = Log()
    with client_of(server) as client, client.group_consumer(TOPIC, on_assigned=log.assigned) as consumer:
        assert "can't start new thread" in str(failed(consumer))
        wait_until(lambda: log.here == PLACES, 20)
    assert len(refused) == 1


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_a_callback_may_close_its_consumer_which_it_does_not_wait_for(server, name):
    said = []
    with client_of(server) as client:
        consumer = client.group_consumer(TOPIC, **{name: lambda _: said.append(consumer.close())})
        consumer.open()
        wait_until(lambda: said or (name == "on_revoked" and len(consumer.connected) == len(PLACES)), 20)
        assert consumer.close(20) is True
        assert said[0] is False
        assert consumer.closed
        with member(server) as other:
            wait_until(lambda: set(other.connected) == PLACES, 20)


def failed(consumer):
    with pytest.raises(ConsumeError) as error:
        consumer.fetch(20_000)
    return error.value
