"""The window's promises, in virtual time: at least once or an error, bounds, order, pauses."""

import asyncio
import collections
import re
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from testkit.virtual_loop import in_virtual_time
from tests.client.virtual_brokers import GOOD, Fate, VirtualBrokers
from tubemq_spark.client.producer.runs import Run
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.send_connection import SendConnection

OVERFLOW = Fate(stored=False, code=419)
TOKEN = Fate(stored=False, code=415)
LOST = Fate(lost=True)
LOST_BEFORE = Fate(stored=False, lost=True)
SILENT = Fate(answered=False)
FATES = [
    GOOD,
    Fate(delay_s=0.03),
    OVERFLOW,
    Fate(stored=False, code=503),
    Fate(code=500),
    LOST,
    LOST_BEFORE,
    SILENT,
    Fate(stored=False, answered=False),
    Fate(delay_s=0.7),
    Fate(stored=False, code=403),
    Fate(unreachable=True, lost=True),
]
"""What brokers and networks do; a message stored with code 500 happens (audit), so it is here too."""
SOME_FATES = st.lists(st.sampled_from(FATES), max_size=60)
ALWAYS = 1_000
FROZEN = 2


def run(
    fates: Sequence[Fate], brokers: int = 1, partitions: int = 1, **settings: int | bool
) -> tuple[VirtualBrokers, SendWindow]:
    """Return a window over brokers that follow ``fates`` request by request, then behave."""
    net = VirtualBrokers(lambda number: fates[number] if number < len(fates) else GOOD, brokers, partitions)
    return net, net.window(**settings)


def now() -> float:
    return asyncio.get_running_loop().time()


def after(seconds: float, call, *arguments: object) -> None:
    asyncio.get_running_loop().call_later(seconds, call, *arguments)


async def submit(window: SendWindow, message: Run) -> None:
    await window.room(message.batch.ends)
    window.submit([message])


async def send_all(net: VirtualBrokers, window: SendWindow, count: int, key: bytes | None = None):
    """Send messages one by one, and wait until they are stored."""
    values = [b"%d" % number for number in range(count)]
    for value in values:
        await submit(window, net.message(value, key))
    await window.flush()
    return values


async def send_each_keyed(net: VirtualBrokers, window: SendWindow, count: int) -> None:
    for number in range(count):
        await submit(window, net.message(b"%d" % number, b"%d" % number))


def values_of(net: VirtualBrokers) -> list[bytes]:
    return [value for _, value in net.stored]


async def check_broken(net: VirtualBrokers, window: SendWindow) -> None:
    requests = net.requests
    for use in (window.room([0, 1]), window.flush()):
        with pytest.raises(ProduceError) as again:
            await use
        assert again.value is window.error
    assert all(stream.closed for stream in net.streams)
    await asyncio.sleep(100)
    assert net.requests == requests, "nothing is sent after the first error"


def assert_receipts(net: VirtualBrokers, window: SendWindow, bodies: Sequence[bytes]) -> None:
    """Assert that receipts and counts tell what brokers were given, and what they stored."""
    receipts = [one.receipt() for one in net.partitioner.targets]
    assert sum(one.count for one in receipts) == len(bodies)
    assert sum(one.retried for one in receipts) == sum(n > 1 for n in net.attempts.values())
    assert sum(one.bytes for one in receipts) == sum(map(len, bodies))
    assert sum(one.checksum or 0 for one in receipts) == sum(map(zlib.crc32, bodies))
    assert len(net.stored) - len(bodies) <= sum(one.unanswered for one in receipts)
    assert window.retried == sum(net.attempts.values()) - len(bodies)
    assert window.unacknowledged == 0
    for link in net.links.all:
        assert (link.held, link.held_bytes, len(link.connection)) == (0, 0, 0)
        assert (link.waiting, link.waiting_bytes) == (0, 0)


@settings(deadline=None)
@given(
    fates=SOME_FATES,
    counts=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    max_in_flight=st.integers(1, 100),
    brokers=st.integers(1, 3),
    delivery_ms=st.sampled_from([1, 100, 2_000, 600_000]),
    one_by_one=st.booleans(),
)
@in_virtual_time
async def test_every_message_is_stored_or_an_error_is_raised(
    fates, counts, max_in_flight, brokers, delivery_ms, one_by_one
):
    net, window = run(fates, brokers, 2, max_in_flight=max_in_flight, delivery_timeout_ms=delivery_ms)
    values = [[b"%d-%d" % (one, number) for number in range(count)] for one, count in enumerate(counts)]
    bodies = [value for some in values for value in some]
    try:
        for some in [[body] for body in bodies] if one_by_one else values:
            await net.send(window, some)
        await window.flush()
    except ProduceError:
        await check_broken(net, window)
        return
    assert set(values_of(net)) == set(bodies)
    assert_receipts(net, window, bodies)
    # What is in flight to a broker that has fallen silent does not count.
    assert net.most_unanswered <= brokers * max_in_flight + window.retried
    if window.retried == 0:
        assert len(net.stored) == len(bodies), "without a retry nothing is stored twice"


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from([GOOD, LOST_BEFORE]), max_size=30),
    count=st.integers(1, 200),
    one_by_one=st.booleans(),
)
@in_virtual_time
async def test_lost_connections_keep_the_order_of_a_partition(fates, count, one_by_one):
    net, window = run(fates, max_in_flight=16, partitions=2)
    values = [b"%d" % number for number in range(count)]
    for some in [[value] for value in values] if one_by_one else [values]:
        await net.send(window, some, [b"k"] * len(some))
    await window.flush()
    assert list(dict.fromkeys(values_of(net))) == values


@in_virtual_time
async def test_what_is_sent_again_stands_before_younger_messages():
    net, window = run([LOST_BEFORE])
    for some in ([b"0", b"1"], [b"2", b"3"]):
        await net.send(window, some)
        await asyncio.sleep(0.01)
    await window.flush()
    assert values_of(net) == [b"0", b"1", b"2", b"3"]


@in_virtual_time
async def test_a_message_that_is_refused_leaves_its_run_alone():
    net, window = run([GOOD] * 3 + [OVERFLOW] + [GOOD] * 3)
    await net.send(window, [b"%d" % number for number in range(7)])
    await window.flush()
    assert net.attempts == {b"%d" % number: 1 + (number == 3) for number in range(7)}
    assert values_of(net) == [b"0", b"1", b"2", b"4", b"5", b"6", b"3"]


@in_virtual_time
async def test_a_run_partly_answered_is_timed_out_for_the_rest():
    net, window = run([GOOD, SILENT, GOOD, SILENT])
    await net.send(window, [b"0", b"1", b"2", b"3"])
    await window.flush()
    assert net.connections == 1
    assert net.attempts == {b"0": 1, b"1": 2, b"2": 1, b"3": 2}
    assert [one.receipt().unanswered for one in net.partitioner.targets] == [2]


@in_virtual_time
async def test_room_is_what_the_window_and_one_write_hold():
    net, window = run([], max_in_flight=100, max_in_flight_bytes=1_000_000)
    assert await window.room([0, 10]) == 1
    assert await window.room(range(0, 5_000, 10)) == 100
    assert await window.room(range(0, 5_000_000, 100_000)) == 2
    assert await window.room([0, 2_000_000, 2_000_001]) == 1
    await net.send(window, [b"x"] * 60)
    assert await window.room(range(500)) == 40


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 512])
@in_virtual_time
async def test_no_more_messages_are_under_way_than_the_window_holds(max_in_flight):
    net, window = run([], max_in_flight=max_in_flight)
    await send_all(net, window, 600)
    assert min(max_in_flight, 32) <= net.most_unanswered <= max_in_flight


@pytest.mark.parametrize(("limit", "most"), [(99, 1), (100, 1), (199, 1), (200, 2), (1000, 10)])
@in_virtual_time
async def test_no_more_bytes_are_under_way_than_the_window_holds(limit, most):
    net, window = run([], max_in_flight_bytes=limit)
    for number in range(50):
        await submit(window, net.message(b"%100d" % number))
    await window.flush()
    assert (net.most_unanswered, len(net.stored)) == (most, 50)


@in_virtual_time
async def test_an_overflowing_broker_gets_a_smaller_window_and_later_the_whole_one_again():
    net, window = run([GOOD] * 64 + [OVERFLOW] * 8, max_in_flight=64)
    under_way = []
    for count in (64, 8, 64, 2_000, 64):
        net.most_unanswered = 0
        await send_all(net, window, count)
        under_way.append(net.most_unanswered)
    assert under_way[0] == under_way[-1] == 64
    assert under_way[1] == 8
    assert under_way[2] < 64


@pytest.mark.parametrize(
    ("fates", "count", "most"), [([OVERFLOW] * 3, 3, 9), ([GOOD, SILENT, *[Fate(delay_s=0.3)] * 60], 64, 63)]
)
@in_virtual_time
async def test_refusals_and_late_answers_shrink_the_window(fates, count, most):
    net, window = run(fates, max_in_flight=256 if count < 64 else 64)
    for number in range(count):
        await submit(window, net.message(b"%d" % number))
    while not window.retried:
        await asyncio.sleep(0.01)
    assert window._limit <= most
    await window.flush()


@in_virtual_time
async def test_pauses_between_attempts_grow_and_are_capped():
    net, window = run([OVERFLOW] * 9)
    began = now()
    await send_all(net, window, 1)
    pauses = [min(2.0, 0.05 * 2**number) for number in range(9)]
    assert sum(pauses) / 2 <= now() - began <= sum(pauses) + 1


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (OVERFLOW, "was not stored in demo/1:0"),
        (Fate(code=503, stored=False), "was not stored in demo/1:0"),
        (Fate(unreachable=True), "was not stored in demo/1:0"),
        (LOST, "was sent to demo/1:0 and may or may not be stored"),
        (SILENT, "was sent to demo/1:0 and may or may not be stored.*: no answer within 0.5 s"),
    ],
)
@in_virtual_time
async def test_a_message_is_given_up_when_its_time_is_over(fate, told):
    net, window = run([fate] * ALWAYS, delivery_timeout_ms=3_000)
    began = now()
    with pytest.raises(ProduceError, match=f"message 1 of test.* {told}"):
        await send_all(net, window, 1)
    assert 0.4 <= now() - began <= 4.0
    assert all(stream.closed for stream in net.streams)


@pytest.mark.parametrize(
    ("stuck", "told", "unanswered"),
    [(set(), "may or may not be stored .*did not answer in time", 1), ({1}, "took no messages in time", 0)],
)
@in_virtual_time
async def test_a_message_whose_time_ends_without_an_answer_may_be_stored_if_it_has_left(
    stuck, told, unanswered
):
    net, window = run([SILENT] * 2, rpc_timeout_ms=60_000, delivery_timeout_ms=2_000)
    net.stuck = stuck
    with pytest.raises(ProduceError, match=told) as raised:
        await send_all(net, window, 1)
    assert raised.value.parameters["unanswered"] == unanswered


@in_virtual_time
async def test_a_silent_broker_is_left_and_asked_again_on_a_new_connection():
    net, window = run([SILENT] * 3)
    await send_all(net, window, 3)
    assert net.connections == 2
    assert values_of(net) == [b"0", b"1", b"2", b"0", b"1", b"2"]


@in_virtual_time
async def test_silence_is_recognised_at_any_time_of_the_clock():
    """Adding a long time-out and subtracting it again loses bits."""
    for number in range(20):
        net, window = run([GOOD] + [SILENT] * 3, rpc_timeout_ms=1_000_003, delivery_timeout_ms=9_000_000)
        await send_all(net, window, 1)
        await asyncio.sleep(0.000_123 * number)
        await send_all(net, window, 3)
        assert net.connections == 2


@in_virtual_time
async def test_answers_are_read_together_but_not_waited_for_long():
    net, window = run([GOOD, GOOD] + [SILENT] * 7, rpc_timeout_ms=5_000)
    await send_all(net, window, 1)
    await net.send(window, [b"%d" % number for number in range(8)])
    await asyncio.sleep(0.015)
    assert window.unacknowledged == 8
    await asyncio.sleep(0.01)
    assert window.unacknowledged == 7


@in_virtual_time
async def test_time_in_which_the_process_stands_still_does_not_run_out():
    net, window = run([Fate(delay_s=0.4)], rpc_timeout_ms=5_000)
    for _ in range(4):
        await submit(window, net.message(b"a"))
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().stand_still(3_600)
    await window.flush()
    assert window.retried == 0


@in_virtual_time
async def test_answers_out_of_order_reach_their_messages():
    net, window = run([Fate(delay_s=0.2 - number / 1_000) for number in range(128)], partitions=4)
    await send_all(net, window, 128)
    for one in net.partitioner.targets:
        number, receipt = one.partition.partition_id, one.receipt()
        first = 28 * 32 * number
        assert (receipt.count, receipt.first_offset, receipt.last_offset) == (32, first, first + 28 * 31)


@in_virtual_time
async def test_serial_numbers_go_round_like_java_ints():
    net, window = run([])
    await send_all(net, window, 1)
    net.broker(1).connection = SendConnection(10_000, (1 << 31) - 1)
    await send_all(net, window, 5)
    assert net.serial_nos[-5:] == [2**31 - 1, *range(-(2**31), -(2**31) + 4)]


# Connections that take bytes slowly, or none.


@pytest.mark.parametrize("count", [1_000, 30])
@in_virtual_time
async def test_a_broker_that_takes_no_bytes_holds_no_caller_for_ever(count):
    net, window = run([], max_in_flight=40, delivery_timeout_ms=3_000)
    net.stuck = {1}
    began = now()
    with pytest.raises(ProduceError, match=r"it took no bytes for 0.5 s"):
        await send_all(net, window, count)
    assert now() - began <= 4.0


@pytest.mark.parametrize("retry_ambiguous", [True, False])
@in_virtual_time
async def test_a_broker_that_takes_no_bytes_for_a_while_gets_what_waited(retry_ambiguous):
    net, window = run([], max_in_flight=40, retry_ambiguous=retry_ambiguous)
    net.stuck = {1}
    after(5.0, net.stuck.clear)
    values = await send_all(net, window, 200)
    assert sorted(values_of(net)) == sorted(values)
    assert net.connections > 1


@in_virtual_time
async def test_messages_queued_behind_a_connection_have_their_time_too():
    """The first piece of data moves all the time, but too slowly for those behind it."""
    net, window = run([], max_in_flight=1_000, delivery_timeout_ms=4_000)
    net.bytes_per_s = 20_000
    began = now()
    await net.send(window, [b"%1000d" % number for number in range(600)])
    with pytest.raises(ProduceError):
        await window.flush()
    assert now() - began <= 5.0


@in_virtual_time
async def test_a_slow_connection_is_not_taken_for_a_dead_one():
    """A window takes ten time-outs to leave; each answer is due only after its request has left."""
    net, window = run([])
    net.bytes_per_s = 50_000
    await net.send(window, [b"%1000d" % number for number in range(1_000)])
    await window.flush()
    assert (window.retried, net.connections) == (0, 1)


# Several brokers.


@pytest.mark.parametrize("avoided", [True, False])
@in_virtual_time
async def test_round_robin_goes_around_a_broker_in_trouble_or_with_its_share(avoided):
    net = VirtualBrokers(lambda _: GOOD, brokers=3)
    slow, links = net.broker(2), net.links
    links.avoid(slow, now()) if avoided else links.crowd(slow)
    chosen = [net.partitioner.round_robin(1, 1, links.passed_over)[0].partition.broker_id for _ in range(4)]
    assert chosen == [1, 3, 1, 3]
    links.forgive(now() + 4) if avoided else links.relieve(slow)
    assert links.passed_over == frozenset()


@in_virtual_time
async def test_messages_of_a_lost_broker_go_to_the_others():
    net, window = run([], brokers=2)
    net.unreachable = {1}
    values = await send_all(net, window, 500)
    assert {partition.broker_id for partition, _ in net.stored} == {2}
    assert sorted(values_of(net)) == sorted(values)


def run_slowly(**settings: int) -> tuple[VirtualBrokers, SendWindow]:
    return run([Fate(delay_s=0.2)] * 100_000, brokers=4, max_in_flight=16, **settings)


async def spread(net: VirtualBrokers, window: SendWindow, seconds: float) -> int:
    """Send for a while; return how many messages were stored."""
    end, before = now() + seconds, len(net.stored)
    while now() < end:
        await submit(window, net.message(b"x"))
    return len(net.stored) - before


@in_virtual_time
async def test_a_frozen_broker_takes_no_more_than_its_share():
    healthy = await spread(*run_slowly(rpc_timeout_ms=10_000), 40.0)
    net, window = run_slowly(rpc_timeout_ms=10_000)
    net.frozen = {1}
    assert await spread(net, window, 40.0) >= 0.65 * healthy


@in_virtual_time
async def test_a_frozen_broker_is_tried_with_one_message_and_ever_more_seldom():
    net, window = run_slowly(rpc_timeout_ms=1_000)
    net.frozen = {1}
    connections = []
    for _ in range(3):
        await spread(net, window, 20.0)
        connections.append(net.connections)
    link = net.broker(1)
    assert link.held <= 1
    assert connections[2] - connections[1] <= 1 < connections[0] - 4
    net.frozen = set()
    await spread(net, window, 60.0)
    await window.flush()
    assert {partition.broker_id for partition, _ in net.stored} == {1, 2, 3, 4}
    assert link.troubles == 0


@in_virtual_time
async def test_large_messages_to_a_frozen_broker_leave_bytes_for_the_others():
    net, window = run([], 4, rpc_timeout_ms=600_000, delivery_timeout_ms=900_000, max_in_flight_bytes=4_000)
    net.frozen = {1}
    for number in range(200):
        await submit(window, net.message(b"%100d" % number))
    assert net.broker(1).held_bytes <= 2_000
    assert len(net.stored) > 100


async def offer(net: VirtualBrokers, window: SendWindow, rate: int, seconds: int, *, keyed: bool) -> float:
    """Send at a steady rate; return by how much a message was late at most, in seconds."""
    late, began = 0.0, now()
    for number in range(rate * seconds):
        due = began + number / rate
        await asyncio.sleep(due - now())
        await submit(window, net.message(b"%d" % number, b"%d" % number if keyed else None))
        late = max(late, now() - due)
    await asyncio.sleep(0.1)
    return late


@pytest.mark.parametrize("keyed", [True, False])
@in_virtual_time
async def test_a_frozen_broker_of_three_delays_messages_for_the_others_once_and_shortly(keyed):
    net, window = run([], 3, max_in_flight=64, rpc_timeout_ms=5_000)
    net.frozen = {FROZEN}
    assert await offer(net, window, 300, 10, keyed=keyed) <= 1.0
    stored = {int(value) for value in values_of(net)}
    link = net.broker(FROZEN)
    if keyed:
        others = {number for number in range(3_000) if net.choose(b"%d" % number).link is not link}
        assert stored == others, "and at the undisturbed rate"
        assert link.messages == 3_000 - len(others)
        copies = sum(net.attempts.values()) - len(net.attempts)
        assert copies <= net.connections, "of what waits for it, one is tried with each connection"
    else:
        assert len(stored) >= 3_000 - 64
    assert len(net.attempts) - len(stored) <= 64, "no more is under way to it than before"


@in_virtual_time
async def test_a_window_full_of_messages_for_a_frozen_broker_opens_when_that_is_silent():
    net, window = run([], 3, max_in_flight=64, rpc_timeout_ms=5_000)
    net.frozen = {FROZEN}
    key = next(b"%d" % number for number in range(100) if net.choose(b"%d" % number).link.broker_id == FROZEN)
    began = now()
    await net.send(window, [b"x"] * 64, [key] * 64)
    await window.room([0, 1])
    assert 0.5 <= now() - began <= 0.51


@pytest.mark.parametrize("code", [ErrCode.SERVER_RECEIVE_OVERFLOW, ErrCode.SERVICE_UNAVAILABLE])
@in_virtual_time
async def test_a_broker_of_three_that_refuses_everything_does_not_slow_the_others_down(code):
    net, window = run([], 3, max_in_flight=64)
    net.refusing = {FROZEN: code}
    assert await offer(net, window, 100, 6, keyed=True) <= 1.0
    link = net.broker(FROZEN)
    others = {number for number in range(600) if net.choose(b"%d" % number).link is not link}
    assert {int(value) for value in values_of(net)} == others
    assert link.messages == 600 - len(others)


@pytest.mark.parametrize("wrong", ["frozen", "unreachable"])
@in_virtual_time
async def test_the_share_of_a_broker_is_bounded_by_bytes_and_full_for_it_alone(wrong):
    net, window = run([], 3, rpc_timeout_ms=5_000, max_in_flight_bytes=300_000, max_in_flight=64)
    setattr(net, wrong, {FROZEN})
    sick, well, sent = net.broker(FROZEN), net.broker(1), collections.Counter()
    for number in range(2_000):
        message = net.message(b"%d" % number, b"%d" % number)
        if not message.destination.link.full:
            sent[message.destination.link] += 1
            await submit(window, message)
    assert window.full == {FROZEN}
    assert sent[sick] == sick.messages
    assert 100_000 <= sick.held_bytes + sick.waiting_bytes + 256 * sick.messages <= 102_000
    assert sent[well] > 500
    setattr(net, wrong, set())
    async with asyncio.timeout(10):
        await window.other_shares()
    assert not sick.full
    await window.flush()
    assert (window.full, window._links.aside, sick.messages) == (frozenset(), 0, 0)
    assert len(net.stored) >= sent.total()


@in_virtual_time
async def test_a_broker_whose_share_is_full_is_passed_over_also_when_the_others_hold_theirs():
    net, window = run([], 3, max_in_flight_bytes=3_000, max_in_flight=64, delivery_timeout_ms=600_000)
    net.refusing = {FROZEN: ErrCode.SERVICE_UNAVAILABLE}
    sick = net.broker(FROZEN)
    key = next(b"%d" % n for n in range(99) if net.choose(b"%d" % n).link is sick)
    while not sick.full:
        await submit(window, net.message(b"x", key))
        await asyncio.sleep(0.1)
    net.links._forget_failure(sick)  # as when it answers a probe, until it refuses again
    net.links._update_passed_over()
    for broker in (1, 3):
        net.links.crowd(net.broker(broker))
    passed_over, failing = net.links.passed_over, net.links.failing
    chosen = {net.partitioner.round_robin(1, 1, passed_over, failing)[0].link for _ in range(64)}
    assert chosen == {net.broker(1), net.broker(3)}


@pytest.mark.parametrize(("brokers", "former", "most"), [(2, 100, 60), (3, 0, 40)])
@in_virtual_time
async def test_messages_that_no_broker_takes_fill_the_window(brokers, former, most):
    """Also when brokers were at other addresses, which have no shares."""
    net, window = run([], brokers, max_in_flight=16, rpc_timeout_ms=5_000, delivery_timeout_ms=5_000)
    for port in [*range(1_000, 1_000 + former), 1]:
        net.links.to(1, Endpoint("b", port))
    net.frozen = set(range(1, brokers + 1))
    with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
        await send_each_keyed(net, window, 1_000)
    assert len(net.attempts) <= most


# Order.


@settings(deadline=None)
@given(
    fates=SOME_FATES,
    keys=st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=60),
    max_in_flight=st.integers(1, 20),
    brokers=st.integers(1, 3),
    size=st.integers(1, 20),
)
@in_virtual_time
async def test_a_partition_is_in_order_in_spite_of_brokers(fates, keys, max_in_flight, brokers, size):
    """With ``keep_order``, and but for repeats; messages without key are as free as without."""
    net, window = run(
        fates, brokers, 2, max_in_flight=max_in_flight, delivery_timeout_ms=6_000_000, keep_order=True
    )
    values = [b"%d" % number for number in range(len(keys))]
    try:
        for first in range(0, len(values), size):
            await net.send(window, values[first : first + size], keys[first : first + size])
        await window.flush()
    except ProduceError:
        await check_broken(net, window)
        return
    assert set(values_of(net)) == set(values)
    for target in net.partitioner.targets:
        here = dict.fromkeys(int(value) for partition, value in net.stored if partition == target.partition)
        ordered = [number for number in here if keys[number] is not None]
        assert ordered == sorted(ordered)
    assert window._lines._lines == {}
    assert_receipts(net, window, values)


class Told:
    """Outcomes that are all asked for."""

    def __init__(self) -> None:
        self.errors: list[ProduceError] = []

    def has_ended(self, _: int) -> bool:
        return False

    def stored(self, *_: object) -> None: ...

    def failed(self, _: int, error: ProduceError) -> None:
        self.errors.append(error)


@in_virtual_time
async def test_messages_that_wait_for_an_older_one_fail_in_time_each_with_its_cause():
    net, window = run([], rpc_timeout_ms=5_000, delivery_timeout_ms=2_000, keep_order=True)
    net.frozen = {1}
    told = Told()
    for number in range(3):
        message = net.message(b"%d" % number, b"k")
        message.batch.outcomes = told
        await submit(window, message)
    await window.flush()
    assert [error.may_be_stored for error in told.errors] == [False, False, True]
    assert "the message before it in its partition has no outcome" in str(told.errors[0])
    assert net.links.all[0].messages == 0


# What passes, and what does not.


@pytest.mark.parametrize("code", [403, 423, 503, 419])
@in_virtual_time
async def test_a_refusal_that_may_pass_is_waited_out_for_half_a_minute(code):
    net, window = run([])
    net.refusing = {1: code}
    after(35.0, net.refusing.clear)
    values = await send_all(net, window, 100)
    assert sorted(values_of(net)) == sorted(values)


@in_virtual_time
async def test_a_topic_without_partitions_is_waited_for(caplog):
    net, window = run([OVERFLOW] * 10)
    net.nowhere = "the master lists none"
    after(40.0, setattr, net, "nowhere", "")
    await send_all(net, window, 10)
    assert (len(net.stored), net.refreshed >= 30) == (10, True)
    first, last = [record.getMessage() for record in caplog.records if "topic" in record.getMessage()]
    assert first == "test: topic demo is away: the master lists none"
    assert re.search("topic demo is back after .*10 messages waited$", last)


@in_virtual_time
async def test_a_topic_that_stays_without_partitions_fails_with_that():
    net, window = run([OVERFLOW] * 10, delivery_timeout_ms=5_000)
    net.nowhere = "the master lists none"
    began = now()
    with pytest.raises(ProduceError, match="the master lists none"):
        await send_all(net, window, 10)
    assert 4.0 <= now() - began <= 6.0


@pytest.mark.parametrize(
    ("fates", "count", "refreshed"), [([TOKEN] * 5, 5, 1), ([TOKEN, OVERFLOW, TOKEN], 1, 2)]
)
@in_virtual_time
async def test_a_refused_token_is_renewed_and_tried_again(fates, count, refreshed):
    net, window = run(fates)
    await send_all(net, window, count)
    assert (len(net.stored), net.refreshed) == (count, refreshed)
    assert net.requests == count + len(fates)


@in_virtual_time
async def test_a_message_waits_until_a_master_has_sent_a_newer_token():
    net, window = run([TOKEN])
    net.master_away = True
    after(20.0, setattr, net, "master_away", False)
    began = now()
    await send_all(net, window, 1)
    assert net.attempts == {b"0": 2}
    assert 20.0 <= now() - began <= 22.0


@in_virtual_time
async def test_a_message_whose_token_stays_refused_is_given_up_in_time():
    net, window = run([TOKEN], delivery_timeout_ms=5_000)
    net.master_away = True
    began = now()
    with pytest.raises(ProduceError, match=r"attempts: 1\): the broker answered 415"):
        await send_all(net, window, 1)
    assert 4.0 <= now() - began <= 6.0


@in_virtual_time
async def test_a_broker_that_fails_after_storing_makes_few_copies_and_the_error_names_the_message_time():
    net, window = run([Fate(code=500)] * ALWAYS)
    with pytest.raises(ProduceError, match=r"500 .*message time"):
        await send_all(net, window, 20)
    assert max(net.attempts.values()) <= 6


@settings(deadline=None)
@given(
    fates=SOME_FATES,
    count=st.integers(1, 50),
    brokers=st.integers(1, 3),
    delivery_ms=st.sampled_from([1, 700, 600_000]),
    stuck_s=st.sampled_from([0.0, 0.0, 2.0]),
)
@in_virtual_time
async def test_nothing_is_stored_twice_when_that_is_forbidden(fates, count, brokers, delivery_ms, stuck_s):
    net, window = run(fates, brokers, 2, retry_ambiguous=False, delivery_timeout_ms=delivery_ms)
    if stuck_s:
        net.stuck = {1}
        after(stuck_s, net.stuck.clear)
    failed = None
    try:
        await send_all(net, window, count)
    except ProduceError as error:
        failed = error
        await check_broken(net, window)
    copies = collections.Counter(values_of(net))
    assert copies.total() == len(copies)
    if failed is None:
        assert copies.total() == count
    elif failed.condition == "TUBEMQ_SEND_FAILED":
        assert failed.parameters["unanswered"] == 0
        (named,) = re.findall(r"\(b'(\d+)'\)", failed.parameters["message"])
        assert named.encode() not in copies, "it says that this message is not stored"
    else:
        assert failed.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS"


NOT_STORED = [OVERFLOW, *(Fate(stored=False, code=code) for code in (403, 423, 503)), Fate(unreachable=True)]


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from([GOOD, *NOT_STORED]), max_size=60),
    count=st.integers(1, 50),
    brokers=st.integers(1, 3),
)
@in_virtual_time
async def test_what_is_surely_not_stored_is_always_sent_again(fates, count, brokers):
    net, window = run(fates, brokers, 2, retry_ambiguous=False)
    values = await send_all(net, window, count)
    assert sorted(values_of(net)) == sorted(values)


@in_virtual_time
async def test_a_broker_that_goes_and_comes_back_is_told_of_twice(caplog):
    net, window = run([])
    await send_all(net, window, 5)
    net.fate = lambda _: Fate(unreachable=True, lost=True, stored=False)
    after(20.0, setattr, net, "fate", lambda _: GOOD)
    await send_all(net, window, 7)
    first, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("test: broker 1 is away: the connection to b:1 failed: ")
    assert re.search("^test: broker 1 is back after .*7 messages waited$", last)


@in_virtual_time
async def test_refusals_of_one_kind_are_told_together(caplog):
    net, window = run([OVERFLOW] * 2_000)
    await send_all(net, window, 200)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 3
    assert "419" in lines[0]
