"""Sending over the wire: every check in TubeMQ's order, batches, and what is stored."""

import threading

import pytest

from tests.embedded.wire import BrokerClient, fetch_request, send_answer, send_request
from tubemq_spark.embedded.broker import broker as broker_module
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.server import EmbeddedSettings, TopicSpec
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.payload import checksum
from tubemq_spark.protocol.pb import broker_pb2

LIMIT = (1 << 20) + 10_240


def test_a_send_answers_with_id_time_and_offset(broker):
    first, second = broker.send(b"one", b"two")
    assert (first.errCode, first.requireAuth) == (200, False)
    assert first.messageId > 0
    assert first.errMsg == str(first.messageId)
    assert second.messageId > first.messageId
    assert (first.appendOffset, second.appendOffset) == (0, 28)
    assert abs(second.appendTime - first.appendTime) < 10_000


def test_payload_flag_and_checksum_come_back_unchanged(broker):
    broker.register()
    broker.send(b"\0\0\0\3k=vbody", flag=5)
    broker.send(b"plain", flag=4, checkSum=checksum(b"plain"))
    first, second = broker.fetch().messages
    assert (first.payLoadData, first.flag, first.checkSum) == (
        b"\0\0\0\3k=vbody",
        5,
        checksum(b"\0\0\0\3k=vbody"),
    )
    assert (second.payLoadData, second.flag, second.checkSum) == (b"plain", 4, checksum(b"plain"))


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"client": " "}, 400, "Request miss necessary clientId data!"),
        ({"client": "c" * 1025}, 400, "clientId's length over max value, allowed max length is 1024"),
        ({"topic": ""}, 400, "Request miss necessary topicName data!"),
        ({"topic": "t" * 65}, 400, "topicName's length over max value, allowed max length is 64"),
        (
            {"topic": "__offset_history__"},
            403,
            "topicName __offset_history__ does not allow producers to send data!",
        ),
        ({"topic": "nosuch"}, 403, "topicName nosuch not existed, please check your configure"),
        ({"topic": "closed"}, 403, "topicName closed has been closed"),
        ({"partition_id": 1}, 403, "partitionId demo-1 not existed, please check your configure"),
        ({"partition_id": -1}, 403, "partitionId demo--1 not existed, please check your configure"),
        ({"partition_id": 9_999}, 403, "partitionId demo-9999 not existed, please check your configure"),
        ({"partition_id": 10_000}, 403, "partitionId demo-10000 not existed, please check your configure"),
        ({"data": b""}, 400, "data length is zero!"),
        (
            {"data": b"x" * (LIMIT + 1)},
            400,
            f"data length over max length, allowed max length is {LIMIT}, data length is {LIMIT + 1}",
        ),
        (
            {"checkSum": 5},
            403,
            f"Checksum msg data failure: 5 of demo not equal to the data's checksum of {checksum(b'x')}",
        ),
    ],
    ids=lambda value: None if isinstance(value, int) else str(value)[:30],
)
def test_what_is_refused(start, connect, fields, code, text):
    server = start(topics={"demo": (1, 1), "closed": (1, 1)})
    server._state.set_topic(
        "closed", TopicSpec(accept_publish=False, accept_subscribe=False, status=TopicStatus.SOFT_DELETED)
    )
    broker = connect(server)
    answer = broker.try_send(**{"data": b"x", **fields})
    assert (answer.success, answer.errCode, answer.errMsg) == (False, code, text)
    assert not answer.HasField("appendOffset")
    assert server.stats().messages_in == 0


def test_of_several_faults_the_first_in_order_is_told(broker):
    faults = {"client": "", "topic": "nosuch", "partition_id": 7, "data": b"", "checkSum": 1}
    cures = [("client", "c"), ("topic", "demo"), ("partition_id", 0), ("data", b"x"), ("checkSum", -1)]
    codes = []
    for name, value in cures:
        codes.append(broker.try_send(**faults).errCode)
        faults[name] = value
    assert codes == [400, 403, 403, 400, 403]
    assert broker.try_send(**faults).success


def test_the_longest_message_passes(broker):
    assert broker.try_send(b"x" * LIMIT).success
    broker.register()
    assert broker.drain() == [b"x" * LIMIT]


def test_a_topic_may_have_its_own_limit(start, connect):
    broker = connect(start(topics={"demo": TopicSpec(max_message_bytes=100)}))
    assert broker.try_send(b"x" * (100 + 10_240)).success
    assert broker.try_send(b"x" * (101 + 10_240)).errCode == 400


def test_a_topic_closed_to_publishing_is_the_masters_business_only(start, connect):
    assert connect(start(topics={"demo": TopicSpec(accept_publish=False)})).try_send().success


def test_every_partition_of_every_store_takes_messages(start, connect):
    broker = connect(start(topics={"demo": (2, 3)}))
    for partition_id in (0, 1, 2, 10_000, 10_001, 10_002):
        broker.send(str(partition_id).encode(), partition_id=partition_id)
    assert broker.try_send(partition_id=20_000).errCode == 403
    for partition_id in (0, 2, 10_001):
        broker.register(partition_id)
        assert broker.drain(partition_id) == [str(partition_id).encode()]


def test_sends_go_under_both_broker_services(broker):
    _, method, body = send_request(b"x")
    answers = broker.exchange(
        (ServiceType.BROKER_READ, method, body), (ServiceType.BROKER_WRITE, method, body)
    )
    assert [send_answer(answer).appendOffset for answer in answers] == [0, 28]


def test_one_read_may_mix_good_and_bad_sends_of_several_stores(start, connect):
    broker = connect(start(topics={"demo": (2, 1), "other": (1, 1)}))
    _, method, body = send_request(b"x")
    requests = [
        send_request(b"a0"),
        send_request(b"b0", partition_id=10_000),
        send_request(b"", partition_id=0),
        send_request(b"a1"),
        (ServiceType.MASTER, method, body),
        (ServiceType.BROKER_WRITE, method, b"\xff"),
        send_request(b"c0", topic="other"),
        send_request(b"b1", partition_id=10_000),
    ]
    answers = broker.exchange(*requests)
    offsets = [send_answer(answers[place]).appendOffset for place in (0, 1, 3, 6, 7)]
    assert offsets == [0, 0, 28, 0, 28]
    assert send_answer(answers[2]).errCode == 400
    assert answers[4].text == "Unsupported method 13in service type 1!"
    assert answers[5].status.name == "FATAL"


def test_a_fetch_behind_sends_in_one_read_sees_them(broker):
    broker.register()
    fetch = fetch_request()
    _, first, _, second = broker.exchange(send_request(b"1"), fetch, send_request(b"2"), fetch)
    messages = [
        [message.payLoadData for message in broker_pb2.GetMessageResponseB2C.FromString(answer.body).messages]
        for answer in (first, second)
    ]
    assert messages == [[b"1"], [b"1", b"2"]]


def test_a_text_that_is_not_utf8_makes_a_message_unreadable(broker):
    for field in ("clientId", "topicName", "msgType"):
        service, method, body = send_request(b"x", client="aaaa", topic="demo", msgType="bbbb")
        text = {"clientId": b"aaaa", "topicName": b"demo", "msgType": b"bbbb"}[field]
        (answer,) = broker.exchange((service, method, body.replace(text, b"\xff\xfe\xfd\xfc")))
        assert answer.status.name == "FATAL"
        assert answer.exception_name == "com.google.protobuf.InvalidProtocolBufferException"
    assert broker.try_send().success


def test_a_message_without_required_fields_is_unreadable(broker):
    (answer,) = broker.exchange((ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, b""))
    assert answer.status.name == "FATAL"
    assert answer.exception_name == "com.google.protobuf.InvalidProtocolBufferException"
    assert answer.text.startswith("IPC server handle request error :")


def test_a_broken_disk_gives_500_to_all_messages_of_the_store(tubemq, broker, monkeypatch):
    broker.send(b"x")
    (store,) = tubemq._state.stores.all().values()

    def broken(_records):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append", broken)
        answers = [send_answer(answer) for answer in broker.exchange(send_request(b"1"), send_request(b"2"))]
    assert [answer.errCode for answer in answers] == [500, 500]
    assert answers[0].errMsg == "Put message failed from 127.0.0.1 [Errno 5] Input/output error"
    assert broker.send(b"3")[0].appendOffset == 28


@pytest.mark.parametrize("token", [None, -2, 0])
def test_without_checking_every_visit_token_is_fine(broker, token):
    fields = {} if token is None else {"authInfo": {"visitAuthorizedToken": token}}
    assert broker.try_send(**fields).success


def test_visit_tokens_are_checked_when_that_is_on(start, connect):
    server = start(settings=EmbeddedSettings(check_visit_tokens=True))
    broker = connect(server)
    token = server._state.tokens.current
    refused = [
        broker.try_send(),
        broker.try_send(authInfo={"visitAuthorizedToken": token + 1}),
        broker.try_send(client="", authInfo={"visitAuthorizedToken": -2}),
        broker.register(),
        broker.unregister(),
        broker.heartbeat(),
    ]
    assert {(answer.errCode, answer.errMsg) for answer in refused} == {
        (415, "Visit Authorized Token is invalid!")
    }
    assert broker.try_send(authInfo={"visitAuthorizedToken": token}).success
    assert broker.register(authInfo={"visitAuthorizedToken": token}).success
    assert broker.fetch().success, "fetches carry no token"


def test_many_connections_to_one_store_keep_each_ones_order(tubemq):
    def produce(number):
        with BrokerClient(tubemq.broker) as client:
            for first in range(0, 200, 50):
                client.send(*(b"%d:%d" % (number, index) for index in range(first, first + 50)))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with BrokerClient(tubemq.broker) as client:
        client.register()
        seen = client.drain()
    assert len(seen) == 800
    for number in range(4):
        mine = [payload for payload in seen if payload.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, index) for index in range(200)]


def test_long_message_types_are_not_kept_in_memory(broker):
    broker_module._known_key_code.cache_clear()
    for number in range(20):
        assert broker.try_send(b"x", msgType=f"{number:0100000d}").success
    assert broker_module._known_key_code.cache_info().currsize == 0
    assert broker.try_send(b"x", msgType="news").success
    assert broker_module._known_key_code.cache_info().currsize == 1
