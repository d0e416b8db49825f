"""The window's promises, in virtual time: at least once or an error, bounds, order, pauses."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from tests.client.virtual_brokers import Fate, VirtualBrokers
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.send_window import SendWindow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint

GOOD = Fate()
OVERFLOW = Fate(stored=False, code=419)
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
    fates: Sequence[Fate], brokers: int = 1, partitions: int = 1, **settings: int
) -> tuple[VirtualBrokers, SendWindow]:
    """Make a window over brokers that follow ``fates`` request by request, then behave."""
    net = VirtualBrokers(lambda number: fates[number] if number < len(fates) else GOOD, brokers, partitions)
    settings = {"rpc_timeout_ms": 500, "send_retry_ms": 60_000, **settings}
    config = ClientConfig(masters=(Endpoint("m", 1),), group="test", **settings)
    return net, SendWindow(config, net, net.links, net, net.clock)


def send_all(net: VirtualBrokers, window: SendWindow, count: int, key: bytes | None = None) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    for value in values:
        window.submit(net.message(value, key))
    window.flush()
    return values


def check_broken(net: VirtualBrokers, window: SendWindow) -> None:
    requests = net.requests
    for use in (lambda: window.submit(net.message(b"more")), window.flush):
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
    retry_ms=st.sampled_from([0, 100, 2_000, 600_000]),
)
def test_every_message_is_stored_or_an_error_is_raised(fates, count, max_in_flight, brokers, retry_ms):
    net, window = run(fates, brokers, 2, max_in_flight=max_in_flight, send_retry_ms=retry_ms)
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


@settings(deadline=None)
@given(fates=st.lists(st.sampled_from([GOOD, LOST_BEFORE]), max_size=30), count=st.integers(1, 60))
def test_lost_connections_keep_the_order_of_a_partition(fates, count):
    net, window = run(fates, max_in_flight=16)
    values = send_all(net, window, count, key=b"k")
    first_seen = list(dict.fromkeys(value for _, value in net.stored))
    assert first_seen == values


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 256])
def test_no_more_messages_are_under_way_than_the_window_holds(max_in_flight):
    net, window = run([], max_in_flight=max_in_flight)
    send_all(net, window, 600)
    assert net.most_unanswered <= max_in_flight
    assert net.most_unanswered >= min(max_in_flight, 32)


@pytest.mark.parametrize(("limit", "most"), [(99, 1), (100, 1), (199, 1), (200, 2), (1000, 10)])
def test_no_more_bytes_are_under_way_than_the_window_holds(limit, most):
    net, window = run([], max_in_flight_bytes=limit)
    for number in range(50):
        window.submit(net.message(b"%100d" % number))
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
    "fate", [OVERFLOW, LOST, SILENT, Fate(code=503, stored=False), Fate(unreachable=True)]
)
def test_a_message_is_given_up_when_its_time_is_over(fate):
    net, window = run([fate] * 1_000, send_retry_ms=3_000)
    began = net.now
    with pytest.raises(ProduceError, match="demo/1:0 did not take a message"):
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


def test_an_answer_that_comes_after_its_time_counts_for_nothing():
    net, window = run([Fate(delay_s=0.55), GOOD, Fate(delay_s=0.3)])
    send_all(net, window, 3)
    assert sum(one.count for one in net.partitioner.targets) == 3
    assert net.attempts[b"0"] == 2


def test_time_between_calls_does_not_run_out():
    net, window = run([Fate(delay_s=0.4)], rpc_timeout_ms=5_000)
    window.submit(net.message(b"a"))
    for _ in range(3):
        net.now += 3_600
        window.submit(net.message(b"b"))
    window.flush()
    assert window.retried == 0


def test_answers_out_of_order_reach_their_messages():
    net, window = run([Fate(delay_s=0.05 - number / 1_000) for number in range(40)], partitions=4)
    send_all(net, window, 40)
    offsets = {one.partition.partition_id: one.receipt() for one in net.partitioner.targets}
    for number, receipt in offsets.items():
        assert (receipt.count, receipt.first_offset, receipt.last_offset) == (
            10,
            28 * number,
            28 * (36 + number),
        )


def test_round_robin_goes_around_a_broker_in_trouble():
    net = VirtualBrokers(lambda _: GOOD, brokers=3)
    net.links.avoid(2, net.now + 1)
    chosen = [net.partitioner.by_turn(net.links.avoided).partition.broker_id for _ in range(6)]
    assert chosen == [1, 3, 1, 3, 1, 3]
    net.links.forgive(net.now + 2)
    assert net.links.avoided == {}


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
    window.submit(net.message(b"a"))

    def interrupted(_: float) -> list:
        raise KeyboardInterrupt

    net.drive = interrupted
    with pytest.raises(KeyboardInterrupt):
        window.flush()
    with pytest.raises(ProduceError, match="1 messages not acknowledged"):
        window.flush()


def test_serial_numbers_go_round_like_java_ints():
    net, window = run([])
    window.submit(net.message(b"a"))
    window.flush()
    link = net.links.to(Endpoint("b", 1))
    link.serial_no = (1 << 31) - 2
    send_all(net, window, 5)
    assert link.serial_no == -(1 << 31) + 3
