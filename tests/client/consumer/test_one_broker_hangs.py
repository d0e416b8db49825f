"""One broker of three that does not answer costs a consumer one turn, and its users nothing of the others.

The tests count what the broker is asked. Those who wait are asked to be patient by no more than a moment.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.assigned import TOPIC, consumer_of, partition, produce
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQTimeoutError
from tubemq_spark.protocol.constants import Method

SILENT = 1
SILENT_ONES = [partition(SILENT, number * 10_000) for number in range(4)]
OTHERS = [partition(broker) for broker in (2, 3)]


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3) as running:
        for one in (*SILENT_ONES, *OTHERS):
            produce(running, [b"%d" % number for number in range(20)], where=one)
        yield running


@pytest.fixture
def consumer(server):
    with consumer_of(server, rpc_timeout_ms=60_000) as opened:
        for one in (*SILENT_ONES, *OTHERS):
            opened.connect(one, 0)
        yield opened


def read_others(consumer, rounds):
    """Fetch and roll back; return of which brokers messages came."""
    brokers = set()
    for _ in range(rounds):
        batch = consumer.fetch(30_000)
        assert batch is not None, "the others have messages"
        brokers.add(batch.partition.broker_id)
        consumer.confirm(batch, consumed=False)
    return brokers


def test_a_broker_that_hangs_is_asked_once_and_the_others_go_on(server, consumer):
    held = server.faults.hold(Method.GET_MESSAGE, broker=SILENT)
    assert read_others(consumer, 60) == {2, 3}
    assert held.hits == 1
    held.release()
    wait_until(lambda: read_others(consumer, 3) & {SILENT})


def test_a_batch_that_came_too_late_is_refused_at_once_while_its_partition_is_being_fetched(server):
    """Its partition's lock belongs to a fetch, which ends when the broker answers."""
    with consumer_of(server, rpc_timeout_ms=60_000, confirm_timeout_ms=100) as consumer:
        consumer.connect(SILENT_ONES[0], 0)
        batch = consumer.fetch(10_000)
        held = server.faults.hold(Method.GET_MESSAGE, broker=SILENT)
        wait_until(lambda: consumer.fetch(0) is None and held.hits)
        confirming = ThreadPoolExecutor(1).submit(consumer.confirm, batch)
        assert "TUBEMQ_CONFIRM_LATE" in str(confirming.exception(30))
        held.release()


def test_a_partition_is_given_up_while_it_is_being_fetched(server, consumer):
    """The answer to the fetch is not waited for: it would come in a minute."""
    held = server.faults.hold(Method.GET_MESSAGE, broker=SILENT)
    assert consumer.fetch(10_000).partition in OTHERS
    wait_until(lambda: held.hits)
    (asked,) = [one for one in SILENT_ONES if consumer.status()[one].state.value == "fetching"]
    giving_up = ThreadPoolExecutor(1).submit(consumer.disconnect, asked)
    assert giving_up.result(30)
    held.release()


def test_a_broker_that_is_away_costs_one_attempt_at_a_time_and_its_partitions_rest_together(server):
    with consumer_of(server, rpc_timeout_ms=1_000) as consumer:
        for one in (*SILENT_ONES, *OTHERS):
            consumer.connect(one, 0)
        methods = (Method.GET_MESSAGE, Method.PARTITION_REGISTER)
        held = [server.faults.hold(method, broker=SILENT) for method in methods]
        brokers = consumer._core.state.cache.brokers
        wait_until(
            lambda: read_others(consumer, 5) == {2, 3} and brokers._brokers[SILENT].failures >= 3, seconds=60
        )
        assert sum(rule.hits for rule in held) <= brokers._brokers[SILENT].failures + 1
        for rule in held:
            rule.release()
        wait_until(lambda: SILENT in read_others(consumer, 5))
        assert not brokers.is_away(SILENT)


def test_a_confirmation_at_a_broker_that_hangs_ends_by_its_own_bound(server):
    with consumer_of(server, rpc_timeout_ms=1_000) as consumer:
        consumer.connect(SILENT_ONES[0], 0)
        batch = consumer.fetch(10_000)
        server.faults.hold(Method.COMMIT_OFFSET, broker=SILENT)
        with pytest.raises(TubeMQTimeoutError):
            consumer.confirm(batch)
