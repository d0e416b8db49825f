"""The master refuses all topics when one of them does not exist; a running query goes on with the others."""

import contextlib
import socket

import pytest

from testkit.connections import opened_connections
from tests.client.scripted_master import ScriptedMaster, config_for, meta, partition, registered, token
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata import topics as layout_module
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import RpcError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method


def master_without(*removed):
    """Return a master that knows every topic but these."""

    def register(request):
        if set(removed) & set(request.topicList):
            return registered(431, "topic not exist", brokers=())
        return registered(authorizedInfo=token(len(request.topicList)))

    def partition_meta(request):
        return meta(*(f"{topic}#1:1:1:1" for topic in sessions[request.clientId]))

    sessions = {}

    def remember(request):
        sessions[request.clientId] = request.topicList
        return register(request)

    return ScriptedMaster(balance_register=remember, balance_partition_meta=partition_meta)


def layout(master, *topics, missing_ok):
    with opened_connections() as connections:
        transport = DirectTransport(config_for(master), connections)
        return loop.run(transport.layout(topics, missing_ok=missing_ok))


def test_topics_that_exist_are_asked_for_at_once():
    with master_without() as master:
        found = layout(master, "one", "two", missing_ok=True)

        assert list(found.partitions) == [partition(1, 0, "one"), partition(1, 0, "two")]
        assert found.missing_topics == frozenset()
        assert len(master.of(Method.BALANCE_REGISTER)) == 1


def test_the_topics_that_are_left_are_found():
    with master_without("two") as master:
        found = layout(master, "one", "two", "three", missing_ok=True)

        assert list(found.partitions) == [partition(1, 0, "one"), partition(1, 0, "three")]
        assert found.missing_topics == {"two"}
        assert found.visit_token == 1


def test_a_missing_topic_among_many_is_found_by_halves():
    names = [f"topic_{number}" for number in range(64)]
    with master_without("topic_20") as master:
        found = layout(master, *names, missing_ok=True)

        assert len(found.partitions) == 63
        assert list(found.partitions) == sorted(found.partitions)
        assert found.missing_topics == {"topic_20"}
        assert len(master.of(Method.BALANCE_REGISTER)) == 1 + 2 * 6


def test_more_topics_than_a_master_takes_at_once_are_asked_for_in_turn():
    names = [f"topic_{number}" for number in range(2_500)]
    with master_without() as master:
        found = layout(master, *names, missing_ok=False)

        assert len(found.partitions) == 2_500
        assert list(found.partitions) == sorted(found.partitions)
        sizes = [len(register.topicList) for register in master.of(Method.BALANCE_REGISTER)]
        assert sizes == [1024, 1024, 452]


def test_an_error_lists_few_of_many_topics():
    names = [f"topic_{number}" for number in range(1_000)]
    with master_without("topic_0") as master, pytest.raises(RpcError) as refused:
        layout(master, *names, missing_ok=False)
    assert " and 990 more" in str(refused.value)
    assert len(str(refused.value)) < 1_000


def test_nothing_may_be_left():
    with master_without("one") as master:
        found = layout(master, "one", missing_ok=True)

        assert (found.partitions, found.missing_topics) == ({}, {"one"})


def error_of(topics, web):
    with (
        EmbeddedTubeMQ(topics={"orders": (1, 1), "clicks": (1, 1)}) as server,
        opened_connections() as connections,
    ):
        config = ClientConfig((Endpoint.parse(server.master),), "etl")
        with pytest.raises(RpcError) as refused:
            loop.run(DirectTransport(config, connections, web=lambda: web(server)).layout(topics))
        return str(refused.value)


def test_the_error_names_topics_that_were_perhaps_meant():
    def web(server):
        return [Endpoint("127.0.0.1", 1), Endpoint.parse(server.master_web)]

    assert error_of(["clicks", "ordres"], web).endswith("correct its name (did you mean 'orders'?).")
    both = error_of(["ordres", "klicks"], web)
    assert both.endswith("correct its name (did you mean 'orders'? did you mean 'clicks'?).")
    assert error_of(["xyzzy"], web).endswith("create the topic, or correct its name.")


def test_only_the_first_of_many_topics_are_compared_with_those_there_are(monkeypatch):
    compared = []
    monkeypatch.setattr(layout_module, "did_you_mean", lambda topic, _names: compared.append(topic) or "")
    missing = [f"missing_{number}" for number in range(200)]
    error_of(["clicks", *missing], lambda server: [Endpoint.parse(server.master_web)])
    assert compared == missing[:3]


def test_the_error_comes_without_names_when_no_master_lists_them(monkeypatch):
    monkeypatch.setattr(layout_module, "_LISTING_S", 0.05)
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        web = [Endpoint("127.0.0.1", silent.getsockname()[1])] * 20
        assert error_of(["ordres"], lambda _server: web).endswith("create the topic, or correct its name.")
        silent.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                asked.append(silent.accept()[0])
    assert len(asked) == 4
    for connection in asked:
        connection.close()


def test_a_query_that_starts_is_told():
    with master_without("two") as master, pytest.raises(RpcError) as refused:
        layout(master, "one", "two", missing_ok=False)
    assert refused.value.code == 431
