"""The master over the wire: producers' routes, consumer groups, layouts, timeouts, and a standby."""

import time

import pytest

from tests.embedded.wire import MasterClient, fetch_request
from tubemq_spark.embedded.authentication import VisitTokens
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.master.groups import GroupTerms, Members, RegisteredConsumer
from tubemq_spark.embedded.server import EmbeddedSettings, TopicSpec
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2


@pytest.fixture
def start_master(start, closing):
    def start_it(**arguments):
        server = start(**arguments)
        return server, closing.enter_context(MasterClient(server.master))

    return start_it


# --- producers


def test_a_producer_registers_without_routes(tubemq, master):
    answer = master.register_producer(topics=["demo"])
    assert (answer.success, answer.errCode, answer.errMsg) == (True, 200, "OK!")
    assert answer.brokerCheckSum >= 0
    assert list(answer.brokerInfos) == [f"1:{tubemq.broker}"]
    assert answer.authorizedInfo.visitAuthorizedToken > 0
    assert (answer.appdConfig.configId, answer.appdConfig.maxMsgSize) == (-2, 1 << 20)


def test_the_clients_config_is_told_once(master):
    answer = master.register_producer(appdConfig={"configId": -2})
    assert answer.appdConfig.configId == -2
    assert not answer.appdConfig.HasField("maxMsgSize")
    assert master.producer_heartbeat(appdConfig={"configId": 1}).appdConfig.maxMsgSize == 1 << 20


def test_a_heartbeat_gives_the_routes_of_all_topics_that_can_be_published(start_master):
    topics = {
        "demo": (2, 3),
        "small": TopicSpec(max_message_bytes=5000),
        "readonly": TopicSpec(accept_publish=False),
        "other": (1, 1),
    }
    server, master = start_master(topics=topics)
    registered = master.register_producer()
    asked = ["demo", "small", "readonly", "nosuch", " ", "demo"]
    answer = master.producer_heartbeat(topics=asked, checksum=registered.brokerCheckSum)
    assert (answer.success, answer.errCode, answer.requireAuth) == (True, 200, False)
    assert list(answer.topicInfos) == ["demo#1:3:2#", "small#1:1:1#5000"], "partitions, then stores"
    assert list(answer.brokerInfos) == []
    assert answer.brokerCheckSum == registered.brokerCheckSum
    again = master.producer_heartbeat(topics=asked, checksum=-1)
    assert list(again.topicInfos) == list(answer.topicInfos), "in full every time"
    assert list(again.brokerInfos) == [f"1:{server.broker}"]


def test_an_unknown_producer_is_told_to_register(master):
    answer = master.producer_heartbeat()
    assert (answer.success, answer.errCode, answer.brokerCheckSum) == (False, 411, -1)
    assert answer.errMsg.startswith("Invalid node id:producer-1")


def test_closing_a_producer(master):
    master.register_producer()
    assert master.close_producer().errCode == 200
    assert master.producer_heartbeat().errCode == 411
    assert master.close_producer().success, "an unknown one too"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"client": ""}, "Request miss necessary clientId data!"),
        ({"client": "c" * 1025}, "clientId's length over max value, allowed max length is 1024"),
        ({"host": " "}, "Request miss necessary hostName data!"),
        ({"host": "h" * 257}, "hostName's length over max value, allowed max length is 256"),
        (
            {"topics": ["__offset_history__"]},
            "System Topic __offset_history__ does not allow client produce data!",
        ),
        (
            {"topics": [f"t{number}" for number in range(1025)]},
            "Booked topic's count over max value, required max count is 1024",
        ),
    ],
    ids=["client", "long client", "host", "long host", "history", "many topics"],
)
def test_what_a_producer_may_not_say(master, fields, text):
    for answer in (master.register_producer(**fields), master.producer_heartbeat(**fields)):
        assert (answer.success, answer.errCode, answer.errMsg) == (False, 400, text)
    assert master.register_producer(topics=[f"t{number}" for number in range(1024)]).success


def test_a_blank_close_is_refused(master):
    assert master.close_producer("").errCode == 400
    assert master.close_consumer("").errCode == 400
    assert master.close_consumer(group=" ").errCode == 400


# --- consumers that balance by themselves


def test_register_layout_heartbeat_close(start_master):
    server, master = start_master(topics={"demo": (2, 3), "other": (1, 1)})
    registered = master.register_consumer(topics=["demo", "other"])
    assert (registered.errCode, registered.errMsg) == (200, "OK!")
    assert list(registered.brokerConfigList) == [f"1:{server.broker}"]
    assert registered.HasField("opsTaskInfo")
    assert registered.authorizedInfo.visitAuthorizedToken > 0
    layout = master.layout()
    assert list(layout.topicMetaInfoList) == ["demo#1:2:3:1", "other#1:1:1:1"], "stores, then partitions"
    assert layout.topicMetaInfoId >= 0
    assert list(layout.brokerConfigList) == [f"1:{server.broker}"]
    same = master.layout(brokers=layout.brokerConfigId, layout=layout.topicMetaInfoId)
    assert (same.brokerConfigId, same.topicMetaInfoId) == (layout.brokerConfigId, layout.topicMetaInfoId)
    assert (list(same.topicMetaInfoList), list(same.brokerConfigList)) == ([], [])
    beat = master.consumer_heartbeat()
    assert (beat.errCode, beat.brokerConfigId) == (200, registered.brokerConfigId)
    assert list(beat.brokerConfigList) == [f"1:{server.broker}"]
    assert beat.HasField("opsTaskInfo")
    assert not beat.HasField("topicMetaInfoId")
    assert master.close_consumer().success
    assert master.close_consumer().success, "an unknown one too"
    assert (master.consumer_heartbeat().errCode, master.layout().errCode) == (411, 411)


def test_known_ids_bring_no_lists(master):
    known = master.register_consumer().brokerConfigId
    report = {"brokerConfigId": known, "topicMetaInfoId": -2}
    assert list(master.register_consumer(subRepInfo=report).brokerConfigList) == []
    assert list(master.consumer_heartbeat(brokerConfigId=known).brokerConfigList) == []


def test_the_layout_changes_with_the_topics(start_master):
    server, master = start_master()
    master.register_consumer()
    before = master.layout()
    server.add_topic("demo", stores=1, partitions=2)
    after = master.layout(layout=before.topicMetaInfoId)
    assert after.topicMetaInfoId != before.topicMetaInfoId
    assert list(after.topicMetaInfoList) == ["demo#1:1:2:1"]
    server._state.set_topic("demo", TopicSpec(partitions=2, accept_subscribe=False))
    assert list(master.layout().topicMetaInfoList) == ["demo#1:1:2:0"]
    closed = TopicSpec(partitions=2, accept_subscribe=False, status=TopicStatus.REMOVED)
    server._state.set_topic("demo", closed)
    assert list(master.layout().topicMetaInfoList) == []


def test_a_heartbeat_repeats_the_layout_in_a_group_that_the_master_balances_too(master):
    report = {"lstAssignedTime": 0, "reportSubInfo": True, "partSubInfo": ["demo#1:0"]}
    assert master.join_group().errCode == 200
    answer = master.consumer_heartbeat(**report)
    assert answer.topicMetaInfoId >= 0
    assert list(answer.topicMetaInfoList) == ["demo#1:1:1:1"]


@pytest.mark.parametrize(
    ("age_s", "holds", "told"),
    [(200, True, True), (100, True, False), (200, False, False), (None, True, False)],
)
def test_a_heartbeat_repeats_the_layout_to_who_has_an_old_one(master, age_s, holds, told):
    master.register_consumer()
    report = {"reportSubInfo": True, "partSubInfo": ["demo#1:0"] if holds else []}
    if age_s is not None:
        report["lstAssignedTime"] = int((time.time() - age_s) * 1000)
    answer = master.consumer_heartbeat(**report)
    assert answer.HasField("topicMetaInfoId") is told
    assert list(answer.topicMetaInfoList) == (["demo#1:1:1:1"] if told else [])
    if told:
        known = master.consumer_heartbeat(**{**report, "topicMetaInfoId": answer.topicMetaInfoId})
        assert known.topicMetaInfoId == answer.topicMetaInfoId
        assert list(known.topicMetaInfoList) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"client": ""}, 400),
        ({"hostName": ""}, 400),
        ({"group": " "}, 400),
        ({"topics": []}, 400),
        ({"topics": [" "]}, 400),
        ({"topics": [f"t{number}" for number in range(1025)]}, 400),
        ({"source_count": 2, "node_id": 2}, 400),
        ({"source_count": 2, "node_id": -1}, 400),
        ({"topicCondition": ["other#a"]}, 400),
        ({"topics": ["demo", "nosuch"]}, 431),
    ],
    ids=range(10),
)
def test_what_a_consumer_may_not_say(master, fields, code):
    assert master.register_consumer(**fields).errCode == code
    assert master.layout().errCode == 411, "refused is not registered"


@pytest.mark.parametrize(
    ("second", "code"),
    [
        ({}, 200),
        ({"topics": ["demo", "other"]}, 425),
        ({"topicCondition": []}, 426),
        ({"topicCondition": ["demo#a"]}, 426),
        ({"topicCondition": ["demo#b, a"]}, 200),
        ({"source_count": 4}, 429),
        ({"source_count": -2, "node_id": -2}, 429),
        ({"node_id": 0}, 430),
        ({"node_id": 2}, 200),
        ({"client": "consumer-1", "node_id": 2}, 200),
        ({"client": "consumer-1", "node_id": 0}, 200),
        ({"topics": ["demo", "other"], "topicCondition": [], "source_count": 4, "node_id": 0}, 425),
        ({"topicCondition": [], "source_count": 4, "node_id": 0}, 426),
        ({"source_count": 4, "node_id": 0}, 429),
    ],
)
def test_members_of_a_group_must_agree(start_master, second, code):
    _, master = start_master(topics={"demo": (1, 1), "other": (1, 1)})
    first = {"source_count": 3, "node_id": 0, "topicCondition": ["demo#a,b"]}
    assert master.register_consumer(**first).errCode == 200
    answer = master.register_consumer(**{**first, "client": "consumer-2", "node_id": 1, **second})
    assert answer.errCode == code
    assert (master.consumer_heartbeat("consumer-2").errCode == 200) is (
        code == 200 and "client" not in second
    )


def test_a_group_begins_anew_with_its_first_member(start_master):
    _, master = start_master(topics={"demo": (1, 1), "other": (1, 1)})
    master.register_consumer()
    master.close_consumer()
    assert master.register_consumer(topics=["other"]).errCode == 200


def test_a_condition_without_items_is_no_filter(master):
    """The Go client sends it."""
    assert master.register_consumer(topicCondition=["demo#"]).errCode == 200
    assert master.register_consumer(client="consumer-2").errCode == 200


def test_without_source_count_node_ids_do_not_matter(master):
    for number in range(3):
        assert master.register_consumer(client=f"consumer-{number}").errCode == 200


def test_packed_texts_that_cannot_be_read_are_an_exception_as_in_java(master):
    master.register_consumer()
    with pytest.raises(AssertionError, match="InvocationTargetException"):
        master.register_consumer(topicCondition=["demo"])
    with pytest.raises(AssertionError, match="InvocationTargetException"):
        master.consumer_heartbeat(reportSubInfo=True, partSubInfo=["demo"])
    assert master.consumer_heartbeat().errCode == 200


# --- silence


def test_silent_clients_are_forgotten(start_master):
    _, master = start_master(settings=EmbeddedSettings(client_timeout_ms=60, scan_period_ms=10))
    master.register_producer()
    master.register_consumer()
    deadline = time.monotonic() + 5
    time.sleep(0.1)
    while master.producer_heartbeat().errCode != 411 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert master.producer_heartbeat().errCode == 411
    assert master.consumer_heartbeat().errCode == 411


def test_heartbeats_and_layouts_keep_a_client():
    now = [0]
    members = Members(100, lambda: now[0])
    members.add_producer("p")
    now[0] = 99
    assert members.expire() == []
    members.record_producer_heartbeat("p")
    now[0] = 198
    assert members.expire() == []
    now[0] = 199
    assert members.expire() == ["p"]
    members.add_consumer("g", GroupTerms(frozenset({"demo"}), {}, -2), RegisteredConsumer("c", -2, 0, -2))
    now[0] = 298
    members.record_consumer_heartbeat("g", "c", client_balanced=True)
    now[0] = 397
    assert members.expire() == []
    now[0] = 398
    assert members.expire() == ["c"]
    assert members.groups == {}


# --- tokens


def test_a_token_without_period_never_changes():
    now = [1000]
    tokens = VisitTokens(0, lambda: now[0])
    first = tokens.current
    now[0] += 10**9
    assert tokens.current == first
    assert tokens.accepts(first)
    assert not tokens.accepts(first + 1)


def test_a_token_changes_with_its_period_and_the_last_six_are_accepted():
    now = [1000]
    tokens = VisitTokens(10, lambda: now[0])
    seen = [tokens.current]
    now[0] += 9
    assert tokens.current == seen[0]
    for _ in range(6):
        now[0] = seen[-1] + 10
        seen.append(tokens.current)
    assert len(set(seen)) == 7
    assert [tokens.accepts(token) for token in seen] == [False] + [True] * 6


# --- methods that do not belong here


@pytest.mark.parametrize("method", [7, 8, 9, 0, 10, 11, 12, 14, 19, 23, 99, -1])
def test_unsupported_methods_are_fatal(tubemq, master, broker, method):
    for peer in (master, broker):
        for service in (1, 2, 3, 9):
            (answer,) = peer.exchange((service, method, b""))
            assert answer.status.name == "FATAL"
            assert answer.exception_name == "java.lang.Exception"
            assert answer.text == f"IPC server handle request error :Unsupported method ID :{method}"


def request_of(method):
    return master_pb2.CloseRequestP2M(clientId="p").SerializeToString() if method == 3 else b""


@pytest.mark.parametrize(
    ("peer", "service", "method", "text"),
    [
        ("master", 2, 3, "Unsupported method 3in service type 2!"),
        ("master", 1, 13, "Unsupported method 13in service type 1!"),
        ("master", 3, 13, "No service 3 found on the server"),
        ("master", 2, 17, "No service 2 found on the server"),
        ("broker", 1, 3, "No service 1 found on the server"),
        ("broker", 3, 17, "Unsupported method 17in service type 3!"),
        ("master", 9, 3, "Service Type is invalid!"),
        ("master", 0, 13, "Service Type is invalid!"),
    ],
)
def test_methods_at_the_wrong_place_are_errors(master, broker, peer, service, method, text):
    wire = {"master": master, "broker": broker}[peer]
    body = fetch_request()[2] if peer == "broker" and method == 17 else request_of(method)
    (answer,) = wire.exchange((service, method, body))
    assert (answer.status.name, answer.exception_name, answer.text) == ("ERROR", "java.lang.Exception", text)


def test_a_message_that_does_not_parse_is_fatal(master, broker):
    for wire, service, method in (
        (master, ServiceType.MASTER, Method.PRODUCER_REGISTER),
        (broker, ServiceType.BROKER_READ, Method.COMMIT_OFFSET),
    ):
        for body in (b"", b"\xff\xff", b"\x0a\x05abc"):
            (answer,) = wire.exchange((service, method, body))
            assert answer.status.name == "FATAL"
            assert answer.exception_name == "com.google.protobuf.InvalidProtocolBufferException"


def test_a_handler_that_breaks_is_an_exception_without_text(tubemq, master, monkeypatch, caplog):
    monkeypatch.setattr(VisitTokens, "current", property(lambda _: 1 / 0))
    (answer,) = master.exchange(
        (
            1,
            1,
            master_pb2.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="h").SerializeToString(),
        )
    )
    assert (answer.status.name, answer.text) == ("ERROR", "")
    assert answer.exception_name == "java.lang.reflect.InvocationTargetException"
    assert "RegisterRequestP2M could not be handled" in caplog.text


@pytest.fixture
def standby(start, closing):
    server = start(topics={"demo": (1, 1)})
    client = closing.enter_context(MasterClient(server.master))
    client.register_producer()
    client.join_group("one", "balanced")
    client.register_consumer("two", "own")
    server.faults.become_standby()
    return server, client


CALLS = {
    "register_producer": ("producer-1", {}),
    "producer_heartbeat": ("producer-1", {}),
    "close_producer": ("producer-1", {}),
    "join_group": ("one", {"group": "balanced"}),
    "group_heartbeat": ("one", {"group": "balanced"}),
    "register_consumer": ("two", {"group": "own"}),
    "consumer_heartbeat": ("two", {"group": "own"}),
    "layout": ("two", {"group": "own"}),
    "close_consumer": ("two", {"group": "own"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_sent_on(standby, call):
    server, client = standby
    name, fields = CALLS[call]
    with pytest.raises(AssertionError, match="StandbyException") as failure:
        getattr(client, call)(name, **fields)
    text = str(failure.value)
    assert "org.apache.inlong.tubemq.corerpc.exception.StandbyException" in text
    assert f"{server.master} is not master now. the connecting client id is {name}" in text
    server.faults.become_active()
    answer = getattr(client, call)(name, **fields)
    assert answer.errCode == 200, "nothing was changed meanwhile"


@pytest.mark.parametrize("call", CALLS)
def test_what_is_wrong_is_said_first(standby, call):
    _, client = standby
    _, fields = CALLS[call]
    assert getattr(client, call)("", **fields).errCode == 400


def test_topics_come_after_it_for_consumers_and_before_it_for_producers(standby):
    _, client = standby
    for call in (client.join_group, client.register_consumer):
        with pytest.raises(AssertionError, match="StandbyException"):
            call("one", topics=["nosuch"])
    assert client.register_producer(topics=["__offset_history__"]).errCode == 400
    with pytest.raises(AssertionError, match="StandbyException"):
        client.producer_heartbeat("unknown")
