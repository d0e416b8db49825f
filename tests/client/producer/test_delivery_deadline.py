"""No call of a producer takes much longer than the delivery timeout, whichever server does not answer.

A single request may take ten minutes here, which is longer than a test may.
"""

import contextlib

import pytest

from testkit.message_sender import MessageSender
from tests.client.producer.test_send_batch import batch_of
from tests.client.ranges import config_of
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError, TubeMQConnectionError
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method

NEVER_MS = 600_000
TIME_MS = 300


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}, brokers=3) as running:
        yield running
        running.faults.release()


@contextlib.contextmanager
def producer_of(server, connections, **settings):
    """A producer that a test may leave broken; closing it takes no longer either."""
    settings = {"rpc_timeout_ms": NEVER_MS, "delivery_timeout_ms": TIME_MS, **settings}
    with contextlib.closing(MessageSender(config_of(server, **settings), connections)) as producer:
        yield producer


def send_many(producer, count):
    for _ in range(count):
        producer.send("demo", b"x")


@pytest.mark.parametrize(
    ("method", "closed"),
    [(Method.PRODUCER_REGISTER, False), (Method.PRODUCER_HEARTBEAT, False), (Method.BALANCE_REGISTER, True)],
    ids=["register", "heartbeat", "whether a closed topic exists"],
)
def test_a_master_that_does_not_answer(server, connections, method, closed):
    if closed:
        server.close_topic("demo")
    held = server.faults.hold(method)
    with producer_of(server, connections) as producer:
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_NO_MASTER"):
            producer.send("demo", b"x")
        assert held.hits > 0


def test_a_master_that_does_not_answer_the_farewell_of_a_question_for_a_partition(server, connections):
    held = server.faults.hold(Method.CONSUMER_CLOSE)
    with producer_of(server, connections) as producer:
        with pytest.raises(ProduceError, match="TUBEMQ_PARTITION_UNKNOWN"):
            producer.send("demo", b"x", partition=(7, 0))
        assert held.hits == 1


def test_a_heartbeat_that_is_not_answered_holds_no_call_up(server, connections):
    with producer_of(server, connections, heartbeat_period_ms=20, delivery_timeout_ms=60_000) as producer:
        producer.send("demo", b"x")
        producer.flush()
        held = server.faults.hold(Method.PRODUCER_HEARTBEAT)
        wait_until(lambda: held.hits == 1)
        routing = producer._pipeline._routing
        settings, routing._config = routing._config, config_of(server, delivery_timeout_ms=TIME_MS)
        with pytest.raises(TubeMQConnectionError, match="the request before, which has no answer yet"):
            producer.send("other", b"x")
        routing._config = settings
        producer.send("demo", b"y")
        producer.flush()
    assert server.stats().messages_in == 2
    assert held.hits == 1


@pytest.mark.parametrize("retry_ambiguous", [True, False])
def test_brokers_that_do_not_answer(server, connections, retry_ambiguous):
    server.faults.hold(Method.SEND_MESSAGE)
    with producer_of(server, connections, retry_ambiguous=retry_ambiguous) as producer:
        producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"TUBEMQ_SEND_FAILED\.AMBIGUOUS.*did not answer in time"):
            producer.flush()


def test_a_window_in_which_there_is_no_room(server, connections):
    server.faults.hold(Method.SEND_MESSAGE)
    with producer_of(server, connections, max_in_flight=4) as producer:
        with pytest.raises(ProduceError, match=r"TUBEMQ_SEND_FAILED\.AMBIGUOUS"):
            send_many(producer, 1_000)
        assert 4 <= producer.unacknowledged < 100, "it was waiting for room"


def session_of(producer):
    return producer._pipeline._session


def test_a_partition_that_does_not_come_back(server, connections):
    """Its messages wait for it in the send window, and those for others pass them."""
    with producer_of(server, connections) as producer:
        producer.send("demo", b"x", partition=(2, 0))
        producer.flush()
        server.faults.stop_broker(2, graceful=True)
        run(session_of(producer).refresh())
        producer.send("demo", b"y", partition=(2, 0))
        producer.send("demo", b"z", partition=(1, 0))
        with pytest.raises(ProduceError, match=r"TUBEMQ_SEND_FAILED\].*does not list demo/2:0"):
            producer.flush()
    assert server.stats().messages_in == 2


def test_a_partition_that_was_not_listed_so_far_is_waited_for_once(server, connections):
    server.faults.stop_broker(2, graceful=True)
    asked = []
    with producer_of(server, connections) as producer:
        for _ in range(3):
            with pytest.raises(ProduceError, match="TUBEMQ_PARTITION_AWAY") as raised:
                producer.send("demo", b"x", partition=(2, 0))
            assert raised.value.retriable
            asked.append(session_of(producer).heartbeats_begun)
        assert asked[0] > 1
        assert len(set(asked)) == 1, "the time of the first message was that of all"
        server.faults.start_broker(2)
        run(session_of(producer).refresh())
        producer.send("demo", b"x", partition=(2, 0))
        producer.flush()


def test_a_partition_that_does_not_exist_is_asked_for_once_in_a_batch(server, connections):
    asked = server.faults.delay(Method.BALANCE_REGISTER, 0)
    refused = []
    with producer_of(server, connections) as producer:
        batch = batch_of([b"x"] * 5, partitions=[(7, 0)] * 4 + [(2, 0)])
        producer.send_batch(batch, lambda row, error: refused.append((row, error.condition)))
        producer.flush()
    assert refused == [(row, "TUBEMQ_PARTITION_UNKNOWN") for row in range(4)]
    assert asked.hits == 1
    assert server.stats().messages_in == 1
