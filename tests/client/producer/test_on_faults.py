"""Producing to a whole server where things go wrong: everything is stored, or an error says why not."""

import collections
import errno
import operator

import pytest

from testkit.connections import opened
from testkit.message_sender import MessageSender
from tests.client.ranges import config_of
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.client.master.producers import fresh_visit_token
from tubemq_spark.client.metadata.positions import store_bounds
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route
from tubemq_spark.net.loop import run
from tubemq_spark.offsets.loss import fail_on_loss
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.send_batch import SendBatch

TOPIC = "demo"
SENT = [b"%d" % number for number in range(200)]


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (2, 1)}) as running:
        yield running


def produce(server, connections, values=SENT, **changes):
    """Return how often a message was sent again."""
    with MessageSender(config_of(server, **changes), connections) as producer:
        producer.send_batch(SendBatch.of(TOPIC, values))
        producer.flush()
        return producer.retried


def test_a_broker_without_space_is_told_as_what_it_is(server, connections, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "append", full)
    with pytest.raises(ProduceError) as failed:
        produce(server, connections, SENT[:1], delivery_timeout_ms=1_000)
    assert "No space left on device; free space on the server's disk" in str(failed.value)
    assert "start it" not in str(failed.value)


def stored(server, connections):
    """Return how often each message is there."""
    settings = config_of(server)
    with opened(BalanceSession(settings, connections, (TOPIC,))) as session:
        partitions, token = run(session.layout()).partitions, session.visit_token
    stores = {partition.store_id: endpoint for partition, endpoint in partitions.items()}
    bounds = run(store_bounds(settings, connections, stores, token)).complete()
    found = collections.Counter()
    for partition, endpoint in partitions.items():
        whole = bounds[partition.store_id]
        work = RangeRequest(OffsetRange(partition, whole.earliest, whole.latest), Route(endpoint, token))
        for batch in read_in_thread(read_range(settings, connections, work), work.range, fail_on_loss):
            found.update(batch.columns.message(row).value for row in range(len(batch.columns)))
    return found


fault = operator.methodcaller
SEND = Method.SEND_MESSAGE
NOT_STORED = {
    "503": fault("answer", SEND, ErrCode.SERVICE_UNAVAILABLE, skip=10, times=3),
    "419": fault("answer", SEND, ErrCode.SERVER_RECEIVE_OVERFLOW, skip=10, times=30),
    "500": fault("answer", SEND, ErrCode.INTERNAL_SERVER_ERROR, times=1),
}
PERHAPS_STORED = {
    "a lost connection": fault("drop_connection", SEND, skip=10, times=1),
    "a lost connection behind a store": fault("drop_connection", SEND, skip=10, times=1, carried_out=True),
    "two lost connections": fault("drop_connection", SEND, skip=10, times=2),
    "a truncated frame": fault("truncate", SEND, skip=10, times=1),
    "a damaged frame": fault("corrupt", SEND, skip=10, times=1),
    "a damaged message": fault("corrupt", SEND, at=-3, skip=10, times=1),
    "a late answer": fault("delay", SEND, 60_000, skip=10, times=1, carried_out=True),
}


@pytest.mark.parametrize("fault", NOT_STORED)
def test_what_was_refused_is_sent_again_and_stored_once(server, connections, fault):
    rule = NOT_STORED[fault](server.faults)
    assert produce(server, connections) == rule.hits > 0
    assert stored(server, connections) == dict.fromkeys(SENT, 1)


@pytest.mark.parametrize("fault", PERHAPS_STORED)
def test_what_has_no_answer_is_sent_again_and_stored_at_least_once(server, connections, fault):
    rule = PERHAPS_STORED[fault](server.faults)
    retried = produce(server, connections, rpc_timeout_ms=300)
    assert rule.hits > 0
    assert retried > 0
    server.faults.clear()
    counts = stored(server, connections)
    assert set(counts) == set(SENT)
    assert counts.total() <= len(SENT) + retried


def test_a_trouble_that_stays_is_an_error_with_the_brokers_words(server, connections):
    server.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVICE_UNAVAILABLE, "closed for repairs")
    with pytest.raises(ProduceError, match="closed for repairs"):
        produce(server, connections, [b"x"], delivery_timeout_ms=200)


def test_a_refusal_for_good_stops_everything_behind_it(server, connections):
    rule = server.faults.answer(Method.SEND_MESSAGE, ErrCode.BAD_REQUEST, skip=5, times=1)
    with pytest.raises(ProduceError):
        produce(server, connections, max_in_flight=1)
    assert rule.hits == 1
    assert stored(server, connections) == dict.fromkeys(SENT[:5], 1)


def test_a_master_that_hangs_up_at_the_register_is_asked_again(server, connections):
    rule = server.faults.drop_connection(Method.PRODUCER_REGISTER, times=2)
    produce(server, connections, register_retry_ms=0)
    assert rule.hits == 2
    assert stored(server, connections) == dict.fromkeys(SENT, 1)


def test_a_master_that_hangs_up_when_routes_are_asked_for_is_asked_again(server, connections):
    rule = server.faults.drop_connection(Method.PRODUCER_HEARTBEAT, times=1)
    produce(server, connections)
    assert rule.hits == 1
    assert stored(server, connections) == dict.fromkeys(SENT, 1)


def test_a_master_that_never_tells_the_routes_fails_the_send_and_nothing_else(server, connections):
    rule = server.faults.drop_connection(Method.PRODUCER_HEARTBEAT)
    with MessageSender(config_of(server, delivery_timeout_ms=1_000), connections) as producer:
        with pytest.raises(TubeMQConnectionError) as caught:
            producer.send(TOPIC, SENT[0])
        assert caught.value.retriable
        assert rule.hits > 1
        rule.cancel()
        for value in SENT:
            producer.send(TOPIC, value)
    assert stored(server, connections) == dict.fromkeys(SENT, 1)


def test_the_second_master_is_asked_when_the_first_is_a_standby(server, connections):
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}) as standby:
        standby.faults.become_standby()
        masters = (Endpoint.parse(standby.master), Endpoint.parse(server.master))
        produce(server, connections, masters=masters)
        assert standby.stats().messages_in == 0
        assert run(fresh_visit_token(config_of(server, masters=masters), connections)) is not None
        with opened(BalanceSession(config_of(server, masters=masters), connections, (TOPIC,))) as session:
            assert {partition.store_id.store for partition in run(session.layout()).partitions} == {0, 1}
    assert stored(server, connections) == dict.fromkeys(SENT, 1)


def test_only_standby_masters_are_an_error(server, connections):
    server.faults.become_standby()
    with pytest.raises(TubeMQConnectionError):
        produce(
            server, connections, [b"x"], register_attempts=2, register_retry_ms=0, delivery_timeout_ms=200
        )
