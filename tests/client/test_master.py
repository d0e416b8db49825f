"""Sessions with masters that refuse, forget, stand by, restart and lie."""

import socket
import threading
import time

import pytest

from tests.rpc_server import RpcServer
from tubemq_spark.client import master_session
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import BalanceSession, ProducerSession, fresh_visit_token
from tubemq_spark.client.master_session import MasterCaller
from tubemq_spark.errors import RemoteProtocolError, RpcError, TubeMQConnectionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.protocol import auth
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import common_pb2, master_pb2

REQUESTS = {
    Method.PRODUCER_REGISTER: master_pb2.RegisterRequestP2M,
    Method.PRODUCER_HEARTBEAT: master_pb2.HeartRequestP2M,
    Method.PRODUCER_CLOSE: master_pb2.CloseRequestP2M,
    Method.BALANCE_REGISTER: master_pb2.RegisterRequestC2MV2,
    Method.BALANCE_HEARTBEAT: master_pb2.HeartRequestC2MV2,
    Method.BALANCE_PARTITION_META: master_pb2.GetPartMetaRequestC2M,
    Method.CONSUMER_CLOSE: master_pb2.CloseRequestC2M,
}


class ScriptedMaster:
    """Answers each method with what a test put there: an answer, a function of the request, or several.

    The last of several stays.
    """

    def __init__(self, **answers):
        self.answers = {Method[name.upper()]: answer for name, answer in answers.items()}
        self.requests = []
        self.changed = threading.Condition()
        self._server = RpcServer(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.close()

    @property
    def endpoint(self):
        return self._server.endpoint

    def of(self, method):
        return [request for asked, request in self.requests if asked == method]

    def wait_for(self, method, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(method)) >= count, 5)
        return self.of(method)

    def restart_connections(self):
        self._server.drop_connections()

    def _handle(self, exchange):
        method = Method(exchange.request.method)
        request = exchange.parse(REQUESTS[method])
        with self.changed:
            self.requests.append((method, request))
            self.changed.notify_all()
        answer = self.answers.get(method, DEFAULTS.get(method))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        answer = answer(request) if callable(answer) else answer
        if isinstance(answer, Fail):
            exchange.fail(answer.exception, answer.text, answer.status)
        elif answer is not None:
            exchange.answer(answer)


class Fail:
    def __init__(self, exception, text="no", status=Status.ERROR):
        self.exception, self.text, self.status = exception, text, status


STANDBY = Fail("corerpc.exception.StandbyException", "10.1.2.9:8715 is not master now.")


def token(number=7, text=""):
    return common_pb2.MasterAuthorizedInfo(visitAuthorizedToken=number, authAuthorizedToken=text)


def producer_registered(**more):
    settings = {"brokerCheckSum": 11, "brokerInfos": ["1:10.1.2.10: ", "2:10.1.2.11:8200"], **more}
    return master_pb2.RegisterResponseM2P(
        success=True, errCode=200, errMsg="OK!", authorizedInfo=token(), **settings
    )


def producer_beat(*topics, **more):
    settings = {"errCode": 200, "brokerCheckSum": 11, **more}
    return master_pb2.HeartResponseM2P(success=True, errMsg="OK!", topicInfos=topics, **settings)


def producer_refused(code, text="no"):
    return master_pb2.HeartResponseM2P(success=False, errCode=code, errMsg=text, brokerCheckSum=-1)


def registered(code=200, text="OK!", brokers=("1:10.1.2.10: ", "2:10.1.2.11:8200"), config_id=5, **more):
    return master_pb2.RegisterResponseM2CV2(
        errCode=code, errMsg=text, brokerConfigId=config_id, brokerConfigList=brokers, **more
    )


def beat(code=200, **more):
    return master_pb2.HeartResponseM2CV2(errCode=code, errMsg="", **{"brokerConfigId": 5, **more})


def meta(*topics, code=200, meta_id=9, **more):
    return master_pb2.GetPartMetaResponseM2C(
        errCode=code,
        errMsg="",
        topicMetaInfoId=meta_id,
        topicMetaInfoList=topics,
        **{"brokerConfigId": 5, **more},
    )


DEFAULTS = {
    Method.PRODUCER_REGISTER: producer_registered(),
    Method.PRODUCER_HEARTBEAT: producer_beat(),
    Method.PRODUCER_CLOSE: master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg="OK!"),
    Method.BALANCE_REGISTER: registered(authorizedInfo=token()),
    Method.BALANCE_HEARTBEAT: beat(),
    Method.BALANCE_PARTITION_META: meta("demo#1:1:1:1"),
    Method.CONSUMER_CLOSE: master_pb2.CloseResponseM2C(success=True, errCode=200, errMsg="OK!"),
}

FIRST = Endpoint("10.1.2.10", 8123)
SECOND = Endpoint("10.1.2.11", 8200)


def config_for(*masters, **changes):
    settings = {"rpc_timeout_ms": 2_000, "register_retry_ms": 0, **changes}
    return ClientConfig(tuple(getattr(item, "endpoint", item) for item in masters), "etl", **settings)


def partition(broker_id, partition_id, topic="demo"):
    return TopicPartition(topic, broker_id, partition_id)


@pytest.fixture
def pool():
    with ChannelPool(1_000) as made:
        yield made


@pytest.fixture
def nobody():
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return Endpoint("127.0.0.1", taken.getsockname()[1])


def balance(config, pool, *topics):
    return BalanceSession(config, pool, topics or ("demo",), wait=lambda seconds: None)


# --- finding the active master ----------------------------------------------------------------------------


def test_the_next_master_is_asked_when_one_stands_by_or_is_away(pool, nobody):
    standing_by = ScriptedMaster(balance_register=STANDBY)
    with standing_by, ScriptedMaster() as active:
        config = config_for(nobody, standing_by, active)
        with balance(config, pool) as session:
            assert session.visit_token == 7

        assert len(standing_by.requests) == 1
        assert [method for method, _ in active.requests] == [Method.BALANCE_REGISTER, Method.CONSUMER_CLOSE]


def test_the_active_master_is_remembered_for_later_sessions(pool):
    with ScriptedMaster(balance_register=STANDBY) as standing_by, ScriptedMaster() as active:
        for _ in range(3):
            with balance(config_for(standing_by, active), pool):
                pass

        assert len(standing_by.requests) == 1


def test_no_master_answers(pool, nobody):
    with ScriptedMaster(balance_register=STANDBY) as standing_by:
        config = config_for(nobody, standing_by, register_attempts=2)
        with pytest.raises(
            TubeMQConnectionError, match="No master answered while registering group etl"
        ) as caught:
            balance(config, pool).open()

        assert str(nobody) in str(caught.value)
        assert "is not master now" in str(caught.value)
        assert len(standing_by.requests) == 2


def test_masters_that_hang_share_the_time(pool):
    hangs = {"balance_register": lambda request: None}
    with ScriptedMaster(**hangs) as first, ScriptedMaster(**hangs) as second:
        began = time.monotonic()
        with pytest.raises(TubeMQConnectionError):
            balance(config_for(first, second, rpc_timeout_ms=100, register_attempts=1), pool).open()
        took = time.monotonic() - began

        assert 0.09 <= took < 0.5
        assert len(first.requests) == len(second.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Fail("any.Exception", "IPC server handle request error :Unsupported method ID :20", Status.FATAL),
        Fail("any.Exception", "Unsupported method 20in service type 1!", Status.ERROR),
    ],
)
def test_a_master_that_is_too_old_is_named(pool, answer):
    with ScriptedMaster(balance_register=answer) as old:
        with pytest.raises(RpcError, match="since November 2021") as caught:
            balance(config_for(old), pool).open()

        assert caught.value.condition == "TUBEMQ_MASTER_TOO_OLD"
        assert caught.value.parameters == {"peer": str(old.endpoint), "method": 20}
        assert len(old.requests) == 1


def test_a_master_that_cannot_read_us_is_not_asked_again(pool):
    with ScriptedMaster(producer_register=Fail("any.Exception", "cannot parse", Status.FATAL)) as master:
        with pytest.raises(RpcError, match="cannot parse"):
            ProducerSession(config_for(master), pool).open()

        assert len(master.requests) == 1


def test_credentials_go_with_every_request(pool, monkeypatch):
    monkeypatch.setattr(master_session.secrets, "randbelow", lambda limit: 42)
    monkeypatch.setattr(master_session.time, "time_ns", lambda: 1_700_000_000_123_000_000)
    with ScriptedMaster() as master:
        config = config_for(master, username="user", password="password", heartbeat_period_ms=5)
        with balance(config, pool) as session:
            session.layout()
            master.wait_for(Method.BALANCE_HEARTBEAT, 1)
        with ProducerSession(config, pool) as producer:
            producer.publish(["demo"])

        expected = common_pb2.MasterCertificateInfo(
            authInfo=auth.authenticate_info("user", "password", 1_700_000_000_123, 42)
        )
        assert {method for method, _ in master.requests} == set(REQUESTS)
        assert all(request.authInfo == expected for _, request in master.requests)


def test_without_a_user_no_credentials_are_sent(pool):
    with ScriptedMaster() as master:
        assert MasterCaller(config_for(master), pool).credentials() is None
        with balance(config_for(master), pool):
            pass
        assert not any(request.HasField("authInfo") for _, request in master.requests)


# --- registering -------------------------------------------------------------------------------------------


def test_what_a_balance_session_tells(pool):
    with ScriptedMaster() as master, balance(config_for(master), pool, "b", "a", "b") as session:
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


def test_troubles_that_pass_are_tried_again(pool):
    waits = []
    answers = [registered(503), Fail("any.InvocationTargetException", ""), registered(500), registered()]
    with ScriptedMaster(balance_register=answers) as master:
        config = config_for(master, register_attempts=4, register_retry_ms=250)
        with BalanceSession(config, pool, ["demo"], wait=waits.append):
            pass

    assert waits == [0.25] * 3


def test_the_last_trouble_is_told_when_they_do_not_pass(pool):
    with ScriptedMaster(balance_register=[registered(500), registered(503, "stopped")]) as master:
        with pytest.raises(RpcError, match="stopped") as caught:
            balance(config_for(master, register_attempts=3), pool).open()
        assert caught.value.code == 503
        assert len(master.requests) == 3


@pytest.mark.parametrize("code", [400, 415, 424, 425, 426, 429, 430, 431, 450, 455])
def test_a_refusal_is_told_at_once(pool, code):
    with ScriptedMaster(balance_register=registered(code, "the reason")) as master:
        with pytest.raises(RpcError, match="registering group etl for the topics demo, other") as caught:
            balance(config_for(master), pool, "other", "demo").open()

        assert caught.value.code == code
        assert "the reason" in str(caught.value)
        assert len(master.requests) == 1


def test_closing_says_goodbye_once(pool):
    with ScriptedMaster() as master:
        session = balance(config_for(master), pool).open()
        session.close()
        session.close()

        (request,) = master.of(Method.CONSUMER_CLOSE)
        assert (request.clientId, request.groupName) == (session.client_id, "etl")


def test_closing_without_opening_says_nothing(pool):
    with ScriptedMaster() as master:
        balance(config_for(master), pool).close()
        assert master.requests == []


def test_a_master_that_is_gone_does_not_disturb_closing(pool):
    with ScriptedMaster() as master:
        session = balance(config_for(master), pool).open()
    session.close()


# --- heartbeats --------------------------------------------------------------------------------------------


def test_heartbeats_are_sent_and_end_with_the_session(pool):
    with ScriptedMaster(balance_heartbeat=beat(authorizedInfo=token(8))) as master:
        with balance(config_for(master, heartbeat_period_ms=5), pool) as session:
            master.wait_for(Method.BALANCE_HEARTBEAT, 3)
            assert session.visit_token == 8
        count = len(master.requests)
        time.sleep(0.05)

        assert len(master.requests) == count
        assert master.of(Method.BALANCE_HEARTBEAT)[0].subRepInfo.brokerConfigId == 5


def test_a_forgotten_session_registers_again(pool):
    answers = [beat(411), beat()]
    with (
        ScriptedMaster(balance_heartbeat=answers) as master,
        balance(config_for(master, heartbeat_period_ms=5), pool) as session,
    ):
        master.wait_for(Method.BALANCE_HEARTBEAT, 3)
        assert len(master.of(Method.BALANCE_REGISTER)) == 2
        assert {request.clientId for request in master.of(Method.BALANCE_REGISTER)} == {session.client_id}


def test_heartbeats_survive_a_master_that_is_away_for_a_while(pool, caplog):
    answers = [beat(500), STANDBY, beat()]
    with (
        ScriptedMaster(balance_heartbeat=answers) as master,
        balance(config_for(master, heartbeat_period_ms=5), pool),
    ):
        master.wait_for(Method.BALANCE_HEARTBEAT, 2)
        master.restart_connections()
        master.wait_for(Method.BALANCE_HEARTBEAT, 5)
    assert "failed; the next try" in caplog.text


# --- layout ------------------------------------------------------------------------------------------------


def test_the_layout_names_every_partition_and_its_broker(pool):
    answer = meta("demo#1:2:3:1,2:1:1:0", "other#2:1:2:1")
    with (
        ScriptedMaster(balance_partition_meta=answer) as master,
        balance(config_for(master), pool) as session,
    ):
        layout = session.layout()

    assert layout.partitions == {
        **{partition(1, number): FIRST for number in (0, 1, 2, 10000, 10001, 10002)},
        partition(2, 0): SECOND,
        partition(2, 0, "other"): SECOND,
        partition(2, 1, "other"): SECOND,
    }
    assert layout.not_subscribable == {partition(2, 0)}


def test_lists_that_did_not_change_are_not_sent_again(pool):
    def answer(request):
        news = request.topicMetaInfoId != 9
        return meta(*(["demo#1:1:1:1"] if news else []), meta_id=9)

    with (
        ScriptedMaster(balance_partition_meta=answer) as master,
        balance(config_for(master), pool) as session,
    ):
        layouts = [session.layout() for _ in range(3)]

        asked = [
            (item.brokerConfigId, item.topicMetaInfoId) for item in master.of(Method.BALANCE_PARTITION_META)
        ]
        assert asked == [(5, -2), (5, 9), (5, 9)]
    assert layouts[0] == layouts[1] == layouts[2]


def test_a_list_that_changes_alone_changes_the_layout(pool):
    moved = {"brokerConfigId": 6, "brokerConfigList": ["1:10.9.9.9:8123"]}
    answers = [meta("demo#1:1:1:1"), meta(**moved), meta("demo#1:1:2:1", meta_id=10, brokerConfigId=6)]
    with (
        ScriptedMaster(balance_partition_meta=answers) as master,
        balance(config_for(master), pool) as session,
    ):
        layouts = [dict(session.layout().partitions) for _ in range(3)]

    there = Endpoint("10.9.9.9", 8123)
    assert layouts == [
        {partition(1, 0): FIRST},
        {partition(1, 0): there},
        {partition(1, 0): there, partition(1, 1): there},
    ]


def test_brokers_that_come_with_the_layout_count_at_once(pool):
    answer = meta("demo#3:1:1:1", brokerConfigId=6, brokerConfigList=["3:10.1.2.12: "])
    with (
        ScriptedMaster(balance_partition_meta=answer) as master,
        balance(config_for(master), pool) as session,
    ):
        assert session.layout().partitions == {partition(3, 0): Endpoint("10.1.2.12", 8123)}


def test_a_broker_that_is_not_listed_is_asked_for(pool):
    answers = [meta("demo#3:1:1:1"), meta("demo#3:1:1:1", brokerConfigList=["3:10.1.2.12: "])]
    with (
        ScriptedMaster(balance_partition_meta=answers) as master,
        balance(config_for(master), pool) as session,
    ):
        assert session.layout().partitions == {partition(3, 0): Endpoint("10.1.2.12", 8123)}

        again = master.of(Method.BALANCE_PARTITION_META)[1]
        assert (again.brokerConfigId, again.topicMetaInfoId) == (-2, -2)


def test_a_broker_that_is_never_listed_is_an_error(pool):
    with (
        ScriptedMaster(balance_partition_meta=meta("demo#3:1:1:1")) as master,
        balance(config_for(master), pool) as session,
        pytest.raises(RemoteProtocolError, match=r"\[3\]"),
    ):
        session.layout()


def test_a_layout_is_asked_again_after_the_master_forgot_us(pool):
    answers = [meta(code=411), meta("demo#1:1:1:1")]
    with (
        ScriptedMaster(balance_partition_meta=answers) as master,
        balance(config_for(master), pool) as session,
    ):
        assert session.layout().partitions == {partition(1, 0): FIRST}
        assert len(master.of(Method.BALANCE_REGISTER)) == 2


def test_a_layout_that_is_refused_is_an_error(pool):
    with ScriptedMaster(balance_partition_meta=meta(code=400)) as master:
        with balance(config_for(master), pool) as session, pytest.raises(RpcError) as caught:
            session.layout()
        assert caught.value.code == 400


# --- producers ---------------------------------------------------------------------------------------------


def test_a_producer_learns_routes_and_limits(pool):
    answer = producer_beat("demo#1:2:2,2:1:1#", "big#2:1:1#2097152")
    with (
        ScriptedMaster(producer_heartbeat=answer) as master,
        ProducerSession(config_for(master), pool) as session,
    ):
        session.publish(["demo", "big"])

        assert session.routes("demo").partitions == {
            **{partition(1, number): FIRST for number in (0, 1, 10000, 10001)},
            partition(2, 0): SECOND,
        }
        assert session.routes("demo").max_message_bytes == 1 << 20
        assert session.routes("big").max_message_bytes == 2 << 20
        assert not session.routes("unknown").partitions
        (request,) = master.of(Method.PRODUCER_HEARTBEAT)
        assert list(request.topicList) == ["big", "demo"]
        assert request.brokerCheckSum == 11


@pytest.mark.parametrize(
    ("told", "limit"), [(None, 1 << 20), (5, 1 << 20), (4 << 20, 4 << 20), (1 << 30, 20 << 20)]
)
def test_the_clusters_limit_holds_within_reason(pool, told, limit):
    settings = common_pb2.ApprovedClientConfig(configId=3, maxMsgSize=told)
    with ScriptedMaster(producer_register=producer_registered(appdConfig=settings)) as master:
        with ProducerSession(config_for(master), pool) as session:
            assert session.routes("any").max_message_bytes == limit
            session.refresh()
        assert master.of(Method.PRODUCER_HEARTBEAT)[0].appdConfig.configId == 3


def test_routes_are_replaced_by_every_heartbeat(pool):
    answers = [producer_beat("demo#1:1:1#", "other#1:1:1#"), producer_beat("demo#1:2:1#"), producer_beat()]
    with (
        ScriptedMaster(producer_heartbeat=answers) as master,
        ProducerSession(config_for(master), pool) as session,
    ):
        session.publish(["demo", "other"])
        session.refresh()
        assert len(session.routes("demo").partitions) == 2
        assert not session.routes("other").partitions
        session.refresh()
        assert not session.routes("demo").partitions


def test_routes_stay_when_the_master_is_not_ready(pool):
    answers = [producer_beat("demo#1:1:1#"), producer_beat(errCode=201)]
    with (
        ScriptedMaster(producer_heartbeat=answers) as master,
        ProducerSession(config_for(master), pool) as session,
    ):
        session.publish(["demo"])
        session.refresh()
        assert len(session.routes("demo").partitions) == 1


def test_a_changed_list_of_brokers_is_taken_over(pool):
    moved = producer_beat("demo#1:1:1#", brokerCheckSum=12, brokerInfos=["1:10.9.9.9:8123"])
    with ScriptedMaster(
        producer_heartbeat=[moved, producer_beat("demo#1:1:1#", brokerCheckSum=12)]
    ) as master:
        with ProducerSession(config_for(master), pool) as session:
            session.publish(["demo"])
            session.refresh()

            assert session.routes("demo").partitions == {partition(1, 0): Endpoint("10.9.9.9", 8123)}
        assert [item.brokerCheckSum for item in master.of(Method.PRODUCER_HEARTBEAT)] == [11, 12]


def test_a_route_to_an_unknown_broker_is_left_out_and_its_address_asked_for(pool):
    with ScriptedMaster(producer_heartbeat=producer_beat("demo#1:1:1,9:1:1#")) as master:
        with ProducerSession(config_for(master), pool) as session:
            session.publish(["demo"])
            assert session.routes("demo").partitions == {partition(1, 0): FIRST}
            session.refresh()
        assert [item.brokerCheckSum for item in master.of(Method.PRODUCER_HEARTBEAT)] == [11, -1]


def test_a_forgotten_producer_registers_again(pool):
    answers = [producer_refused(411), producer_beat("demo#1:1:1#")]
    with ScriptedMaster(producer_heartbeat=answers) as master:
        with ProducerSession(config_for(master), pool) as session:
            session.publish(["demo"])

            assert len(session.routes("demo").partitions) == 1
        assert [list(item.topicList) for item in master.of(Method.PRODUCER_REGISTER)] == [[], ["demo"]]


def test_producers_send_heartbeats_too(pool):
    with ScriptedMaster() as master, ProducerSession(config_for(master, heartbeat_period_ms=5), pool):
        master.wait_for(Method.PRODUCER_HEARTBEAT, 2)


def test_what_proves_to_a_broker_that_a_master_knows_us(pool):
    answers = [
        producer_beat(authorizedInfo=token(8, "from the master")),
        producer_beat(authorizedInfo=token(9, " ")),
    ]
    with ScriptedMaster(producer_heartbeat=answers) as master:
        session = ProducerSession(config_for(master), pool)
        assert session.broker_tokens == (-2, "")
        with session:
            assert session.broker_tokens == (7, "")
            for number in (8, 9):
                session.refresh()
                assert session.broker_tokens == (number, "from the master")


def test_a_fresh_visit_token_costs_no_topic_and_no_group(pool):
    with ScriptedMaster() as master:
        assert fresh_visit_token(config_for(master), pool) == 7
        assert [method for method, _ in master.requests] == [Method.PRODUCER_REGISTER, Method.PRODUCER_CLOSE]
        assert not master.requests[0][1].topicList
