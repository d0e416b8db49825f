"""Which topics and partitions there are, and where, is the master's word; also while a group is busy."""

import asyncio
import contextlib
import socket

import pytest

from testkit.connections import opened_connections
from tests.client.ranges import TOPIC, partition as partition_numbered
from tests.client.scripted_master import (
    ScriptedMaster,
    config_for,
    meta,
    partition,
    producer_beat,
    registered,
    token,
)
from tests.embedded.web import close_topic, remove_topic
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata import topics as layout_module
from tubemq_spark.client.metadata.topics import (
    configured_partitions,
    find_partition,
    place_of,
    refuse_unknown_topic,
)
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError, RpcError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.loop import run
from tubemq_spark.offsets.loss import Loss
from tubemq_spark.protocol.constants import Method


@pytest.mark.parametrize(
    ("register", "meta_answer", "expected"),
    [
        (registered(), meta("demo#1:1:2:1"), frozenset({partition(1, 0), partition(1, 1)})),
        (registered(425, "other topics"), None, None),
        (registered(455, "barred"), None, None),
    ],
)
def test_readers_are_told_which_partitions_a_topic_has(connections, register, meta_answer, expected):
    with ScriptedMaster(balance_register=register, balance_partition_meta=meta_answer) as master:
        assert run(configured_partitions(config_for(master), connections, "demo")) == expected


def test_readers_are_told_that_a_topic_does_not_exist(connections):
    with (
        ScriptedMaster(balance_register=registered(431, "no such topic")) as master,
        pytest.raises(ProduceError, match="Topic 'demo' does not exist"),
    ):
        run(refuse_unknown_topic(config_for(master), connections, "demo"))


def test_a_topic_that_can_be_published_to_is_not_looked_at_as_a_reader(connections):
    with ScriptedMaster(producer_heartbeat=producer_beat("demo#1:1:1#")) as master:
        run(refuse_unknown_topic(config_for(master), connections, "demo"))
        assert not master.of(Method.BALANCE_REGISTER)


HOME = Endpoint("broker", 8123)


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}) as running:
        yield running


def find(server, number=0):
    with opened_connections() as connections:
        return run(
            find_partition(
                ClientConfig((Endpoint.parse(server.master),), "etl"), connections, partition_numbered(number)
            )
        )


def test_a_partition_is_found_at_its_broker(server):
    assert find(server) == Endpoint.parse(server.broker)
    assert find(server, 7) is Loss.PARTITION_REMOVED


def test_a_topic_that_is_closed_is_there_until_it_is_removed(server):
    close_topic(server, TOPIC)
    assert find(server) == Endpoint.parse(server.broker)
    remove_topic(server, TOPIC)
    assert find(server) is Loss.TOPIC_REMOVED


def test_without_a_master_nothing_is_known(server):
    server.faults.become_standby()
    with pytest.raises(TubeMQConnectionError):
        find(server)


def scripted(answer):
    """Return a master that answers so."""

    async def locate(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return locate


NO_MASTER = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="nobody")


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        (HOME, HOME),
        (NO_MASTER, None),
        *((loss, loss) for loss in (Loss.TOPIC_REMOVED, Loss.PARTITION_REMOVED)),
    ],
)
def test_a_partition_is_where_a_master_says_or_gone_when_it_says_so(answer, place):
    assert run(place_of(scripted(answer), partition_numbered())) == place


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
        answer = layout(master, "one", "two", missing_ok=True)

        assert list(answer.partitions) == [partition(1, 0, "one"), partition(1, 0, "two")]
        assert answer.missing_topics == frozenset()
        assert len(master.of(Method.BALANCE_REGISTER)) == 1


def test_the_topics_that_are_left_are_found():
    with master_without("two") as master:
        answer = layout(master, "one", "two", "three", missing_ok=True)

        assert list(answer.partitions) == [partition(1, 0, "one"), partition(1, 0, "three")]
        assert answer.missing_topics == {"two"}
        assert answer.visit_token == 1


def test_a_missing_topic_among_many_is_found_by_halves():
    names = [f"topic_{number}" for number in range(64)]
    with master_without("topic_20") as master:
        answer = layout(master, *names, missing_ok=True)

        assert len(answer.partitions) == 63
        assert list(answer.partitions) == sorted(answer.partitions)
        assert answer.missing_topics == {"topic_20"}
        assert len(master.of(Method.BALANCE_REGISTER)) == 1 + 2 * 6


def test_more_topics_than_a_master_takes_at_once_are_asked_for_in_turn():
    names = [f"topic_{number}" for number in range(2_500)]
    with master_without() as master:
        answer = layout(master, *names, missing_ok=False)

        assert len(answer.partitions) == 2_500
        assert list(answer.partitions) == sorted(answer.partitions)
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
        answer = layout(master, "one", missing_ok=True)

        assert (answer.partitions, answer.missing_topics) == ({}, {"one"})


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


OTHER_TOPICS = registered(425, "the group reads other topics", brokers=())


def layout_in_busy_group(master, **settings):
    with opened_connections() as connections:
        return loop.run(DirectTransport(config_for(master, **settings), connections).layout(["demo"]))


def test_a_killed_driver_s_membership_is_waited_for_though_answers_come_quickly():
    with ScriptedMaster(balance_register=[*[OTHER_TOPICS] * 5, registered()]) as master:
        answer = layout_in_busy_group(master, rpc_timeout_ms=250, lease_wait_ms=20_000)

        assert list(answer.partitions) == [partition(1, 0)]
        assert len(master.of(Method.BALANCE_REGISTER)) == 6


def test_a_group_that_stays_busy_is_an_error():
    with ScriptedMaster(balance_register=OTHER_TOPICS) as master:
        with pytest.raises(RpcError) as refused:
            layout_in_busy_group(master, lease_wait_ms=60)

        assert refused.value.code == 425


def test_a_question_that_is_cancelled_as_it_registers_leaves_no_member():
    """A member that is not there would keep the group from other topics for 30 s."""
    with (
        EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}) as server,
        opened_connections() as connections,
    ):
        config = ClientConfig((Endpoint.parse(server.master),), "busy", lease_wait_ms=1)
        transport = DirectTransport(config, connections)
        registering = server.faults.hold(Method.BALANCE_REGISTER, carried_out=True)

        async def cancelled():
            question = asyncio.create_task(transport.layout(["demo"]))
            while not registering.hits:
                await asyncio.sleep(0.01)
            question.cancel()
            asyncio.get_running_loop().call_later(0.05, registering.release)
            await asyncio.wait([question])
            assert question.cancelled()

        loop.run(cancelled())
        assert len(loop.run(transport.layout(["other"])).partitions) == 1


def test_a_question_that_is_cancelled_as_it_leaves_is_no_member_any_more():
    def leaves():
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("heartbeat of")]
        return any(task.cancelling() for task in tasks)

    with (
        EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}) as server,
        opened_connections() as connections,
    ):
        config = ClientConfig((Endpoint.parse(server.master),), "busy", lease_wait_ms=2_000)
        transport = DirectTransport(config, connections)

        async def cancelled():
            question = asyncio.create_task(transport.layout(["demo"]))
            while not leaves():
                await asyncio.sleep(0)
            question.cancel()
            await asyncio.wait([question])
            assert question.cancelled()

        loop.run(cancelled())
        assert len(loop.run(transport.layout(["other"])).partitions) == 1
