"""A consumer's verbs, against a broker that keeps offsets as the Java broker does."""

import contextlib

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, ModelBroker, Store
from tests.protocol.vectors import build, named
from tubemq_spark.client.broker.session import FLUSHED_ONLY, BrokerSession, Claim, Position
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.errors import RpcError, TubeMQTimeoutError
from tubemq_spark.model import StoreId, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol import auth
from tubemq_spark.protocol.constants import Method, ReadStatus
from tubemq_spark.protocol.pb import broker_pb2, common_pb2

PARTITION = TopicPartition("demo", BROKER_ID, 0)
MINE = Claim(PARTITION, "etl", "etl_me-1-2-3")
ANOTHERS = Claim(PARTITION, "etl", "etl_you-1-2-3")


@contextlib.contextmanager
def session_with(count=5, token=TOKEN, **changes):
    store = Store()
    store.append(0, [b"value %d" % number for number in range(count)])
    with ModelBroker({StoreId("demo", BROKER_ID, 0): store}) as broker, ChannelPool() as pool:
        config = ClientConfig((broker.endpoint,), "etl", **{"rpc_timeout_ms": 2_000, **changes})
        yield broker, BrokerSession(pool.get(broker.endpoint), config, token)


def sent(broker, message_type, place=-1):
    return broker.requests[place][1].parse(message_type)


def test_the_life_of_a_lease():
    with session_with() as (broker, session):
        assert session.register(MINE, 28) == Position(28, 140)

        fetched = session.start_fetch(MINE).result()
        assert fetched.refusal is None
        assert fetched.header.current_offset == 28
        assert fetched.count == 4

        assert session.start_commit(MINE, consumed=True).result() == Position(140, 140)
        session.unregister(MINE)
        assert broker.leases() == []


def test_a_fetch_is_served_again_until_it_is_confirmed():
    with session_with() as (_, session):
        session.register(MINE, 0)
        for _ in range(2):
            assert session.start_fetch(MINE).result().count == 5

        drained = session.start_fetch(MINE, consumed=True).result()
        assert drained.refusal is not None
        assert drained.refusal.code == 404
        assert drained.count == 0


def test_a_commit_may_drop_what_was_fetched():
    with session_with() as (_, session):
        session.register(MINE, 0)
        session.start_fetch(MINE).result()

        assert session.start_commit(MINE, consumed=False).result().current == 0
        assert session.start_commit(MINE, consumed=True).result().current == 0


@pytest.mark.parametrize(("consumed", "committed"), [(False, 0), (True, 140)])
def test_giving_up_a_lease_drops_or_confirms_what_was_fetched(consumed, committed):
    with session_with() as (_, session):
        session.register(MINE, 0)
        session.start_fetch(MINE).result()
        session.unregister(MINE, consumed=consumed)

        assert session.register(MINE, None).current == committed


def test_what_a_register_says():
    with session_with() as (broker, session):
        session.register(
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

        session.register(MINE, None)
        request = sent(broker, broker_pb2.RegisterRequestC2B)
        assert not request.HasField("currOffset")
        assert not request.HasField("qryPriorityId")


def test_what_a_heartbeat_says():
    with session_with() as (broker, session):
        session.start_heartbeat("etl", MINE.client_id, [PARTITION], query_priority=301).result()
        request = sent(broker, broker_pb2.HeartBeatRequestC2B)
        assert request.qryPriorityId == 301
        assert list(request.partitionInfo) == [f"1:{broker.endpoint}#demo:0"]

        session.start_heartbeat("etl", MINE.client_id, [PARTITION]).result()
        assert not sent(broker, broker_pb2.HeartBeatRequestC2B).HasField("qryPriorityId")


def test_what_a_fetch_says():
    with session_with() as (broker, session):
        session.register(MINE, 0)
        for own_limits in (False, True):
            session.start_fetch(MINE, own_limits=own_limits).result()
            request = sent(broker, broker_pb2.GetMessageRequestC2B)
            assert request.escFlowCtrl is own_limits
            assert request.manualCommitOffset is False


def test_a_recorded_heartbeat_is_sent_to_the_byte():
    vector = named("consumer_heartbeat_broker_req")
    recorded = build(broker_pb2.HeartBeatRequestC2B(), vector["fields"])
    places = [TopicPartition("demo", 1, 0), TopicPartition("demo", 1, 10001)]
    with session_with(token=recorded.authInfo.visitAuthorizedToken) as (broker, session):
        session.start_heartbeat(recorded.groupName, recorded.clientId, places, query_priority=-2).result()
        request = sent(broker, broker_pb2.HeartBeatRequestC2B)
        # Only the broker's address is another one.
        del request.partitionInfo[:]
        request.partitionInfo.extend(recorded.partitionInfo)
        assert request.SerializeToString().hex() == vector["messageHex"]


def test_only_what_is_flushed_counts_when_asked_so():
    with session_with() as (broker, session):
        broker.stores[StoreId("demo", BROKER_ID, 0)].flushed = 2

        assert session.register(MINE, 0, query_priority=FLUSHED_ONLY) == Position(0, 56)


def test_a_user_is_proven_to_brokers(monkeypatch):
    monkeypatch.setattr(identity.secrets, "randbelow", lambda limit: 42)
    monkeypatch.setattr(identity.time, "time_ns", lambda: 1_700_000_000_123_000_000)
    with session_with(username="user", password="password") as (broker, session):
        session.register(MINE, 0)
        session.start_heartbeat("etl", MINE.client_id, [PARTITION]).result()
        session.unregister(MINE)

        expected = common_pb2.AuthorizedInfo(
            visitAuthorizedToken=TOKEN,
            authAuthorizedToken=auth.broker_token("user", "password", 1_700_000_000_123, 42),
        )
        assert sent(broker, broker_pb2.RegisterRequestC2B, 0).authInfo == expected
        assert sent(broker, broker_pb2.HeartBeatRequestC2B, 1).authInfo == expected
        assert sent(broker, broker_pb2.RegisterRequestC2B, 2).authInfo == expected


def test_what_the_master_gave_is_shown_to_brokers():
    """The Go and the C++ client keep it and never show it."""
    with session_with(username="user", password="password") as (broker, proven):
        session = BrokerSession(proven.channel, proven._config, TOKEN, authorized_token="given by the master")
        session.register(MINE, 0)
        session.start_heartbeat("etl", MINE.client_id, [PARTITION]).result()
        session.unregister(MINE)

        expected = common_pb2.AuthorizedInfo(
            visitAuthorizedToken=TOKEN, authAuthorizedToken="given by the master"
        )
        assert sent(broker, broker_pb2.RegisterRequestC2B, 0).authInfo == expected
        assert sent(broker, broker_pb2.HeartBeatRequestC2B, 1).authInfo == expected
        assert sent(broker, broker_pb2.RegisterRequestC2B, 2).authInfo == expected


def test_a_refused_register_is_an_error_that_names_all():
    with session_with() as (_, session):
        session.register(ANOTHERS, 0)
        with pytest.raises(RpcError) as caught:
            session.register(MINE, 0)

    assert caught.value.code == 410
    assert "broker 1 (127.0.0.1:" in str(caught.value)
    assert "registering demo/1:0 for group etl" in str(caught.value)


def test_refusals_of_every_verb():
    with session_with() as (_, session):
        with pytest.raises(RpcError) as caught:
            session.unregister(MINE)
        assert caught.value.code == 411
        with pytest.raises(RpcError) as caught:
            session.start_commit(MINE, consumed=True).result()
        assert caught.value.code == 401
        assert session.start_fetch(MINE).result().refusal.code == 411

        session.register(ANOTHERS, 0)
        with pytest.raises(RpcError) as caught:
            session.unregister(MINE)
        assert caught.value.code == 412
        assert session.start_fetch(MINE).result().refusal.code == 412


def test_a_fetch_that_fails_without_a_code_is_a_refusal():
    with session_with() as (broker, session):
        session.register(MINE, 0)
        broker.fault_of_method[Method.GET_MESSAGE] = [model.refuse(0)]
        fetched = session.start_fetch(MINE).result()

    assert fetched.refusal.code == 0
    assert not fetched.refusal.retriable


def test_heartbeats_tell_which_leases_are_gone():
    second = TopicPartition("demo", BROKER_ID, 1)
    with session_with() as (broker, session):
        broker.partitions = 2
        session.register(MINE, 0)
        assert session.start_heartbeat("etl", MINE.client_id, [PARTITION]).result() == {}
        assert session.start_heartbeat("etl", MINE.client_id, [PARTITION, second]).result() == {second: 411}
        assert session.start_heartbeat("etl", ANOTHERS.client_id, [PARTITION]).result() == {PARTITION: 412}

        (text,) = sent(broker, broker_pb2.HeartBeatRequestC2B).partitionInfo
        assert text == f"1:{broker.endpoint}#demo:0"


def test_a_refused_heartbeat_is_an_error():
    with session_with() as (broker, session):
        broker.fault_of_method[Method.PARTITION_HEARTBEAT] = [model.refuse(415)]
        with pytest.raises(RpcError, match="renewing the leases of group etl") as caught:
            session.start_heartbeat("etl", MINE.client_id, [PARTITION]).result()
        assert caught.value.code == 415


def test_giving_up_a_lease_may_wait_less_than_other_calls():
    with session_with(rpc_timeout_ms=5_000) as (broker, session):
        broker.fault_of_method[Method.PARTITION_REGISTER] = [model.swallow]
        with pytest.raises(TubeMQTimeoutError, match="within 20 ms while unregistering demo/1:0"):
            session.unregister(MINE, timeout_ms=20)


def test_an_answer_nobody_waits_for_is_dropped():
    with session_with() as (_, session):
        session.register(MINE, 0)
        session.start_fetch(MINE).forget()

        assert session.start_commit(MINE, consumed=True).result().current in (0, 140)
