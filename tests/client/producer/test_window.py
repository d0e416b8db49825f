"""The window's promises, in virtual time: at least once or an error, bounds, order, pauses."""

import collections
import itertools
import re
import sys
import zlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tests.client.virtual_brokers import Fate, VirtualBrokers, batch_of
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.log import SendLog
from tubemq_spark.client.producer.outcomes import Outcomes
from tubemq_spark.client.producer.runs import Run, runs
from tubemq_spark.client.producer.window import SendWindow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.send_connection import SendConnection

GOOD = Fate()
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


def run(
    fates: Sequence[Fate], brokers: int = 1, partitions: int = 1, **settings: int | bool
) -> tuple[VirtualBrokers, SendWindow]:
    """Make a window over brokers that follow ``fates`` request by request, then behave."""
    net = VirtualBrokers(lambda number: fates[number] if number < len(fates) else GOOD, brokers, partitions)
    settings = {"rpc_timeout_ms": 500, "delivery_timeout_ms": 60_000, **settings}
    config = ClientConfig(masters=(Endpoint("m", 1),), group="test", **settings)
    return net, SendWindow(config, net, net.links, net, SendLog("test", net.clock), net.clock)


def send_all(net: VirtualBrokers, window: SendWindow, count: int, key: bytes | None = None) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    for value in values:
        submit(window, net.message(value, key))
    window.flush()
    return values


def submit(window: SendWindow, message: Run) -> None:
    window.room(message.batch.ends)
    window.submit([message])


def check_broken(net: VirtualBrokers, window: SendWindow) -> None:
    requests = net.requests
    for use in (lambda: submit(window, net.message(b"more")), window.flush):
        with pytest.raises(ProduceError) as again:
            use()
        assert again.value is window.error
    assert net.requests == requests, "nothing is sent after the first error"


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=60),
    count=st.integers(1, 50),
    max_in_flight=st.integers(1, 20),
    brokers=st.integers(1, 3),
    retry_ms=st.sampled_from([1, 100, 2_000, 600_000]),
)
def test_every_message_is_stored_or_an_error_is_raised(fates, count, max_in_flight, brokers, retry_ms):
    net, window = run(fates, brokers, 2, max_in_flight=max_in_flight, delivery_timeout_ms=retry_ms)
    values = [b"%d" % number for number in range(count)]
    try:
        send_all(net, window, count)
    except ProduceError:
        check_broken(net, window)
        return
    stored = [value for _, value in net.stored]
    assert set(stored) == set(values)
    assert window.unacknowledged == 0
    assert sum(one.count for one in net.partitioner.targets) == count
    assert window.retried == sum(net.attempts.values()) - count
    assert sum(one.retried for one in net.partitioner.targets) == sum(n > 1 for n in net.attempts.values())
    if window.retried == 0:
        assert len(stored) == count, "without a retry nothing is stored twice"


def send_batch(
    net: VirtualBrokers, window: SendWindow, values: Sequence[bytes], key: bytes | None = None
) -> None:
    batch = batch_of(values, key)
    first = 0
    while first < len(values):
        after = first + window.room(batch.ends, first)
        window.submit(runs(batch, first, [net.choose(key) for _ in range(first, after)]))
        first = after


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=60),
    counts=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    max_in_flight=st.integers(1, 100),
    brokers=st.integers(1, 3),
)
def test_every_message_of_a_batch_is_stored_or_an_error_is_raised(fates, counts, max_in_flight, brokers):
    net, window = run(fates, brokers, 2, max_in_flight=max_in_flight, delivery_timeout_ms=600_000)
    values = [[b"%d-%d" % (one, number) for number in range(count)] for one, count in enumerate(counts)]
    try:
        for some in values:
            send_batch(net, window, some)
        window.flush()
    except ProduceError:
        check_broken(net, window)
        return
    assert {value for _, value in net.stored} == {value for some in values for value in some}
    # What is in flight to a broker that has fallen silent does not count.
    assert net.most_unanswered <= brokers * max_in_flight + sum(net.attempts.values()) - sum(counts)
    assert window.unacknowledged == 0
    assert all((link.held, link.held_bytes, len(link.connection)) == (0, 0, 0) for link in net.links.all)
    receipts = [one.receipt() for one in net.partitioner.targets]
    assert sum(receipt.count for receipt in receipts) == sum(counts)
    assert sum(receipt.retried for receipt in receipts) == sum(n > 1 for n in net.attempts.values())
    bodies = [value for some in values for value in some]
    assert sum(receipt.bytes for receipt in receipts) == sum(map(len, bodies))
    assert sum(receipt.checksum or 0 for receipt in receipts) == sum(map(zlib.crc32, bodies))
    assert len(net.stored) - sum(counts) <= sum(receipt.unanswered for receipt in receipts)
    assert window.retried == sum(net.attempts.values()) - sum(counts)


@settings(deadline=None)
@given(fates=st.lists(st.sampled_from([GOOD, LOST_BEFORE]), max_size=30), count=st.integers(1, 200))
def test_lost_connections_keep_the_order_of_a_batch(fates, count):
    net, window = run(fates, max_in_flight=16, partitions=2)
    values = [b"%d" % number for number in range(count)]
    send_batch(net, window, values, key=b"k")
    window.flush()
    assert list(dict.fromkeys(value for _, value in net.stored)) == values


def test_a_message_that_is_refused_leaves_its_run_alone():
    net, window = run([GOOD] * 3 + [OVERFLOW] + [GOOD] * 3)
    send_batch(net, window, [b"%d" % number for number in range(7)])
    window.flush()
    assert net.attempts == {b"%d" % number: 1 + (number == 3) for number in range(7)}
    assert [value for _, value in net.stored] == [b"0", b"1", b"2", b"4", b"5", b"6", b"3"]


def test_a_run_partly_answered_is_timed_out_for_the_rest():
    net, window = run([GOOD, SILENT, GOOD, SILENT])
    send_batch(net, window, [b"0", b"1", b"2", b"3"])
    window.flush()
    assert net.attempts == {b"0": 1, b"1": 2, b"2": 1, b"3": 2}
    assert [one.receipt().unanswered for one in net.partitioner.targets] == [2]


def test_room_is_what_the_window_and_one_write_hold():
    net, window = run([], max_in_flight=100, max_in_flight_bytes=1_000_000)
    assert window.room([0, 10]) == 1
    assert window.room(range(0, 5_000, 10)) == 100
    assert window.room(range(0, 5_000_000, 100_000)) == 2
    assert window.room([0, 2_000_000, 2_000_001]) == 1
    send_batch(net, window, [b"x"] * 60)
    assert window.room(range(500)) == 40


@settings(deadline=None)
@given(fates=st.lists(st.sampled_from([GOOD, LOST_BEFORE]), max_size=30), count=st.integers(1, 60))
def test_lost_connections_keep_the_order_of_a_partition(fates, count):
    net, window = run(fates, max_in_flight=16)
    values = send_all(net, window, count, key=b"k")
    first_seen = list(dict.fromkeys(value for _, value in net.stored))
    assert first_seen == values


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 512])
def test_no_more_messages_are_under_way_than_the_window_holds(max_in_flight):
    net, window = run([], max_in_flight=max_in_flight)
    send_all(net, window, 600)
    assert net.most_unanswered <= max_in_flight
    assert net.most_unanswered >= min(max_in_flight, 32)


@pytest.mark.parametrize(("limit", "most"), [(99, 1), (100, 1), (199, 1), (200, 2), (1000, 10)])
def test_no_more_bytes_are_under_way_than_the_window_holds(limit, most):
    net, window = run([], max_in_flight_bytes=limit)
    for number in range(50):
        submit(window, net.message(b"%100d" % number))
    window.flush()
    assert net.most_unanswered == most
    assert len(net.stored) == 50


def test_an_overflowing_broker_gets_a_smaller_window_and_later_the_whole_one_again():
    net, window = run([GOOD] * 64 + [OVERFLOW] * 64, max_in_flight=64)
    send_all(net, window, 64)
    net.most_unanswered = 0
    send_all(net, window, 65)
    assert window._limit < 64
    net.most_unanswered = 0
    send_all(net, window, 64)
    assert net.most_unanswered < 64
    send_all(net, window, 2_000)
    assert window._limit == 64


def test_a_few_overflows_shrink_the_window_to_what_was_under_way():
    net, window = run([OVERFLOW] * 3, max_in_flight=256)
    send_all(net, window, 3)
    assert window._limit < 10


def test_pauses_between_attempts_grow_and_are_capped():
    net, window = run([OVERFLOW] * 9)
    began = net.now
    send_all(net, window, 1)
    took = net.now - began
    pauses = [min(2.0, 0.05 * 2**number) for number in range(9)]
    assert sum(pauses) / 2 <= took <= sum(pauses) + 1


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        (OVERFLOW, "was not stored in demo/1:0"),
        (Fate(code=503, stored=False), "was not stored in demo/1:0"),
        (Fate(unreachable=True), "was not stored in demo/1:0"),
        (LOST, "was sent to demo/1:0 and may or may not be stored"),
        (SILENT, "was sent to demo/1:0 and may or may not be stored"),
    ],
)
def test_a_message_is_given_up_when_its_time_is_over(fate, told):
    net, window = run([fate] * 1_000, delivery_timeout_ms=3_000)
    began = net.now
    with pytest.raises(ProduceError, match=f"message 1 of test.* {told}"):
        send_all(net, window, 1)
    assert 0.4 <= net.now - began <= 4.0
    assert net.closed


def test_a_silent_broker_is_left_and_asked_again_on_a_new_connection():
    net, window = run([SILENT] * 3)
    send_all(net, window, 3)
    assert net.connections == 2
    assert [value for _, value in net.stored] == [b"0", b"1", b"2", b"0", b"1", b"2"]


def test_a_request_without_answer_among_answered_ones_is_sent_again_alone():
    net, window = run([GOOD, SILENT, GOOD, Fate(delay_s=0.3)])
    send_all(net, window, 4)
    assert net.connections == 1
    assert net.attempts == {b"0": 1, b"1": 2, b"2": 1, b"3": 1}


def test_answers_are_read_together_but_not_waited_for_long():
    net, window = run([GOOD] + [SILENT] * 7, rpc_timeout_ms=5_000)
    send_batch(net, window, [b"%d" % number for number in range(8)])
    net.drive(0.005)  # connects
    window.work()
    net.now += 0.005
    window.work()
    assert window.unacknowledged == 8
    net.now += 0.02
    window.work()
    assert window.unacknowledged == 7


def test_an_answer_that_comes_after_its_time_counts_for_nothing():
    net, window = run([Fate(delay_s=0.55), GOOD, Fate(delay_s=0.3)])
    send_all(net, window, 3)
    assert sum(one.count for one in net.partitioner.targets) == 3
    assert net.attempts[b"0"] == 2


def test_time_between_calls_does_not_run_out():
    net, window = run([Fate(delay_s=0.4)], rpc_timeout_ms=5_000)
    submit(window, net.message(b"a"))
    for _ in range(3):
        net.now += 3_600
        submit(window, net.message(b"b"))
    window.flush()
    assert window.retried == 0


def test_answers_out_of_order_reach_their_messages():
    net, window = run([Fate(delay_s=0.2 - number / 1_000) for number in range(128)], partitions=4)
    send_all(net, window, 128)
    offsets = {one.partition.partition_id: one.receipt() for one in net.partitioner.targets}
    for number, receipt in offsets.items():
        assert (receipt.count, receipt.first_offset, receipt.last_offset) == (
            32,
            28 * 32 * number,
            28 * (32 * number + 31),
        )


def test_round_robin_goes_around_a_broker_in_trouble():
    net = VirtualBrokers(lambda _: GOOD, brokers=3)
    net.links.avoid(net.links.to(2, Endpoint("b", 2)), net.now)
    chosen = [net.partitioner.by_turn(1, 1, net.links.passed_over)[0].partition.broker_id for _ in range(6)]
    assert chosen == [1, 3, 1, 3, 1, 3]
    net.links.forgive(net.now + 4)
    assert net.links.passed_over == frozenset()


def test_round_robin_goes_around_a_broker_that_holds_its_share():
    net = VirtualBrokers(lambda _: GOOD, brokers=3)
    slow = net.links.to(2, Endpoint("b", 2))
    net.links.crowd(slow)
    chosen = [net.partitioner.by_turn(1, 1, net.links.passed_over)[0].partition.broker_id for _ in range(4)]
    assert chosen == [1, 3, 1, 3]
    net.links.relieve(slow)
    assert net.links.passed_over == frozenset()


def test_messages_of_a_lost_broker_go_to_the_others():
    dead = Endpoint("b", 1)
    net, window = run([], brokers=2)
    reach = net.connect

    def connect(endpoint: Endpoint):
        net._fate = lambda _: Fate(unreachable=True) if endpoint == dead else GOOD
        pipeline = reach(endpoint)
        net._fate = lambda _: GOOD
        return pipeline

    net.connect = connect
    values = send_all(net, window, 500)
    assert {partition.broker_id for partition, _ in net.stored} == {2}
    assert sorted(value for _, value in net.stored) == sorted(values)


def test_an_interrupt_breaks_the_producer_for_good():
    net, window = run([])
    submit(window, net.message(b"a"))

    def interrupted(_: float) -> list:
        raise KeyboardInterrupt

    net.drive = interrupted
    with pytest.raises(KeyboardInterrupt):
        window.flush()
    with pytest.raises(ProduceError, match="1 messages not acknowledged"):
        window.flush()


def test_serial_numbers_go_round_like_java_ints():
    net, window = run([])
    submit(window, net.message(b"a"))
    window.flush()
    link = net.links.to(1, Endpoint("b", 1))
    link.connection = SendConnection(10_000, (1 << 31) - 1)
    send_all(net, window, 5)
    assert net.serial_nos[-5:] == [2**31 - 1, *range(-(2**31), -(2**31) + 4)]


def cause_of(window: SendWindow) -> str:
    assert window.error is not None
    return str(window.error.parameters["cause"])


@pytest.mark.parametrize("use", ["send", "flush"])
def test_a_broker_that_takes_no_bytes_holds_nobody_for_ever(use):
    net, window = run([], max_in_flight=40, delivery_timeout_ms=3_000)
    net.stuck = {1}
    began = net.now
    with pytest.raises(ProduceError) as raised:
        send_all(net, window, 1_000 if use == "send" else 30)
    assert "it took no bytes for 0.5 s" in str(raised.value)
    assert net.now - began <= 4.0


@pytest.mark.parametrize("retry_ambiguous", [True, False])
def test_a_broker_that_takes_no_bytes_for_a_while_gets_what_waited(retry_ambiguous):
    net, window = run([], max_in_flight=40, retry_ambiguous=retry_ambiguous)
    net.stuck = {1}
    net.after(5.0, net.stuck.clear)
    values = send_all(net, window, 200)
    assert sorted(value for _, value in net.stored) == sorted(values)
    assert net.connections > 1


def test_messages_queued_behind_a_connection_have_their_time_too():
    """The first piece of data moves all the time, but too slowly for those behind it."""
    net, window = run([], max_in_flight=1_000, delivery_timeout_ms=4_000)
    net.bytes_per_s = 20_000
    for number in range(600):
        submit(window, net.message(b"%1000d" % number))
    with pytest.raises(ProduceError):
        window.flush()
    assert net.now - 100.0 <= 5.0


def test_a_slow_connection_is_not_taken_for_a_dead_one():
    """A window takes ten time-outs to leave; each answer is due only after its request has left."""
    net, window = run([])
    net.bytes_per_s = 50_000
    for number in range(1_000):
        submit(window, net.message(b"%1000d" % number))
    window.flush()
    assert window.retried == 0
    assert net.connections == 1


def test_a_late_answer_makes_the_window_smaller():
    net, window = run([GOOD] * 3 + [SILENT] + [Fate(delay_s=0.3)] * 60, max_in_flight=64)
    for number in range(64):
        submit(window, net.message(b"%d" % number))
    while not window.retried:
        window._drive(block=True)
    assert window._limit < 64
    window.flush()


def test_silence_is_recognised_at_any_time_of_the_clock():
    """Adding a long time-out and subtracting it again loses bits."""
    for number in range(20):
        net, window = run([GOOD] + [SILENT] * 3, rpc_timeout_ms=1_000_003, delivery_timeout_ms=9_000_000)
        send_all(net, window, 1)
        net.now += 0.000_123 * number
        send_all(net, window, 3)
        assert net.connections == 2


SLOW = Fate(delay_s=0.2)


def run_slowly(**settings: int) -> tuple[VirtualBrokers, SendWindow]:
    net, window = run([], brokers=4, max_in_flight=16, **settings)
    net._fate = lambda _: SLOW
    return net, window


def spread(net: VirtualBrokers, window: SendWindow, seconds: float) -> int:
    """Send for a while; return how many messages were stored."""
    end = net.now + seconds
    before = len(net.stored)
    while net.now < end:
        submit(window, net.message(b"x"))
    return len(net.stored) - before


def test_a_frozen_broker_takes_no_more_than_its_share():
    healthy = spread(*run_slowly(rpc_timeout_ms=10_000), 40.0)
    net, window = run_slowly(rpc_timeout_ms=10_000)
    net.frozen = {1}
    assert spread(net, window, 40.0) >= 0.65 * healthy


def test_a_frozen_broker_is_tried_with_one_message_and_ever_more_seldom():
    net, window = run_slowly(rpc_timeout_ms=1_000)
    net.frozen = {1}
    connections = []
    for _ in range(3):
        spread(net, window, 20.0)
        connections.append(net.connections)
    link = net.links.to(1, Endpoint("b", 1))
    assert link.held <= 1
    assert connections[2] - connections[1] <= 1 < connections[0] - 4
    net.frozen = set()
    spread(net, window, 60.0)
    window.flush()
    assert {partition.broker_id for partition, _ in net.stored} == {1, 2, 3, 4}
    assert link.troubles == 0


def test_large_messages_to_a_frozen_broker_leave_bytes_for_the_others():
    net, window = run(
        [], brokers=4, rpc_timeout_ms=600_000, delivery_timeout_ms=900_000, max_in_flight_bytes=4_000
    )
    net.frozen = {1}
    for number in range(200):
        submit(window, net.message(b"%100d" % number))
    assert net.links.to(1, Endpoint("b", 1)).held_bytes <= 2_000
    assert len(net.stored) > 100


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=60),
    keys=st.lists(st.sampled_from([b"a", b"b", b"c", None]), min_size=1, max_size=60),
    max_in_flight=st.integers(1, 20),
    brokers=st.integers(1, 3),
    batch=st.integers(1, 20),
)
def test_a_partition_is_in_order_whatever_brokers_do(fates, keys, max_in_flight, brokers, batch):
    """With ``keep_order``, and but for repeats; messages without key are as free as without."""
    net, window = run(
        fates, brokers, 2, max_in_flight=max_in_flight, delivery_timeout_ms=6_000_000, keep_order=True
    )
    values = [b"%d" % number for number in range(len(keys))]
    for first in range(0, len(values), batch):
        try:
            send_keyed(net, window, values[first : first + batch], keys[first : first + batch])
        except ProduceError:
            check_broken(net, window)
            return
    window.flush()
    assert {value for _, value in net.stored} == set(values)
    for target in net.partitioner.targets:
        here = dict.fromkeys(int(value) for partition, value in net.stored if partition == target.partition)
        ordered = [number for number in here if keys[number] is not None]
        assert ordered == sorted(ordered)
    assert (window.unacknowledged, window._lines._lines) == (0, {})
    assert all((link.held, link.waiting, link.waiting_bytes) == (0, 0, 0) for link in net.links.all)


def send_keyed(
    net: VirtualBrokers, window: SendWindow, values: Sequence[bytes], keys: Sequence[bytes | None]
) -> None:
    batch = batch_of(values)
    batch._keys = keys
    first = 0
    while first < len(values):
        after = first + window.room(batch.ends, first)
        window.submit(runs(batch, first, [net.choose(key) for key in keys[first:after]]))
        first = after


def test_messages_that_wait_for_an_older_one_fail_in_time_each_with_its_cause():
    told = []
    net, window = run([], rpc_timeout_ms=5_000, delivery_timeout_ms=2_000, keep_order=True)
    net.frozen = {1}
    for number in range(3):
        message = net.message(b"%d" % number, b"k")
        outcomes = Outcomes([lambda _, error: told.append(error)], number + 1, lambda _: None)
        message.batch.outcomes = outcomes
        submit(window, message)
    window.flush()
    assert [error.may_be_stored for error in told] == [False, False, True]
    assert "the message before it in its partition has no outcome" in str(told[0])
    assert net.links.all[0].messages == 0


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_while_messages_are_accepted_ends_the_window(line):
    """Otherwise it would count other messages than it has, and flush would return too early."""
    net, window = run([])
    traced, lines = sys.gettrace(), itertools.count()

    def trace(frame, event: str, argument: object):
        if frame.f_code is SendWindow._accept.__code__ and event == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return trace

    batch = batch_of([b"%d" % number for number in range(10)])
    sys.settrace(trace)
    try:
        window.submit(runs(batch, 0, [net.choose() for _ in range(10)]))
    except KeyboardInterrupt:
        sys.settrace(traced)
        check_broken(net, window)
    else:
        sys.settrace(traced)
        window.flush()
        assert len(net.stored) == 10


FROZEN = 2


def offer(net: VirtualBrokers, window: SendWindow, rate: int, seconds: int, keyed: bool) -> float:
    """Send at a steady rate; return by how much a message was late at most, in seconds."""
    late = 0.0
    for number in range(rate * seconds):
        due = 100.0 + number / rate
        while net.now < due:
            window.wait(due - net.now)
        submit(window, net.message(b"%d" % number, b"%d" % number if keyed else None))
        late = max(late, net.now - due)
    window.wait(0.1)
    return late


@pytest.mark.parametrize("keyed", [True, False])
def test_a_frozen_broker_of_three_delays_messages_for_the_others_once_and_shortly(keyed):
    net, window = run([], 3, max_in_flight=64, rpc_timeout_ms=5_000)
    net.frozen = {FROZEN}
    late = offer(net, window, 300, 10, keyed)
    assert late <= 1.0
    stored = {int(value) for _, value in net.stored}
    link = net.links.to(FROZEN, Endpoint("b", FROZEN))
    if keyed:
        others = {number for number in range(3_000) if net.choose(b"%d" % number).link is not link}
        assert stored == others, "and at the undisturbed rate"
        assert link.messages == 3_000 - len(others)
        copies = sum(net.attempts.values()) - len(net.attempts)
        assert copies <= net.connections, "of what waits for it, one is tried with each connection"
    else:
        assert len(stored) >= 3_000 - 64
    assert len(net.attempts) - len(stored) <= 64, "no more is under way to it than before"


@pytest.mark.parametrize("code", [ErrCode.SERVER_RECEIVE_OVERFLOW, ErrCode.SERVICE_UNAVAILABLE])
def test_a_broker_of_three_that_refuses_everything_does_not_slow_the_others_down(code):
    net, window = run([], 3, max_in_flight=64)
    net.refusing = {FROZEN: code}
    assert offer(net, window, 100, 6, keyed=True) <= 1.0
    link = net.links.to(FROZEN, Endpoint("b", FROZEN))
    others = {number for number in range(600) if net.choose(b"%d" % number).link is not link}
    assert {int(value) for _, value in net.stored} == others
    assert link.messages == 600 - len(others)


@pytest.mark.parametrize("wrong", ["frozen", "unreachable"])
def test_the_share_of_a_broker_is_bounded_by_bytes_and_full_for_it_alone(wrong):
    net, window = run([], 3, rpc_timeout_ms=5_000, max_in_flight_bytes=300_000, max_in_flight=64)
    reach = net.connect
    if wrong == "frozen":
        net.frozen = {FROZEN}
    else:
        net.connect = lambda endpoint: connect_or_not(net, reach, endpoint)
    sick = net.links.to(FROZEN, Endpoint("b", FROZEN))
    well = net.links.to(1, Endpoint("b", 1))
    sent = collections.Counter()
    for number in range(2_000):
        message = net.message(b"%d" % number, b"%d" % number)
        if not message.destination.link.full:
            sent[message.destination.link] += 1
            submit(window, message)
    assert window.full == {FROZEN}
    assert sent[sick] == sick.messages
    assert 100_000 <= sick.held_bytes + sick.waiting_bytes + 256 * sick.messages <= 102_000
    assert sent[well] > 500
    began = net.now
    net.frozen, net.connect = set(), reach
    window.make_room_at(sick)
    assert net.now - began < 10.0
    window.flush()
    assert (window.full, window._links.aside, sick.messages) == (frozenset(), 0, 0)
    assert len(net.stored) >= sent.total()


def test_former_addresses_of_brokers_have_no_shares():
    net, window = run([], 2, max_in_flight=16, rpc_timeout_ms=5_000, delivery_timeout_ms=5_000)
    for port in range(1_000, 1_100):
        net.links.to(1, Endpoint("b", port))
    for broker in (1, 2):
        net.links.to(broker, Endpoint("b", broker))
    send_all(net, window, 10)
    assert net.links._share_messages == 8
    net.frozen = {1, 2}
    with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
        send_all_keyed(net, window, 1_000)
    assert len(net.attempts) <= 60, "no broker is left that could go on"


def connect_or_not(net: VirtualBrokers, reach: Callable, endpoint: Endpoint) -> object:
    net._fate = lambda _: Fate(unreachable=endpoint.port == FROZEN)
    pipeline = reach(endpoint)
    net._fate = lambda _: GOOD
    return pipeline


def test_messages_that_no_broker_takes_fill_the_window_as_before():
    net, window = run([], 3, max_in_flight=16, delivery_timeout_ms=5_000)
    net.frozen = {1, 2, 3}
    with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
        send_all_keyed(net, window, 1_000)
    assert len(net.attempts) <= 40


def send_all_keyed(net: VirtualBrokers, window: SendWindow, count: int) -> None:
    for number in range(count):
        submit(window, net.message(b"%d" % number, b"%d" % number))


@pytest.mark.parametrize("code", [403, 423, 503, 419])
def test_a_refusal_that_may_pass_is_waited_out_for_half_a_minute(code):
    net, window = run([], brokers=1)
    until = net.now + 35
    net._fate = lambda _: Fate(stored=False, code=code) if net.now < until else GOOD
    values = send_all(net, window, 100)
    assert sorted(value for _, value in net.stored) == sorted(values)


def test_a_topic_without_partitions_is_waited_for(caplog):
    net, window = run([OVERFLOW] * 10)
    net.nowhere = "the master lists none"
    net.after(40.0, lambda: setattr(net, "nowhere", ""))
    send_all(net, window, 10)
    assert len(net.stored) == 10
    assert net.refreshed >= 30
    lines = [record.getMessage() for record in caplog.records if "topic" in record.getMessage()]
    assert len(lines) == 2
    assert lines[0] == "test: topic demo is away: the master lists none"
    assert "topic demo is back after" in lines[-1]
    assert lines[-1].endswith("10 messages waited")


def test_a_topic_that_stays_without_partitions_fails_with_that():
    net, window = run([OVERFLOW] * 10, delivery_timeout_ms=5_000)
    net.nowhere = "the master lists none"
    began = net.now
    with pytest.raises(ProduceError, match="the master lists none"):
        send_all(net, window, 10)
    assert 4.0 <= net.now - began <= 6.0


def test_a_refused_token_is_renewed_and_tried_again():
    net, window = run([Fate(stored=False, code=415)] * 5)
    send_all(net, window, 5)
    assert len(net.stored) == 5
    assert net.refreshed == 1


def test_a_renewed_token_that_is_refused_is_an_error():
    net, window = run([Fate(stored=False, code=415)] * 1_000)
    with pytest.raises(ProduceError, match=r"attempts: 2\): the broker answered 415"):
        send_all(net, window, 1)
    assert net.refreshed == 1


def test_a_token_may_be_refused_again_after_another_answer():
    net, window = run([TOKEN, OVERFLOW, TOKEN])
    send_all(net, window, 1)
    assert net.attempts == {b"0": 4}
    assert net.refreshed == 2


def test_a_message_waits_until_a_master_has_sent_a_newer_token():
    net, window = run([TOKEN])
    net.master_away = True
    net.after(20.0, lambda: setattr(net, "master_away", False))
    began = net.now
    send_all(net, window, 1)
    assert net.attempts == {b"0": 2}
    assert 20.0 <= net.now - began <= 22.0


def test_a_message_whose_token_stays_refused_is_given_up_in_time():
    net, window = run([TOKEN], delivery_timeout_ms=5_000)
    net.master_away = True
    began = net.now
    with pytest.raises(ProduceError, match=r"attempts: 1\): the broker answered 415"):
        send_all(net, window, 1)
    assert 4.0 <= net.now - began <= 6.0


def test_a_broker_that_fails_after_storing_makes_few_copies_and_the_error_names_the_message_time():
    net, window = run([Fate(code=500)] * 1_000)
    with pytest.raises(ProduceError, match=r"500 .*message time"):
        send_all(net, window, 20)
    assert max(net.attempts.values()) <= 6


def test_only_unanswered_attempts_may_be_stored_twice():
    net, window = run([OVERFLOW, Fate(stored=False, code=503), LOST, GOOD])
    send_all(net, window, 1)
    (receipt,) = [one.receipt() for one in net.partitioner.targets]
    assert (receipt.count, receipt.retried, receipt.unanswered) == (1, 1, 1)
    assert len(net.stored) - receipt.count <= receipt.unanswered


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=60), count=st.integers(1, 50), brokers=st.integers(1, 3)
)
def test_copies_are_never_more_than_the_receipts_tell(fates, count, brokers):
    net, window = run(fates, brokers, 2, delivery_timeout_ms=600_000)
    try:
        send_all(net, window, count)
    except ProduceError:
        return
    told = sum(one.receipt().unanswered for one in net.partitioner.targets)
    assert len(net.stored) - count <= told


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=60),
    count=st.integers(1, 50),
    brokers=st.integers(1, 3),
    delivery_ms=st.sampled_from([1, 700, 600_000]),
    stuck_s=st.sampled_from([0.0, 0.0, 2.0]),
)
def test_nothing_is_stored_twice_when_that_is_forbidden(fates, count, brokers, delivery_ms, stuck_s):
    net, window = run(fates, brokers, 2, retry_ambiguous=False, delivery_timeout_ms=delivery_ms)
    if stuck_s:
        net.stuck = {1}
        net.after(stuck_s, net.stuck.clear)
    failed = None
    try:
        send_all(net, window, count)
    except ProduceError as error:
        failed = error
        check_broken(net, window)
    copies = collections.Counter(value for _, value in net.stored)
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
def test_what_is_surely_not_stored_is_always_sent_again(fates, count, brokers):
    net, window = run(fates, brokers, 2, retry_ambiguous=False)
    values = send_all(net, window, count)
    assert sorted(value for _, value in net.stored) == sorted(values)


def test_a_message_whose_time_ends_without_an_answer_may_be_stored():
    net, window = run([SILENT] * 2, rpc_timeout_ms=60_000, delivery_timeout_ms=2_000)
    with pytest.raises(ProduceError, match=r"may or may not be stored .*did not answer in time") as raised:
        send_all(net, window, 1)
    assert raised.value.parameters["unanswered"] == 1


def test_a_message_that_never_left_is_not_stored():
    net, window = run([], rpc_timeout_ms=60_000, delivery_timeout_ms=2_000)
    net.stuck = {1}
    with pytest.raises(ProduceError, match=r"was not stored .*took no messages in time"):
        send_all(net, window, 1)


def test_a_broker_that_goes_and_comes_back_is_told_of_twice(caplog):
    net, window = run([])
    send_all(net, window, 5)
    net._fate = lambda _: Fate(unreachable=True, lost=True, stored=False)
    net.after(20.0, lambda: setattr(net, "_fate", lambda _: GOOD))
    send_all(net, window, 7)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0].startswith("test: broker 1 is away: the connection to b:1 failed: ")
    assert lines[1].startswith("test: broker 1 is back after ")
    assert lines[1].endswith("7 messages waited")


def test_refusals_of_one_kind_are_told_together(caplog):
    net, window = run([OVERFLOW] * 2_000)
    send_all(net, window, 200)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 3
    assert "419" in lines[0]
