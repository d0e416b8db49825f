"""A consumer's verbs, against a broker that keeps offsets as the Java broker does."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN
from tests.client.ranges import broker_and_connections
from tests.protocol.vectors import build, named
from tubemq_spark.client.broker.session import FLUSHED_ONLY, BrokerSession, Claim, Position
from tubemq_spark.client.master import identity
from tubemq_spark.errors import RpcError, TubeMQTimeoutError
from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method, ReadStatus
from tubemq_spark.protocol.pb import broker_pb2, common_pb2

PARTITION = TopicPartition("demo", BROKER_ID, 0)
MINE = Claim(PARTITION, "etl", "etl_me-1-2-3")
ANOTHERS = Claim(PARTITION, "etl", "etl_you-1-2-3")


@contextlib.asynccontextmanager
async def session_with(count=5, token=TOKEN, **changes):
    async with broker_and_connections(count, **changes) as (broker, connections, config):
        yield broker, BrokerSession(await connections.get(broker.endpoint), config, token)


def sent(broker, message_type, place=-1):
    return broker.requests[place][1].parse(message_type)


async def test_the_life_of_a_lease():
    async with session_with() as (broker, session):
        assert await session.start_register(MINE, 28) == Position(28, 140)

        fetched = await session.start_fetch(MINE)
        assert fetched.refusal is None
        assert fetched.header.current_offset == 28
        assert fetched.count == 4

        assert await session.start_commit(MINE, consumed=True) == Position(140, 140)
        await session.start_unregister(MINE)
        assert broker.leases() == []


async def test_a_fetch_is_served_again_until_it_is_confirmed():
    async with session_with() as (_, session):
        await session.start_register(MINE, 0)
        for _ in range(2):
            assert (await session.start_fetch(MINE)).count == 5

        drained = await session.start_fetch(MINE, consumed=True)
        assert drained.refusal is not None
        assert drained.refusal.code == 404
        assert drained.count == 0


async def test_a_commit_may_drop_what_was_fetched():
    async with session_with() as (_, session):
        await session.start_register(MINE, 0)
        await session.start_fetch(MINE)

        assert (await session.start_commit(MINE, consumed=False)).current == 0
        assert (await session.start_commit(MINE, consumed=True)).current == 0


@pytest.mark.parametrize(("consumed", "committed"), [(False, 0), (True, 140)])
async def test_giving_up_a_lease_drops_or_confirms_what_was_fetched(consumed, committed):
    async with session_with() as (_, session):
        await session.start_register(MINE, 0)
        await session.start_fetch(MINE)
        await session.start_unregister(MINE, consumed=consumed)

        assert (await session.start_register(MINE, None)).current == committed


async def test_what_a_register_says():
    async with session_with() as (broker, session):
        await session.start_register(
            MINE, 56, read_status=ReadStatus.STORED_OR_LATEST, filters=("a", "b"), query_priority=303
        )
        request = sent(broker, broker_pb2.RegisterRequestC2B)

        assert (request.opType, request.readStatus, request.currOffset, request.qryPriorityId) == (
            31,
            1,
            56,
            303,
        )
        assert list(request.filterCondStr) == ["a", "b"]
        assert request.authInfo.visitAuthorizedToken == TOKEN
        assert not request.authInfo.HasField("authAuthorizedToken")

        await session.start_register(MINE, None)
        request = sent(broker, broker_pb2.RegisterRequestC2B)
        assert not request.HasField("currOffset")
        assert not request.HasField("qryPriorityId")


async def test_what_a_heartbeat_says():
    async with session_with() as (broker, session):
        await session.start_heartbeat("etl", MINE.client_id, [PARTITION], query_priority=301)
        request = sent(broker, broker_pb2.HeartBeatRequestC2B)
        assert request.qryPriorityId == 301
        assert list(request.partitionInfo) == [f"1:{broker.endpoint}#demo:0"]

        await session.start_heartbeat("etl", MINE.client_id, [PARTITION])
        assert not sent(broker, broker_pb2.HeartBeatRequestC2B).HasField("qryPriorityId")


async def test_what_a_fetch_says():
    async with session_with() as (broker, session):
        await session.start_register(MINE, 0)
        for own_limits in (False, True):
            await session.start_fetch(MINE, own_limits=own_limits)
            request = sent(broker, broker_pb2.GetMessageRequestC2B)
            assert request.escFlowCtrl is own_limits
            assert request.manualCommitOffset is False


async def test_a_recorded_heartbeat_is_sent_to_the_byte():
    vector = named("consumer_heartbeat_broker_req")
    recorded = build(broker_pb2.HeartBeatRequestC2B(), vector["fields"])
    places = [TopicPartition("demo", 1, 0), TopicPartition("demo", 1, 10001)]
    async with session_with(token=recorded.authInfo.visitAuthorizedToken) as (broker, session):
        await session.start_heartbeat(recorded.groupName, recorded.clientId, places, query_priority=-2)
        request = sent(broker, broker_pb2.HeartBeatRequestC2B)
        # Only the broker's address is another one.
        del request.partitionInfo[:]
        request.partitionInfo.extend(recorded.partitionInfo)
        assert request.SerializeToString().hex() == vector["messageHex"]


async def test_only_what_is_flushed_counts_when_asked_so():
    async with session_with() as (broker, session):
        broker.stores[StoreId("demo", BROKER_ID, 0)].flushed = 2

        assert await session.start_register(MINE, 0, query_priority=FLUSHED_ONLY) == Position(0, 56)


async def test_a_user_is_proven_to_brokers(monkeypatch):
    monkeypatch.setattr(identity.secrets, "randbelow", lambda limit: 42)
    monkeypatch.setattr(identity.time, "time_ns", lambda: 1_700_000_000_123_000_000)
    async with session_with(username="user", password="password") as (broker, session):
        await session.start_register(MINE, 0)
        await session.start_heartbeat("etl", MINE.client_id, [PARTITION])
        await session.start_unregister(MINE)

        expected = common_pb2.AuthorizedInfo(
            visitAuthorizedToken=TOKEN,
            authAuthorizedToken=messages.broker_token("user", "password", 1_700_000_000_123, 42),
        )
        assert sent(broker, broker_pb2.RegisterRequestC2B, 0).authInfo == expected
        assert sent(broker, broker_pb2.HeartBeatRequestC2B, 1).authInfo == expected
        assert sent(broker, broker_pb2.RegisterRequestC2B, 2).authInfo == expected


async def test_what_the_master_gave_is_shown_to_brokers():
    """The Go and the C++ client keep it and never show it."""
    async with session_with(username="user", password="password") as (broker, proven):
        token = "given by the master"
        session = BrokerSession(proven.connection, proven._config, TOKEN, authorized_token=token)
        await session.start_register(MINE, 0)
        await session.start_heartbeat("etl", MINE.client_id, [PARTITION])
        await session.start_unregister(MINE)

        expected = common_pb2.AuthorizedInfo(
            visitAuthorizedToken=TOKEN, authAuthorizedToken="given by the master"
        )
        assert sent(broker, broker_pb2.RegisterRequestC2B, 0).authInfo == expected
        assert sent(broker, broker_pb2.HeartBeatRequestC2B, 1).authInfo == expected
        assert sent(broker, broker_pb2.RegisterRequestC2B, 2).authInfo == expected


async def test_a_refused_register_is_an_error_that_names_all():
    async with session_with() as (_, session):
        await session.start_register(ANOTHERS, 0)
        with pytest.raises(RpcError) as caught:
            await session.start_register(MINE, 0)

    assert caught.value.code == 410
    assert "broker 1 (127.0.0.1:" in str(caught.value)
    assert "registering demo/1:0 for group etl" in str(caught.value)


async def test_refusals_of_every_verb():
    async with session_with() as (_, session):
        with pytest.raises(RpcError) as caught:
            await session.start_unregister(MINE)
        assert caught.value.code == 411
        with pytest.raises(RpcError) as caught:
            await session.start_commit(MINE, consumed=True)
        assert caught.value.code == 401
        assert (await session.start_fetch(MINE)).refusal.code == 411

        await session.start_register(ANOTHERS, 0)
        with pytest.raises(RpcError) as caught:
            await session.start_unregister(MINE)
        assert caught.value.code == 412
        assert (await session.start_fetch(MINE)).refusal.code == 412


async def test_a_fetch_that_fails_without_a_code_is_a_refusal():
    async with session_with() as (broker, session):
        await session.start_register(MINE, 0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(0)]
        fetched = await session.start_fetch(MINE)

    assert fetched.refusal.code == 0
    assert not fetched.refusal.retriable


async def test_heartbeats_tell_which_leases_are_gone():
    second = TopicPartition("demo", BROKER_ID, 1)
    async with session_with() as (broker, session):
        broker.partitions = 2
        await session.start_register(MINE, 0)
        assert await session.start_heartbeat("etl", MINE.client_id, [PARTITION]) == {}
        assert await session.start_heartbeat("etl", MINE.client_id, [PARTITION, second]) == {second: 411}
        assert await session.start_heartbeat("etl", ANOTHERS.client_id, [PARTITION]) == {PARTITION: 412}

        (text,) = sent(broker, broker_pb2.HeartBeatRequestC2B).partitionInfo
        assert text == f"1:{broker.endpoint}#demo:0"


async def test_a_refused_heartbeat_is_an_error():
    async with session_with() as (broker, session):
        broker.fault_of_method[Method.PARTITION_HEARTBEAT] = [model.refuse(415)]
        with pytest.raises(RpcError, match="renewing the leases of group etl") as caught:
            await session.start_heartbeat("etl", MINE.client_id, [PARTITION])
        assert caught.value.code == 415


async def test_giving_up_a_lease_may_wait_less_than_other_calls():
    async with session_with(rpc_timeout_ms=5_000) as (broker, session):
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.swallow]
        with pytest.raises(TubeMQTimeoutError, match="within 20 ms while unregistering demo/1:0"):
            await session.start_unregister(MINE, timeout_ms=20)


async def test_an_answer_that_is_not_awaited_is_dropped():
    async with session_with() as (_, session):
        await session.start_register(MINE, 0)
        session.start_fetch(MINE).forget()

        assert (await session.start_commit(MINE, consumed=True)).current in (0, 140)
