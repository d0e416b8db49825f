"""Who holds what: clients share what is scarce, wait their turn, and nothing that ends is refused."""

import asyncio
import collections
import contextlib
import threading

import pytest
from hypothesis import given, settings, strategies as st

from tests.waiting import until
from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.admission import (
    Admission,
    Owner,
    Room,
    Stop,
    StoppedError,
    Turns,
    host_of,
)
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint

ANN, BOB, CAT = Owner("ann", "1"), Owner("bob", "1"), Owner("cat", "1")


class Line:
    """Asks a room for amounts, and notes who was granted some, in order."""

    def __init__(self, room):
        self.room = room
        self.granted = []

    def ask(self, who, amount=1):
        wanted = self.room.ask(who, amount, lambda: self.granted.append(who))
        if wanted.granted:
            self.granted.append(who)
        return wanted


# Rooms.


def test_what_there_is_is_granted_at_once_and_nothing_beyond_it():
    room = Room(10)
    assert room.take(ANN, 5)
    assert room.take(BOB, 5)
    assert not room.take(CAT, 1)
    room.give(ANN, 5)
    assert room.take(CAT, 1)
    assert room.used == 6


def test_a_session_has_a_limit_of_its_own():
    room = Room(100, per_session=10)
    assert room.take(ANN, 6)
    assert not room.take(ANN, 5)
    assert room.take(Owner("ann", "2"), 5)


def test_an_amount_larger_than_the_room_is_let_in_alone():
    room = Room(10, per_session=5)
    assert room.take(ANN, 100)
    assert not room.take(BOB, 1)
    room.give(ANN, 100)
    assert room.take(BOB, 1)


def test_a_client_leaves_the_last_eighth_to_others():
    room = Room(80)
    sessions = [Owner("ann", str(number)) for number in range(80)]
    assert sum(room.take(session) for session in sessions) == 70
    assert sum(room.take(BOB) for _ in range(80)) == 10


def test_while_others_wait_a_client_gets_no_more_than_half():
    room = Room(16)
    assert room.take(ANN, 8)
    assert room.take(BOB, 8)
    line = Line(room)
    line.ask(ANN)
    line.ask(CAT)
    room.give(BOB, 3)
    assert line.granted == [CAT]
    # No other waits now; the last eighth stays free.
    room.give(BOB)
    assert line.granted == [CAT, ANN]


def test_clients_take_turns_whatever_they_ask_for():
    room = Room(1)
    assert room.take(CAT)
    line = Line(room)
    for _ in range(5):
        line.ask(ANN)
    line.ask(BOB)
    line.ask(BOB)
    room.give(CAT)
    while room.waiting:
        room.give(line.granted[-1])
    assert line.granted == [ANN, BOB, ANN, BOB, ANN, ANN, ANN]


def test_the_sessions_of_a_client_take_turns():
    room = Room(1)
    assert room.take(CAT)
    line = Line(room)
    first, second = Owner("ann", "1"), Owner("ann", "2")
    for who in (first, first, first, second):
        line.ask(who)
    room.give(CAT)
    while room.waiting:
        room.give(line.granted[-1])
    assert line.granted == [first, second, first, first]


def test_a_small_amount_does_not_overtake_a_large_one():
    room = Room(10)
    assert room.take(ANN, 8)
    line = Line(room)
    line.ask(BOB, 5)
    assert not room.take(CAT, 1)
    room.give(ANN, 8)
    assert line.granted == [BOB]


def test_a_session_at_its_limit_does_not_hold_up_others():
    room = Room(100, per_session=10)
    assert room.take(ANN, 10)
    line = Line(room)
    line.ask(ANN, 1)
    assert room.take(Owner("ann", "2"), 10)
    assert room.take(BOB, 10)
    room.give(ANN, 10)
    assert line.granted == [ANN]


def test_who_stands_behind_gets_its_turn_when_the_first_waits_no_longer():
    room = Room(10)
    assert room.take(ANN, 6)
    line = Line(room)
    large = line.ask(BOB, 8)
    line.ask(CAT, 4)
    assert line.granted == []
    assert not room.withdraw(large)
    assert line.granted == [CAT]


def test_a_withdrawal_that_comes_too_late_says_so():
    room = Room(1)
    assert room.take(ANN)
    wanted = Line(room).ask(BOB)
    room.give(ANN)
    assert room.withdraw(wanted)
    room.give(BOB)
    assert room.used == 0


def test_a_client_that_asks_in_vain_keeps_its_turn():
    room = Room(1)
    assert room.take(CAT)
    line = Line(room)
    line.ask(ANN)
    line.ask(BOB)
    assert not room.take(ANN)
    room.give(CAT)
    assert line.granted == [ANN]


def test_only_others_press():
    room = Room(10, per_session=5)
    assert room.take(ANN, 5)
    Line(room).ask(ANN, 1)
    assert not room.pressed(ANN)
    assert room.take(BOB, 5)
    Line(room).ask(CAT, 1)
    assert room.pressed(ANN)


def test_a_look_waits_until_there_is_room_and_takes_none():
    async def scenario():
        room = Room(10)
        assert room.take(ANN, 8)
        look = asyncio.ensure_future(room.look(ANN, 4))
        await asyncio.sleep(0)
        assert room.waiting == 1
        room.give(ANN, 3)
        await asyncio.wait_for(look, 10)
        assert (room.used, room.waiting) == (5, 0)

    asyncio.run(scenario())


def test_giving_back_what_was_not_taken_is_a_mistake():
    with pytest.raises(KeyError):
        Room(1).give(ANN)


def test_when_to_come_again_follows_from_how_many_wait_and_how_fast_they_go():
    now = 0.0
    room = Room(1, clock=lambda: now)
    assert room.take(ANN)
    for _ in range(40):
        Line(room).ask(BOB)
    for _ in range(39):
        now += 0.5
        room.give(ANN if room.waiting == 40 else BOB)
    short = room.retry_after_ms
    assert 900 <= short <= 1_100
    for _ in range(20):
        Line(room).ask(BOB)
    assert 10 * short <= room.retry_after_ms <= 12 * short


def test_when_to_come_again_is_neither_at_once_nor_never():
    now = 0.0
    room = Room(1, clock=lambda: now)
    assert room.retry_after_ms == 100
    assert room.take(ANN)
    room.give(ANN)
    assert room.retry_after_ms == 100, "it goes fast"
    now += 8.0
    assert room.retry_after_ms == 1_000, "and nothing is given back any more"
    now += 1_000.0
    assert room.retry_after_ms == 30_000


def test_what_was_granted_to_a_coroutine_that_is_cancelled_is_given_back():
    async def scenario():
        room = Room(1)
        assert room.take(ANN)
        waiting = asyncio.create_task(room.enter(BOB))
        await until(lambda: room.waiting == 1)
        room.give(ANN)
        assert room.used == 1, "it is granted, and does not know"
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert room.used == 0

    asyncio.run(scenario())


amounts = st.tuples(st.sampled_from([ANN, BOB, Owner("ann", "2")]), st.integers(1, 20))


@given(st.lists(st.one_of(amounts, st.integers(0, 30)), max_size=60))
@settings(max_examples=100)
def test_the_limits_hold_and_nobody_waits_for_nothing(steps):
    room, asked, told = Room(16, per_session=8), [], []
    for step in steps:
        if isinstance(step, tuple):
            who, amount = step
            before = len(told)
            asked.append((who, amount, room.ask(who, amount, lambda who=who: told.append(who))))
            assert len(told) == before, "another one had waited although there was room"
        elif asked:
            who, amount, wanted = asked.pop(step % len(asked))
            if room.withdraw(wanted):
                room.give(who, amount)
        held = [(who, amount) for who, amount, wanted in asked if wanted.granted]
        assert room.used == sum(amount for _, amount in held)
        assert room.used <= 16 or len(held) == 1
        assert room.waiting == len(asked) - len(held)
        by_session = collections.Counter()
        for who, amount in held:
            by_session[who] += amount
        for who, amount in by_session.items():
            assert amount <= 8 or sum(one is who for one, _ in held) == 1
        assert held or not asked
    for who, amount, wanted in asked:
        if room.withdraw(wanted):
            room.give(who, amount)
    assert (room.used, room.waiting) == (0, 0)


# Turns.


def run(scenario, *, threads=2, waiting=1, patience_s=5.0):
    """Run a scenario with turns, and a gate that their work waits for."""
    gate = threading.Event()

    async def whole():
        turns = Turns("reads", threads, Room(waiting), patience_s, "g1")
        try:
            return await scenario(turns, gate)
        finally:
            gate.set()
            assert await turns.close(5) == 0

    return asyncio.run(whole())


def test_a_call_that_finds_no_thread_and_no_place_to_wait_is_refused_at_once():
    async def scenario(turns, gate):
        tasks = [asyncio.create_task(turns.run(gate.wait, ANN)) for _ in range(3)]
        await until(lambda: turns.running == 2 and turns.waiting == 1)
        with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_BUSY") as refused:
            await turns.run(gate.wait, BOB)
        gate.set()
        assert await asyncio.gather(*tasks) == [True] * 3
        assert refused.value.parameters["retry_after_ms"] > 0

    run(scenario)


def test_a_call_waits_no_longer_than_its_client():
    async def scenario(turns, gate):
        first = asyncio.create_task(turns.run(gate.wait, ANN))
        await until(lambda: turns.running == 1)
        with pytest.raises(GatewayError, match=r"none of its 1 reads was free within 0.01 s"):
            await turns.run(gate.wait, BOB, 0.01)
        gate.set()
        assert await first
        assert await turns.run(lambda: "served", BOB) == "served"

    run(scenario, threads=1)


def test_a_cancelled_call_keeps_its_thread_until_that_has_ended():
    async def scenario(turns, gate):
        cancelled = asyncio.create_task(turns.run(gate.wait, ANN))
        await until(lambda: turns.running == 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert turns.running == 1
        with pytest.raises(GatewayError):
            await turns.run(gate.wait, BOB)
        gate.set()
        await until(lambda: turns.running == 0)
        assert await turns.run(lambda: 1, BOB) == 1

    run(scenario, threads=1, patience_s=0.01)


def test_a_call_cancelled_while_it_waits_leaves_no_trace():
    async def scenario(turns, gate):
        first = asyncio.create_task(turns.run(gate.wait, ANN))
        await until(lambda: turns.running == 1)
        for _ in range(3):
            waiting = asyncio.create_task(turns.run(gate.wait, BOB))
            await until(lambda: turns.waiting == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        gate.set()
        assert await first
        await until(lambda: turns.running == 0)

    run(scenario, threads=1)


def test_an_error_of_the_work_is_the_callers_and_frees_the_thread():
    async def scenario(turns, _):
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await turns.run(lambda: 1 // 0, ANN)
        await until(lambda: turns.running == 0)

    run(scenario)


def test_closing_does_not_wait_for_ever():
    async def scenario(turns, gate):
        stuck = asyncio.create_task(turns.run(gate.wait, ANN))
        await until(lambda: turns.running == 1)
        assert await turns.close(0.01) == 1
        gate.set()
        assert await stuck

    run(scenario)


def test_what_a_thread_waits_for_ends_with_its_call():
    async def scenario(turns, _):
        stop = Stop()
        work = asyncio.create_task(turns.run(lambda: stop.pause(1_000_000), ANN))
        await until(lambda: turns.running == 1)
        stop.set()
        with pytest.raises(StoppedError):
            await work
        with pytest.raises(StoppedError):
            stop.check()

    run(scenario)


# A whole gateway.

MIB = 1 << 20


def admitting(scenario, **settings):
    async def whole():
        masters = (Endpoint("m", 8715),)
        admission = Admission(GatewaySettings(master_servers=masters, node_name="g1", **settings))
        try:
            await scenario(admission)
        finally:
            assert await admission.close(5) == 0

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("total", "longest", "of_one", "in_all"), [(64, 1, 4, 16), (64, 4, 1, 4), (8, 1, 1, 2), (1, 4, 1, 1)]
)
def test_a_quarter_of_the_bytes_is_for_what_comes_and_a_quarter_of_that_for_one_session(
    total, longest, of_one, in_all
):
    async def scenario(admission):
        async with contextlib.AsyncExitStack() as stack:

            async def come(who):
                try:
                    await stack.enter_async_context(admission.receiving(who, 0.0))
                except GatewayError:
                    return 0
                return 1

            owners = [Owner(f"client {number}", "1") for number in range(in_all + 1)]
            assert sum([await come(owners[0]) for _ in range(of_one + 1)]) == of_one
            assert sum([await come(who) for who in owners[1:] for _ in range(of_one)]) == in_all - of_one

    admitting(scenario, total_bytes=total * MIB, session_bytes=total * MIB, max_message_bytes=longest * MIB)


def test_bytes_are_waited_for_as_long_as_the_settings_and_the_client_want():
    async def scenario(admission):
        async with admission.holding(ANN, 2 * MIB):
            for patience_s in (None, 86_400.0):
                with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_BUSY"):
                    async with admission.holding(ANN, MIB, patience_s):
                        pytest.fail("it holds more than there is room for")
        async with admission.holding(ANN, MIB):
            assert admission.bytes.used == MIB
        assert admission.bytes.used == 0

    admitting(scenario, queue_ms=10, total_bytes=2 * MIB, session_bytes=2 * MIB)


def test_a_client_without_a_policy_is_its_host():
    assert host_of("ipv4:10.0.0.7:43210") == "ipv4:10.0.0.7"
    assert host_of("ipv6:[::ffff:10.0.0.7]:43210") == "ipv6:[::ffff:10.0.0.7]"
    assert host_of("unix") == "unix"


def test_all_addresses_of_a_network_of_64_bits_are_one_host():
    peers = ("ipv6:[2001:db8:1:2::7]:43210", "ipv6:[2001:db8:1:2:ffff::1]:9", "ipv6:%5B2001:db8:1:2::8%5D:9")
    assert {host_of(peer) for peer in peers} == {"ipv6:2001:db8:1:2::/64"}
    assert host_of("ipv6:[2001:db8:1:3::7]:43210") == "ipv6:2001:db8:1:3::/64"
