"""The web ports: same names, JSON and error texts as TubeMQ's."""

import contextlib
import http.client
import json
import socket
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from integration_tests.real.admin import AdminError, BrokerAdmin, MasterAdmin
from tests.embedded.wire import MasterClient, connect, is_closed
from tubemq_spark.embedded.server import EmbeddedSettings

TOKEN = {"confModAuthToken": "abc", "createUser": "me", "modifyUser": "me"}


def ask(address, **parameters):
    with urlopen(f"http://{address}/webapi.htm?{urlencode(parameters)}", timeout=5) as response:
        assert response.status == 200
        return json.loads(response.read())


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def master_admin(server):
    return MasterAdmin(server.master_web)


@pytest.fixture
def broker_admin(server):
    return BrokerAdmin(server.broker_web)


# --- the frame of every call


@pytest.mark.parametrize(
    ("web", "method", "text"),
    [
        ("master_web", "nosuch", "Bad request from client, unsupported method!"),
        ("broker_web", "nosuch", "Unsupported method nosuch"),
        ("broker_web", "", "Please take with method parameter! "),
        ("broker_web", "admin_query_group_offset", "Parameter groupName is missing or value is blank!"),
    ],
)
def test_failures(server, web, method, text):
    answer = ask(getattr(server, web), method=method)
    assert answer == {"result": False, "errCode": 400, "errMsg": text}


def test_get_and_post_and_aliases_are_the_same(server):
    query = urlencode({"method": "admin_query_group_offset", "topic": "demo", "group": "g", "pid": "1"})
    with urlopen(f"http://{server.broker_web}/anything?{query}", timeout=5) as response:
        by_get = json.loads(response.read())
    with urlopen(f"http://{server.broker_web}/webapi.htm", query.encode(), 5) as response:
        by_post = json.loads(response.read())
    assert by_get == by_post
    assert by_get["result"]


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("confModAuthToken", "Parameter confModAuthToken is missing or value is blank!"),
        ("modifyUser", "Parameter modifyUser is missing or value is blank!"),
        ("brokerId", "Parameter brokerId is missing or value is blank!"),
        ("topicName", "Parameter topicName is missing or value is blank!"),
    ],
)
def test_changing_calls_need_all_their_parameters(server, missing, text):
    parameters = {**TOKEN, "method": "admin_modify_topic_info", "topicName": "demo", "brokerId": "1"}
    del parameters[missing]
    answer = ask(server.master_web, **parameters)
    assert answer == {"result": False, "errCode": 400, "errMsg": f"Bad request from client, {text}"}


def test_a_wrong_token_is_refused(start):
    server = start(settings=EmbeddedSettings(admin_token="secret"))
    parameters = {**TOKEN, "method": "admin_modify_topic_info", "topicName": "demo", "brokerId": "1"}
    answer = ask(server.master_web, **parameters)
    assert answer["errMsg"] == "Bad request from client, illegal access, unauthorized request!"
    assert ask(server.master_web, **{**parameters, "confModAuthToken": "secret"})["result"]


def test_a_list_has_a_hundred_items_at_most(server):
    names = ",".join(f"t{number}" for number in range(101))
    assert not ask(server.broker_web, method="admin_query_pubinfo", topicName=names)["result"]
    assert ask(server.broker_web, method="admin_query_pubinfo", topicName=names.partition(",")[2])["result"]


# --- the master


def test_the_master_is_active_and_the_broker_runs(server, master_admin):
    assert master_admin.is_active()
    assert master_admin.group_nodes() == {server.master: "Master"}
    status = master_admin.broker_run_status()
    assert (status[1].run_status, status[1].sub_status, status[1].is_online) == ("running", "idle", True)
    (item,) = ask(server.master_web, method="admin_query_broker_run_status")["data"]
    assert f"{item['brokerIp']}:{item['brokerPort']}" == server.broker
    assert f"{item['brokerIp']}:{item['brokerWebPort']}" == server.broker_web


def test_configuring_the_broker_is_accepted(master_admin):
    master_admin.add_broker(1, "127.0.0.1", 8123, 8081)
    master_admin.online_broker(1)
    with pytest.raises(AdminError, match="there is only broker 1"):
        master_admin.online_broker(2)


def test_a_topics_life(server, master_admin, connect):
    master_admin.add_topic(
        "fresh", [1], stores=2, partitions=2, deletePolicy="delete,10m", unflushThreshold=7
    )
    assert master_admin.accepts_publish("fresh")
    assert master_admin.topic_brokers("fresh") == {1}
    place = master_admin.published_topics()["fresh", 1]
    assert (place.stores, place.partitions, place.accepts_publish, place.accepts_subscribe) == (
        2,
        2,
        True,
        True,
    )
    spec = server.topics()["fresh"]
    assert (spec.retention_ms, spec.flush_messages) == (600_000, 7)
    connect(server).send(b"x", topic="fresh", partition_id=10_001)
    master_admin.modify_topic("fresh", [1], numPartitions=3)
    assert server.topics()["fresh"].partitions == 3
    master_admin.delete_topic("fresh", [1])
    assert not master_admin.accepts_publish("fresh")
    assert ("fresh", 1) not in master_admin.published_topics()
    assert master_admin.topic_brokers("fresh") == {1}
    master_admin.remove_topic("fresh", [1])
    assert master_admin.topic_info("fresh") == []
    assert not list((server.data / "stores").glob("fresh*"))
    master_admin.add_topic("fresh", [1])
    assert master_admin.accepts_publish("fresh")


def test_several_topics_and_brokers_in_one_call(server):
    answer = ask(
        server.master_web,
        **TOKEN,
        method="admin_add_topic_deploy_info",
        topicName="demo,new1,new2,1bad",
        brokerId="1,2",
    )
    assert answer["result"], "although items failed"
    assert answer["count"] == 8
    outcome = {
        (item["brokerId"], item["topicName"]): (item["success"], item["errCode"]) for item in answer["data"]
    }
    assert outcome["1", "demo"] == (False, 402)
    assert outcome["1", "new1"] == outcome["1", "new2"] == (True, 200)
    assert outcome["1", "1bad"] == (False, 407)
    assert {outcome["2", name] for name in ("demo", "new1", "new2", "1bad")} == {(False, 401)}


@pytest.mark.parametrize(
    ("method", "parameters", "code"),
    [
        ("admin_modify_topic_info", {"topicName": "nosuch", "numPartitions": "9"}, 401),
        ("admin_modify_topic_info", {}, 403),
        ("admin_modify_topic_info", {"numPartitions": "3"}, 403),
        ("admin_modify_topic_info", {"numPartitions": "2"}, 407),
        ("admin_modify_topic_info", {"numPartitions": "many"}, 407),
        ("admin_modify_topic_info", {"numTopicStores": "0"}, 407),
        ("admin_modify_topic_info", {"deletePolicy": "keep"}, 407),
        ("admin_modify_topic_info", {"deletePolicy": "delete,169h"}, 407),
        ("admin_modify_topic_info", {"deletePolicy": "delete,3"}, 200),
        ("admin_delete_topic_info", {}, 406),
        ("admin_delete_topic_info", {"topicName": "nosuch"}, 401),
        ("admin_remove_topic_info", {}, 406),
    ],
)
def test_item_codes(server, method, parameters, code):
    parameters = {**TOKEN, "method": method, "topicName": "demo", "brokerId": "1", **parameters}
    answer = ask(server.master_web, **parameters)
    assert answer["result"]
    (item,) = answer["data"]
    assert (item["errCode"], item["success"]) == (code, code == 200)


def test_a_policy_without_unit_is_in_hours(server, master_admin):
    master_admin.modify_topic("demo", [1], deletePolicy="delete,3")
    assert server.topics()["demo"].retention_ms == 3 * 3_600_000


def test_the_shape_of_a_topic(server, master_admin):
    (item,) = master_admin.topic_info()
    assert (item["topicName"], item["infoCount"], item["totalCfgNumPart"], item["maxMsgSizeInMB"]) == (
        "demo",
        1,
        6,
        1,
    )
    assert item["isSrvAcceptPublish"] is item["isSrvAcceptSubscribe"] is True
    assert item["topicInfo"][0]["runInfo"] == {
        "acceptPublish": True,
        "acceptSubscribe": True,
        "numPartitions": 3,
        "numTopicStores": 2,
        "brokerManageStatus": "online",
    }
    master_admin.modify_topic("demo", [1], acceptPublish=False, acceptSubscribe=False)
    (item,) = master_admin.topic_info("demo")
    assert item["topicInfo"][0]["runInfo"]["numPartitions"] == "-"
    assert item["isSrvAcceptPublish"] is False


def test_groups_and_their_members(server, master_admin, closing):
    client = closing.enter_context(MasterClient(server.master))
    client.register_consumer(topicCondition=["demo#b,a"])
    client.consumer_heartbeat(reportSubInfo=True, partSubInfo=["demo#1:0,1:10002"])
    detail = master_admin.consumer_group("group")
    assert (detail["count"], detail["topicSet"], detail["consumeGroup"]) == (1, ["demo"], "group")
    assert (detail["isBandConsume"], detail["filterConds"]) == ("client-rebalance", {"demo": ["a", "b"]})
    (member,) = detail["data"]
    assert (member["consumerId"], member["parCount"], member["isOverTLS"]) == ("consumer-1", 2, False)
    assert member["parInfo"][1] == {"partId": 10002, "brokerAddr": server.broker, "topicName": "demo"}
    expected = [{"consumeGroup": "group", "topicSet": ["demo"], "consumerNum": 1}]
    for parameters in ({}, {"topicName": "demo"}, {"groupName": "group"}, {"consumeGroup": "group,x"}):
        assert ask(server.master_web, method="admin_query_sub_info", **parameters)["data"] == expected
    for parameters in ({"topicName": "nosuch"}, {"groupName": "nosuch"}):
        assert ask(server.master_web, method="admin_query_sub_info", **parameters)["data"] == []


def test_an_unknown_group_has_no_members(master_admin):
    detail = master_admin.consumer_group("nosuch")
    assert (detail["count"], detail["data"], detail["topicSet"], detail["isBandConsume"]) == (
        0,
        [],
        [],
        "unbound",
    )


# --- the broker


def test_pubinfo_knows_open_stores_only(server, broker_admin, connect):
    assert broker_admin.pubinfo() == {}
    connect(server).send(b"x", b"y", partition_id=10_001)
    info = broker_admin.pubinfo()
    assert set(info) == {("demo", 10_000), ("demo", 10_001), ("demo", 10_002)}
    assert {(item.minimum, item.maximum) for item in info.values()} == {(0, 56)}
    assert broker_admin.message_count("demo") == 2
    assert broker_admin.pubinfo(["nosuch"]) == {}
    answer = ask(server.broker_web, method="admin_query_pubinfo")
    (topic,) = answer["dataSet"]
    assert (answer["errMsg"], answer["dataCount"], topic["itemCount"]) == ("Success!", 1, 3)
    assert topic["offsetInfo"][0]["dataMax"] == 2 * 53


def test_group_offset_opens_the_store_and_makes_a_record_when_asked(server, broker_admin):
    answer = broker_admin.group_offset("demo", "g", 2)
    expected = {"tmpOffset", "minOffset", "maxOffset", "minDataOffset", "maxDataOffset"}
    assert set(answer) == {"result", "errCode", "errMsg", *expected}
    assert {answer[name] for name in expected} == {0}
    assert broker_admin.committed_offsets("g") == {}
    assert broker_admin.group_offset("demo", "g", 2, real_offset=True)["zkOffset"] == 0
    assert broker_admin.committed_offsets("g") == {("demo", 2): 0}


@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("nosuch", 0, "not found the topicName configure"),
        ("demo", 3, "not found the store by topicName"),
        ("demo", "x", "value x is not a number"),
    ],
)
def test_group_offset_of_what_there_is_not(broker_admin, topic, partition, text):
    with pytest.raises(AdminError, match=text):
        broker_admin.group_offset(topic, "g", partition)


def test_query_offset(server, broker_admin, connect):
    client = connect(server)
    client.send(b"x", b"y", b"z")
    client.register()
    client.fetch()
    client.commit()
    client.send(b"more")
    client.fetch()
    assert broker_admin.committed_offsets("group") == {("demo", 0): 84}
    answer = ask(server.broker_web, method="admin_query_offset", groupName="group,other", topicName="demo")
    assert answer["totalCnt"] == 1
    (group,) = answer["dataSet"]
    (topic,) = group["subInfo"]
    assert (group["groupName"], group["topicCount"], topic["topicName"], topic["partCount"]) == (
        "group",
        1,
        "demo",
        6,
    )
    held, _, _, other, *_ = topic["offsets"]
    assert (held["partitionId"], held["curOffset"], held["flightOffset"], held["offsetLag"]) == (
        0,
        84,
        28,
        28,
    )
    assert (held["offsetMax"], held["dataMax"]) == (112, 3 * 53 + 56)
    assert (other["partitionId"], other["curOffset"], other["offsetMax"]) == (10_000, -2, -2)
    assert ask(server.broker_web, method="admin_query_offset", topicName="other")["dataSet"] == []


def manual_set(server, offset, **parameters):
    defaults = {"groupName": "group", "topicName": "demo", "partitionId": 0, "modifyUser": "me"}
    method = "admin_manual_set_current_offset"
    return ask(server.broker_web, method=method, **{**defaults, "manualOffset": offset, **parameters})


def test_moving_one_position_drops_what_is_in_flight(server, connect):
    client = connect(server)
    client.send(b"x", b"y", b"z")
    client.register(currOffset=28)
    client.fetch()
    answer = manual_set(server, 60)
    assert (answer["errMsg"], answer["oldOffset"]) == ("Manual update current Offset success!", 28)
    assert client.commit().currOffset == 56, "rounded down, and nothing in flight"
    assert [manual_set(server, offset)["result"] for offset in (0, 84)] == [True, True]
    assert "bigger than Current MaxOffset:(85>84)" in manual_set(server, 85)["errMsg"]
    server.apply_retention("demo", older_than_ms=0)
    assert "lower than Current MinOffset:(56<84)" in manual_set(server, 56)["errMsg"]
    assert "manualOffset is missing" in manual_set(server, "")["errMsg"]


def test_setting_offsets_of_groups(server, broker_admin, connect):
    connect(server).send(*(b"x" for _ in range(5)))
    goals = {"1:demo:0": 30, "1:demo:1": 10**9, "2:demo:0": 1, "1:nosuch:0": 1, "1:demo:9": 1}
    method = {"method": "admin_set_offset", "groupName": "g1,g2", "modifyUser": "me"}
    answer = ask(server.broker_web, **method, manualSet="true", offsetJsonInfo=json.dumps(goals))
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK"}
    for group in ("g1", "g2"):
        assert broker_admin.committed_offsets(group) == {("demo", 0): 28, ("demo", 1): 140}
    assert ask(server.broker_web, **method, manualSet="false", topicName="demo,nosuch")["result"]
    ends = dict.fromkeys([("demo", number) for number in range(3)], 140)
    ends |= dict.fromkeys([("demo", 10_000 + number) for number in range(3)], 0)
    assert broker_admin.committed_offsets("g1") == ends


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "manualSet is missing"),
        ({"manualSet": "true"}, "offsetJsonInfo is missing"),
        ({"manualSet": "false"}, "topicName is missing"),
        ({"manualSet": "true", "offsetJsonInfo": "{"}, "offsetJsonInfo's value is invalid"),
        ({"manualSet": "true", "offsetJsonInfo": "5"}, "offsetJsonInfo's value is invalid"),
        ({"manualSet": "true", "offsetJsonInfo": "{}"}, "offsetJsonInfo's value is invalid!"),
        ({"manualSet": "true", "offsetJsonInfo": '{"demo:0": 1}'}, "must be brokerId:topicName:partitionId"),
        ({"manualSet": "true", "offsetJsonInfo": '{"1:demo:x": 1}'}, "partitionId value not number"),
        ({"manualSet": "true", "offsetJsonInfo": '{"2:demo:0": 1}'}, "offsetJsonInfo's value is invalid!"),
    ],
)
def test_setting_offsets_wrongly(server, parameters, text):
    method = {"method": "admin_set_offset", "groupName": "g", "modifyUser": "me"}
    answer = ask(server.broker_web, **method, **parameters)
    assert answer["errCode"] == 400
    assert text in answer["errMsg"]


def test_a_call_that_breaks_is_500(server, monkeypatch, caplog):
    monkeypatch.setattr(type(server._state.stores), "all", lambda _: 1 / 0)
    answer = ask(server.broker_web, method="admin_query_pubinfo")
    assert (answer["result"], answer["errCode"], answer["errMsg"]) == (False, 500, "division by zero")
    assert "admin_query_pubinfo failed" in caplog.text


# --- what is no call


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\1\2\3\r\n\r\n",
        b"\xff" * 1000 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"DELETE / HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=range(8),
)
def test_garbage_closes_its_connection_only(server, master_admin, garbage):
    with connect(server.master_web) as connected, contextlib.suppress(ConnectionError):
        connected.sendall(garbage)
        connected.shutdown(socket.SHUT_WR)
        assert is_closed(connected)
    assert master_admin.is_active()


def test_a_connection_that_says_nothing_does_not_hold_up_the_end(start):
    server = start()
    with connect(server.master_web) as silent:
        server.close()
        assert is_closed(silent)


def test_a_form_that_ends_early_is_dropped(server, master_admin):
    connection = http.client.HTTPConnection(*server.master_web.split(":"), timeout=5)
    connection.putrequest("POST", "/webapi.htm")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"method=")
    connection.close()
    assert master_admin.is_active()
