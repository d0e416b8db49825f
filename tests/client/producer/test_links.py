"""A broker that failed is asked whether it answers; no message that could go elsewhere finds out."""

import asyncio
import os
import resource

import pytest

from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tests.client.ranges import config_of
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer import links
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run

TOPIC = "demo"
AWAY = 2
ROUNDS = 20


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3) as running:
        yield running


@pytest.fixture
def sender(server, monkeypatch):
    """A sender that soon tries a broker again, and has sent to all three."""
    monkeypatch.setattr(links, "_AVOID_S", 0.01)
    monkeypatch.setattr(links, "_AVOID_AT_MOST_S", 0.02)
    with (
        opened_connections() as connections,
        MessageSender(config_of(server, rpc_timeout_ms=300), connections) as sender,
    ):
        micro_batch(sender)
        assert stored_at(sender, AWAY)
        yield sender


def micro_batch(sender):
    for number in range(100):
        sender.send(TOPIC, b"%d" % number)
    sender.flush()


def stored_at(sender, broker):
    return sum(one.count for one in sender.receipts() if one.partition.broker_id == broker)


def comes_back(sender):
    before = stored_at(sender, AWAY)

    def is_used():
        micro_batch(sender)
        return stored_at(sender, AWAY) > before

    wait_until(is_used)


def test_micro_batches_pass_over_a_frozen_broker_until_it_answers(server, sender):
    server.faults.freeze_broker(AWAY)
    micro_batch(sender)
    repeated = sender.retried
    assert repeated
    for _ in range(ROUNDS):
        micro_batch(sender)
    assert sender.retried == repeated

    server.faults.start_broker(AWAY)
    comes_back(sender)


def test_a_broker_that_was_stopped_is_used_again(server, sender):
    server.faults.stop_broker(AWAY)
    for _ in range(ROUNDS):
        micro_batch(sender)
    server.faults.start_broker(AWAY)
    comes_back(sender)


@pytest.mark.parametrize(
    ("answer", "answers"),
    [
        (lambda asked: asked.fail("Anything", "no"), True),
        (lambda asked: asked.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"), False),
        (lambda asked: asked.hang_up(), False),
        (lambda asked: None, False),
    ],
    ids=["a refusal", "another protocol", "the end", "nothing"],
)
def test_every_answer_will_do_and_nothing_else(server, answer, answers):
    with RpcServer(answer) as broker:
        assert run(links.answers(config_of(server, rpc_timeout_ms=200), "me", broker.endpoint)) is answers


def test_an_address_without_a_listener_does_not_answer(server):
    with RpcServer(lambda asked: None) as broker:
        endpoint = Endpoint("127.0.0.1", broker.endpoint.port)
    assert run(links.answers(config_of(server), "me", endpoint)) is False


def test_without_a_descriptor_no_broker_answers():
    endpoint = Endpoint("127.0.0.1", 1)
    config, (soft, hard) = ClientConfig((endpoint,), "etl"), resource.getrlimit(resource.RLIMIT_NOFILE)
    run(asyncio.sleep(0))  # the loop has its own descriptors by now
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        assert run(links.answers(config, "me", endpoint)) is False
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_question_that_is_dropped_at_the_end_counts_as_no_answer():
    brokers = links.BrokerLinks(1_000, probe=lambda _: asyncio.sleep(60, True))
    answers = []
    brokers.on_answer = lambda: answers.append("answered")
    brokers.avoid(brokers.to(1, Endpoint("127.0.0.1", 1)), 0.0)
    brokers.forgive(1_000.0)
    await asyncio.sleep(0)
    await brokers.close()
    await asyncio.sleep(0)
    assert answers == []
