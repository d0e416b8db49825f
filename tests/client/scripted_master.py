"""A master that answers as a test says."""

import threading

from tests.rpc_server import RpcServer
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.balance import BalanceSession
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.pb import common_pb2, master_pb2

REQUESTS = {
    Method.PRODUCER_REGISTER: master_pb2.RegisterRequestP2M,
    Method.PRODUCER_HEARTBEAT: master_pb2.HeartRequestP2M,
    Method.PRODUCER_CLOSE: master_pb2.CloseRequestP2M,
    Method.CONSUMER_REGISTER: master_pb2.RegisterRequestC2M,
    Method.CONSUMER_HEARTBEAT: master_pb2.HeartRequestC2M,
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
        self.timeouts_ms = []
        self.changed = threading.Condition()
        self.server = RpcServer(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.close()

    @property
    def endpoint(self):
        return self.server.endpoint

    def say(self, method, *answers):
        """Give these answers, one after the other."""
        self.answers[method] = list(answers)

    def of(self, method):
        return [request for asked, request in self.requests if asked == method]

    def wait_for(self, method, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.of(method)) >= count, 5)
        return self.of(method)

    def restart_connections(self):
        self.server.drop_connections()

    def _handle(self, exchange):
        method = Method(exchange.request.method)
        request = exchange.parse(REQUESTS[method])
        with self.changed:
            self.requests.append((method, request))
            self.timeouts_ms.append(exchange.request.timeout_ms)
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
    usual = {"brokerCheckSum": 11, "brokerInfos": ["1:10.1.2.10: ", "2:10.1.2.11:8200"]}
    settings = {**usual, "authorizedInfo": token(), **more}
    return master_pb2.RegisterResponseM2P(success=True, errCode=200, errMsg="OK!", **settings)


def producer_beat(*topics, **more):
    settings = {"errCode": 200, "brokerCheckSum": 11, **more}
    return master_pb2.HeartResponseM2P(success=True, errMsg="OK!", topicInfos=topics, **settings)


def producer_refused(code, text="no"):
    return master_pb2.HeartResponseM2P(success=False, errCode=code, errMsg=text, brokerCheckSum=-1)


def registered(code=200, text="OK!", brokers=("1:10.1.2.10: ", "2:10.1.2.11:8200"), config_id=5, **more):
    return master_pb2.RegisterResponseM2CV2(
        errCode=code, errMsg=text, brokerConfigId=config_id, brokerConfigList=brokers, **more
    )


def member_registered(code=200, text="OK!", **more):
    settings = {"notAllocated": True, "authorizedInfo": token(), **more}
    return master_pb2.RegisterResponseM2C(success=code == 200, errCode=code, errMsg=text, **settings)


def member_beat(code=200, text="OK!", **more):
    return master_pb2.HeartResponseM2C(success=code == 200, errCode=code, errMsg=text, **more)


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
    Method.CONSUMER_REGISTER: member_registered(),
    Method.CONSUMER_HEARTBEAT: member_beat(),
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


def balance(config, connections, *topics):
    return BalanceSession(config, connections, topics or ("demo",))
