"""Sessions with masters that stand by, refuse, forget, restart and are too old."""

import asyncio
import itertools
import socket
import threading
import time

import pytest

from testkit.connections import opened
from tests.client.scripted_master import (
    REQUESTS,
    STANDBY,
    Fail,
    ScriptedMaster,
    balance,
    beat,
    config_for,
    meta,
    registered,
    token,
)
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.client.master.session import MasterCaller
from tubemq_spark.errors import RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.loop import run, submit
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import common_pb2, master_pb2


@pytest.fixture
def unused():
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return Endpoint("127.0.0.1", taken.getsockname()[1])


def test_the_next_master_is_asked_when_one_stands_by_or_is_away(connections, unused):
    standing_by = ScriptedMaster(balance_register=STANDBY)
    with standing_by, ScriptedMaster() as active:
        config = config_for(unused, standing_by, active)
        with opened(balance(config, connections)) as session:
            assert session.visit_token == 7

        assert len(standing_by.requests) == 1
        assert [method for method, _ in active.requests] == [Method.BALANCE_REGISTER, Method.CONSUMER_CLOSE]
        assert active.timeouts_ms[0] > 0.5 * config.rpc_timeout_ms, "it has the time that the others left"


def test_the_active_master_is_remembered_for_later_sessions(connections):
    with ScriptedMaster(balance_register=STANDBY) as standing_by, ScriptedMaster() as active:
        for _ in range(3):
            with opened(balance(config_for(standing_by, active), connections)):
                pass

        assert len(standing_by.requests) == 1


def test_no_master_answers(connections, unused):
    with ScriptedMaster(balance_register=STANDBY) as standing_by:
        config = config_for(unused, standing_by, register_attempts=2)
        with pytest.raises(
            TubeMQConnectionError, match="No master answered while registering group etl"
        ) as caught:
            run(balance(config, connections).open())

        assert str(unused) in str(caught.value)
        assert "is not master now" in str(caught.value)
        assert len(standing_by.requests) == 2


def test_masters_that_hang_share_the_time(connections):
    hangs = {"balance_register": lambda request: None}
    with ScriptedMaster(**hangs) as first, ScriptedMaster(**hangs) as second:
        config = config_for(first, second, rpc_timeout_ms=600, register_attempts=1)
        with pytest.raises(TubeMQConnectionError):
            run(balance(config, connections).open())

        for master in (first, second):
            assert len(master.wait_for(Method.BALANCE_REGISTER, 1)) == 1
            assert 0 < master.timeouts_ms[0] <= 300


@pytest.mark.parametrize(
    "answer",
    [
        Fail("any.Exception", "IPC server handle request error :Unsupported method ID :20", Status.FATAL),
        Fail("any.Exception", "Unsupported method 20in service type 1!", Status.ERROR),
    ],
)
def test_a_master_that_is_too_old_is_named(connections, answer):
    with ScriptedMaster(balance_register=answer) as old:
        with pytest.raises(RpcError, match="since November 2021") as caught:
            run(balance(config_for(old), connections).open())

        assert caught.value.condition == "TUBEMQ_MASTER_TOO_OLD"
        assert caught.value.parameters == {"peer": str(old.endpoint), "method": 20}
        assert len(old.requests) == 1


def test_a_master_that_cannot_read_us_is_not_asked_again(connections):
    with ScriptedMaster(producer_register=Fail("any.Exception", "cannot parse", Status.FATAL)) as master:
        with pytest.raises(RpcError, match="cannot parse"):
            run(ProducerSession(config_for(master), connections).open())

        assert len(master.requests) == 1


def test_credentials_go_with_every_request(master, connections, monkeypatch):
    monkeypatch.setattr(identity.secrets, "randbelow", lambda limit: 42)
    monkeypatch.setattr(identity.time, "time_ns", lambda: 1_700_000_000_123_000_000)
    config = config_for(master, username="user", password="password", heartbeat_period_ms=5)
    with opened(balance(config, connections)) as session:
        run(session.layout())
        master.wait_for(Method.BALANCE_HEARTBEAT, 1)
    with opened(ProducerSession(config, connections)) as producer:
        run(producer.publish(["demo"]))
    nothing = {"partitions": tuple, "on_event": lambda _: None}
    with opened(GroupSession(config, connections, Subscription.of("demo"), FlowControl(), **nothing)):
        master.wait_for(Method.CONSUMER_HEARTBEAT, 1)

    expected = common_pb2.MasterCertificateInfo(
        authInfo=messages.authenticate_info("user", "password", 1_700_000_000_123, 42)
    )
    assert {method for method, _ in master.requests} == set(REQUESTS)
    assert all(request.authInfo == expected for _, request in master.requests)


def test_without_a_user_no_credentials_are_sent(master, connections):
    assert MasterCaller(config_for(master), connections).credentials() is None
    with opened(balance(config_for(master), connections)):
        pass
    assert not any(request.HasField("authInfo") for _, request in master.requests)


def test_what_a_balance_session_tells(master, connections):
    with opened(balance(config_for(master), connections, "b", "a", "b")) as session:
        (request,) = master.of(Method.BALANCE_REGISTER)

        assert request.clientId == session.client_id
        assert request.clientId.startswith("etl_")
        assert request.groupName == "etl"
        assert list(request.topicList) == ["a", "b"]
        assert (request.sourceCount, request.nodeId) == (-2, -2)
        assert request.hostName
        assert request.subRepInfo == master_pb2.ClientSubRepInfo(
            brokerConfigId=-2, topicMetaInfoId=-2, reportSubInfo=False
        )
        assert request.jdkVersion.startswith("Python 3.")


def test_a_silent_master_takes_one_time_out_and_not_one_for_each_attempt(connections):
    with ScriptedMaster(balance_register=lambda _: None) as master:
        config = config_for(master, rpc_timeout_ms=150, register_attempts=5, register_retry_ms=0)
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_NO_MASTER"):
            run(balance(config, connections).open())
        assert len(master.wait_for(Method.BALANCE_REGISTER, 1)) == 1


def test_troubles_that_pass_are_tried_again(connections):
    answers = [registered(503), Fail("any.InvocationTargetException", ""), registered(500), registered()]
    asked_at = []

    def register(_):
        asked_at.append(time.monotonic())
        return answers.pop(0)

    with ScriptedMaster(balance_register=register) as master:
        config = config_for(master, register_attempts=4, register_retry_ms=20)
        with opened(balance(config, connections)):
            pass
    assert not answers
    assert all(after - before >= 0.02 for before, after in itertools.pairwise(asked_at))


def test_a_deadline_ends_attempts_and_the_pauses_between_them(connections):
    never_ms = 3_600_000
    with ScriptedMaster(balance_register=registered(503)) as master:
        config = config_for(master, rpc_timeout_ms=never_ms, register_retry_ms=never_ms)
        opening = submit(balance(config, connections).open(Deadline.after_ms(100)))
        with pytest.raises(TubeMQError):
            opening.result(20)


def test_the_last_trouble_is_told_when_they_do_not_pass(connections):
    with ScriptedMaster(balance_register=[registered(500), registered(503, "stopped")]) as master:
        with pytest.raises(RpcError, match="stopped") as caught:
            run(balance(config_for(master, register_attempts=3), connections).open())
        assert caught.value.code == 503
        assert len(master.requests) == 3


@pytest.mark.parametrize("code", [400, 415, 424, 425, 426, 429, 430, 431, 450, 455])
def test_a_refusal_is_told_at_once(connections, code):
    with ScriptedMaster(balance_register=registered(code, "the reason")) as master:
        with pytest.raises(RpcError, match="registering group etl for the topics demo, other") as caught:
            run(balance(config_for(master), connections, "other", "demo").open())

        assert caught.value.code == code
        assert "the reason" in str(caught.value)
        assert len(master.requests) == 1


def test_closing_says_goodbye_once(master, connections):
    session = run(balance(config_for(master), connections).open())
    run(session.close())
    run(session.close())

    (request,) = master.of(Method.CONSUMER_CLOSE)
    assert (request.clientId, request.groupName) == (session.client_id, "etl")


def test_closing_without_opening_says_nothing(master, connections):
    run(balance(config_for(master), connections).close())
    assert master.requests == []


def test_a_master_that_is_gone_does_not_disturb_closing(connections):
    with ScriptedMaster() as master:
        session = run(balance(config_for(master), connections).open())
    run(session.close())


def test_tokens_follow_the_answers_of_the_master(connections):
    given = registered(authorizedInfo=token(7, "given"))
    beats = [beat(authorizedInfo=token(8, " ")), beat(authorizedInfo=token(9, "newer")), beat()]
    with ScriptedMaster(balance_register=given, balance_heartbeat=beats) as master:
        session = balance(config_for(master, heartbeat_period_ms=600_000), connections)
        with opened(session):
            seen = [(session.visit_token, session.authorized_token)]
            for _ in range(3):
                run(session.refresh_token())
                seen.append((session.visit_token, session.authorized_token))
    assert seen == [(7, "given"), (8, "given"), (9, "newer"), (9, "newer")]


def test_heartbeats_are_sent_and_end_with_the_session(connections):
    with ScriptedMaster(balance_heartbeat=beat(authorizedInfo=token(8))) as master:
        with opened(balance(config_for(master, heartbeat_period_ms=5), connections)) as session:
            master.wait_for(Method.BALANCE_HEARTBEAT, 3)
            assert session.visit_token == 8
        assert master.requests[-1][0] is Method.CONSUMER_CLOSE
        assert master.of(Method.BALANCE_HEARTBEAT)[0].subRepInfo.brokerConfigId == 5


def test_a_forgotten_session_registers_again(master, connections):
    master.say(Method.BALANCE_HEARTBEAT, beat(411), beat())
    with opened(balance(config_for(master, heartbeat_period_ms=5), connections)) as session:
        master.wait_for(Method.BALANCE_HEARTBEAT, 3)
        assert len(master.of(Method.BALANCE_REGISTER)) == 2
        assert {request.clientId for request in master.of(Method.BALANCE_REGISTER)} == {session.client_id}


def test_while_a_session_registers_again_no_other_task_asks_or_registers(connections):
    """Threads that share a session, one of which finds that the master has forgotten it."""
    other = []

    def register_slowly(_):
        if len(master.of(Method.BALANCE_REGISTER)) == 2:
            other.append(threading.Thread(target=lambda: run(session.layout())))
            other[0].start()
            time.sleep(0.05)
        return registered(authorizedInfo=token())

    answers = {
        "balance_register": register_slowly,
        "balance_partition_meta": [meta(code=411), meta("demo#1:1:1:1")],
    }
    with (
        ScriptedMaster(**answers) as master,
        opened(balance(config_for(master, heartbeat_period_ms=600_000), connections)) as session,
    ):
        run(session.layout())
        other[0].join()
        asked = [method for method, _ in master.requests]
    register, ask = Method.BALANCE_REGISTER, Method.BALANCE_PARTITION_META
    assert asked == [register, ask, register, ask, ask]


def test_a_session_goes_over_to_the_master_that_took_over(connections, caplog):
    with (
        ScriptedMaster(balance_heartbeat=STANDBY) as former,
        ScriptedMaster(balance_heartbeat=[beat(411), beat()]) as active,
        opened(balance(config_for(former, active, heartbeat_period_ms=5), connections)) as session,
    ):
        active.wait_for(Method.BALANCE_HEARTBEAT, 3)

        assert len(former.of(Method.BALANCE_HEARTBEAT)) == 1
        (request,) = active.of(Method.BALANCE_REGISTER)
        assert request.clientId == session.client_id
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"master {active.endpoint} answers now, after {former.endpoint} did not: ")


def test_heartbeats_survive_a_master_that_is_away_for_a_while(master, connections, caplog):
    master.say(Method.BALANCE_HEARTBEAT, beat(500), STANDBY, beat())
    with opened(balance(config_for(master, heartbeat_period_ms=5), connections)):
        master.wait_for(Method.BALANCE_HEARTBEAT, 2)
        master.restart_connections()
        master.wait_for(Method.BALANCE_HEARTBEAT, 5)
    assert "missed a heartbeat" in caplog.text


def test_masters_that_are_away_are_told_of_once_and_again_when_they_are_back(master, connections, caplog):
    master.say(Method.BALANCE_HEARTBEAT, *[beat(500)] * 20, beat())
    with opened(balance(config_for(master, heartbeat_period_ms=5), connections)):
        master.wait_for(Method.BALANCE_HEARTBEAT, 22)
    missed, back = [record.getMessage() for record in caplog.records]
    assert "missed a heartbeat" in missed
    assert "reaches its masters again after" in back


@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_a_session_leaves_also_when_its_close_is_cancelled(connections, ticks):
    async def cancelled(session):
        await session.open()
        closing = asyncio.create_task(session.close())
        for _ in range(1 + ticks):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()

    with ScriptedMaster() as master:
        run(cancelled(balance(config_for(master), connections)))
        master.wait_for(Method.CONSUMER_CLOSE, 1)
