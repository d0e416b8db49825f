"""Quotas: clients share what is scarce, in rotation, and none waits for what there is."""

import asyncio
import collections

import pytest
from hypothesis import given, settings, strategies as st

from tests.waiting import until
from tubemq_spark.gateway.admission import host_of
from tubemq_spark.net.fair_quota import FairQuota, Owner

ANN, BOB, CAT = Owner("ann", "1"), Owner("bob", "1"), Owner("cat", "1")


class Line:
    """Asks a quota for amounts, and notes who was granted some, in order."""

    def __init__(self, quota):
        self.quota = quota
        self.granted = []

    def ask(self, who, amount=1):
        waiter = self.quota.reserve(who, amount, lambda: self.granted.append(who))
        if waiter.granted:
            self.granted.append(who)
        return waiter


def test_what_there_is_is_granted_at_once_and_nothing_beyond_it():
    quota = FairQuota(10)
    assert quota.take(ANN, 5)
    assert quota.take(BOB, 5)
    assert not quota.take(CAT, 1)
    quota.give(ANN, 5)
    assert quota.take(CAT, 1)
    assert quota.used == 6


def test_a_session_has_a_limit_of_its_own():
    quota = FairQuota(100, per_session=10)
    assert quota.take(ANN, 6)
    assert not quota.take(ANN, 5)
    assert quota.take(Owner("ann", "2"), 5)


def test_an_amount_larger_than_the_room_is_let_in_alone():
    quota = FairQuota(10, per_session=5)
    assert quota.take(ANN, 100)
    assert not quota.take(BOB, 1)
    quota.give(ANN, 100)
    assert quota.take(BOB, 1)


def test_a_client_leaves_the_last_eighth_to_others():
    quota = FairQuota(80)
    sessions = [Owner("ann", str(number)) for number in range(80)]
    assert sum(quota.take(session) for session in sessions) == 70
    assert sum(quota.take(BOB) for _ in range(80)) == 10


def test_while_others_wait_a_client_gets_no_more_than_half():
    quota = FairQuota(16)
    assert quota.take(ANN, 8)
    assert quota.take(BOB, 8)
    line = Line(quota)
    line.ask(ANN)
    line.ask(CAT)
    quota.give(BOB, 3)
    assert line.granted == [CAT]
    # No other waits now; the last eighth stays free.
    quota.give(BOB)
    assert line.granted == [CAT, ANN]


def test_clients_take_turns_whatever_they_ask_for():
    quota = FairQuota(1)
    assert quota.take(CAT)
    line = Line(quota)
    for _ in range(5):
        line.ask(ANN)
    line.ask(BOB)
    line.ask(BOB)
    quota.give(CAT)
    while quota.waiting:
        quota.give(line.granted[-1])
    assert line.granted == [ANN, BOB, ANN, BOB, ANN, ANN, ANN]


def test_the_sessions_of_a_client_take_turns():
    quota = FairQuota(1)
    assert quota.take(CAT)
    line = Line(quota)
    first, second = Owner("ann", "1"), Owner("ann", "2")
    for who in (first, first, first, second):
        line.ask(who)
    quota.give(CAT)
    while quota.waiting:
        quota.give(line.granted[-1])
    assert line.granted == [first, second, first, first]


def test_a_small_amount_does_not_overtake_a_large_one():
    quota = FairQuota(10)
    assert quota.take(ANN, 8)
    line = Line(quota)
    line.ask(BOB, 5)
    assert not quota.take(CAT, 1)
    quota.give(ANN, 8)
    assert line.granted == [BOB]


def test_a_session_at_its_limit_does_not_hold_up_others():
    quota = FairQuota(100, per_session=10)
    assert quota.take(ANN, 10)
    line = Line(quota)
    line.ask(ANN, 1)
    assert quota.take(Owner("ann", "2"), 10)
    assert quota.take(BOB, 10)
    quota.give(ANN, 10)
    assert line.granted == [ANN]


def test_who_stands_behind_gets_its_turn_when_the_first_waits_no_longer():
    quota = FairQuota(10)
    assert quota.take(ANN, 6)
    line = Line(quota)
    large = line.ask(BOB, 8)
    line.ask(CAT, 4)
    assert line.granted == []
    assert not quota.withdraw(large)
    assert line.granted == [CAT]


def test_a_withdrawal_that_comes_too_late_says_so():
    quota = FairQuota(1)
    assert quota.take(ANN)
    waiter = Line(quota).ask(BOB)
    quota.give(ANN)
    assert quota.withdraw(waiter)
    quota.give(BOB)
    assert quota.used == 0


def test_a_client_that_asks_in_vain_keeps_its_turn():
    quota = FairQuota(1)
    assert quota.take(CAT)
    line = Line(quota)
    line.ask(ANN)
    line.ask(BOB)
    assert not quota.take(ANN)
    quota.give(CAT)
    assert line.granted == [ANN]


def test_only_others_press():
    quota = FairQuota(10, per_session=5)
    assert quota.take(ANN, 5)
    Line(quota).ask(ANN, 1)
    assert not quota.pressed(ANN)
    assert quota.take(BOB, 5)
    Line(quota).ask(CAT, 1)
    assert quota.pressed(ANN)


async def test_a_look_waits_until_there_is_room_and_takes_none():
    quota = FairQuota(10)
    assert quota.take(ANN, 8)
    look = asyncio.ensure_future(quota.await_room(ANN, 4))
    await asyncio.sleep(0)
    assert quota.waiting == 1
    quota.give(ANN, 3)
    await asyncio.wait_for(look, 10)
    assert (quota.used, quota.waiting) == (5, 0)


def test_giving_back_what_was_not_taken_is_a_mistake():
    with pytest.raises(KeyError):
        FairQuota(1).give(ANN)


def test_when_to_come_again_follows_from_how_many_wait_and_how_fast_they_go():
    now = 0.0
    quota = FairQuota(1, clock=lambda: now)
    assert quota.take(ANN)
    for _ in range(40):
        Line(quota).ask(BOB)
    for _ in range(39):
        now += 0.5
        quota.give(ANN if quota.waiting == 40 else BOB)
    short = quota.retry_after_ms
    assert 900 <= short <= 1_100
    for _ in range(20):
        Line(quota).ask(BOB)
    assert 10 * short <= quota.retry_after_ms <= 12 * short


def test_when_to_come_again_is_neither_at_once_nor_never():
    now = 0.0
    quota = FairQuota(1, clock=lambda: now)
    assert quota.retry_after_ms == 100
    assert quota.take(ANN)
    quota.give(ANN)
    assert quota.retry_after_ms == 100, "it goes fast"
    now += 8.0
    assert quota.retry_after_ms == 1_000, "and nothing is given back any more"
    now += 1_000.0
    assert quota.retry_after_ms == 30_000


async def test_what_was_granted_to_a_coroutine_that_is_cancelled_is_given_back():
    quota = FairQuota(1)
    assert quota.take(ANN)
    waiting = asyncio.create_task(quota.acquire(BOB))
    await until(lambda: quota.waiting == 1)
    quota.give(ANN)
    assert quota.used == 1, "it is granted, and does not know"
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert quota.used == 0


amounts = st.tuples(st.sampled_from([ANN, BOB, Owner("ann", "2")]), st.integers(1, 20))


@given(st.lists(st.one_of(amounts, st.integers(0, 30)), max_size=60))
@settings(max_examples=100)
def test_the_limits_hold_and_no_owner_waits_without_need(steps):
    quota, requests, served = FairQuota(16, per_session=8), [], []
    for step in steps:
        if isinstance(step, tuple):
            who, amount = step
            before = len(served)
            requests.append((who, amount, quota.reserve(who, amount, lambda who=who: served.append(who))))
            assert len(served) == before, "another one had waited although there was room"
        elif requests:
            who, amount, waiter = requests.pop(step % len(requests))
            if quota.withdraw(waiter):
                quota.give(who, amount)
        granted = [(who, amount) for who, amount, waiter in requests if waiter.granted]
        assert quota.used == sum(amount for _, amount in granted)
        assert quota.used <= 16 or len(granted) == 1
        assert quota.waiting == len(requests) - len(granted)
        by_session = collections.Counter()
        for who, amount in granted:
            by_session[who] += amount
        for who, amount in by_session.items():
            assert amount <= 8 or sum(owner is who for owner, _ in granted) == 1
        assert granted or not requests
    for who, amount, waiter in requests:
        if quota.withdraw(waiter):
            quota.give(who, amount)
    assert (quota.used, quota.waiting) == (0, 0)


def test_a_client_without_a_policy_is_its_host():
    assert host_of("ipv4:10.0.0.7:43210") == "ipv4:10.0.0.7"
    assert host_of("ipv6:[::ffff:10.0.0.7]:43210") == "ipv6:[::ffff:10.0.0.7]"
    assert host_of("unix") == "unix"


def test_all_addresses_of_a_network_of_64_bits_are_one_host():
    peers = ("ipv6:[2001:db8:1:2::7]:43210", "ipv6:[2001:db8:1:2:ffff::1]:9", "ipv6:%5B2001:db8:1:2::8%5D:9")
    assert {host_of(peer) for peer in peers} == {"ipv6:2001:db8:1:2::/64"}
    assert host_of("ipv6:[2001:db8:1:3::7]:43210") == "ipv6:2001:db8:1:3::/64"
