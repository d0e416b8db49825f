"""The broker's web calls: same names, JSON and error texts as TubeMQ's."""

import base64
import json

import pytest

from tests.embedded.web import ask
from tubemq_spark.client.metadata.admin import BrokerAdmin
from tubemq_spark.errors import AdminError
from tubemq_spark.protocol.payload import encode_payload


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def broker_admin(server):
    return BrokerAdmin(server.broker_web)


@pytest.fixture
def call(server):
    def make(method, **parameters):
        return ask(server.broker_web, method=method, **parameters)

    return make


# --- stores


def test_pubinfo_knows_open_stores_only(server, broker_admin, connect):
    assert broker_admin.pubinfo() == {}
    connect(server).send(b"x", b"y", partition_id=10_001)
    info = broker_admin.pubinfo()
    assert set(info) == {("demo", 10_000), ("demo", 10_001), ("demo", 10_002)}
    assert set(info.values()) == {(0, 56)}
    assert broker_admin.message_count("demo") == 2
    assert broker_admin.pubinfo(["nosuch"]) == {}
    answer = ask(server.broker_web, method="admin_query_pubinfo")
    (topic,) = answer["dataSet"]
    assert (answer["errMsg"], answer["dataCount"], topic["itemCount"]) == ("Success!", 1, 3)
    assert topic["offsetInfo"][0]["dataMax"] == 2 * 53


def test_group_offset_opens_the_store_and_makes_a_record_when_asked(server, broker_admin):
    answer = broker_admin.group_offset("demo", "gg", 2)
    expected = {"tmpOffset", "minOffset", "maxOffset", "minDataOffset", "maxDataOffset"}
    assert set(answer) == {"result", "errCode", "errMsg", *expected}
    assert {answer[name] for name in expected} == {0}
    assert broker_admin.committed_offsets("gg") == {}
    assert broker_admin.group_offset("demo", "gg", 2, real_offset=True)["zkOffset"] == 0
    assert broker_admin.committed_offsets("gg") == {("demo", 2): 0}


@pytest.mark.parametrize(
    ("topic", "partition", "text"),
    [
        ("nosuch", 0, "not found the topicName configure"),
        ("demo", 3, "not found the store by topicName"),
        ("demo", "x", "illegal value for partitionId, value must only contain numbers"),
    ],
)
def test_group_offset_of_what_there_is_not(broker_admin, topic, partition, text):
    with pytest.raises(AdminError, match=text):
        broker_admin.group_offset(topic, "gg", partition)


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
    (elsewhere,) = ask(server.broker_web, method="admin_query_offset", topicName="other")["dataSet"]
    assert (elsewhere["subInfo"], elsewhere["topicCount"]) == ([], 0)


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
        ({"manualSet": "true", "offsetJsonInfo": "{"}, "offsetJsonInfo value parse failure"),
        ({"manualSet": "true", "offsetJsonInfo": "5"}, "offsetJsonInfo value parse failure"),
        ({"manualSet": "true", "offsetJsonInfo": "{}"}, "offsetJsonInfo's value is invalid!"),
        ({"manualSet": "true", "offsetJsonInfo": '{"demo:0": 1}'}, "must be brokerId:topicName:partitionId"),
        ({"manualSet": "true", "offsetJsonInfo": '{"1:demo:x": 1}'}, "partitionId value not number"),
        ({"manualSet": "true", "offsetJsonInfo": '{"2:demo:0": 1}'}, "offsetJsonInfo's value is invalid!"),
    ],
)
def test_setting_offsets_wrongly(server, parameters, text):
    method = {"method": "admin_set_offset", "groupName": "gg", "modifyUser": "me"}
    answer = ask(server.broker_web, **method, **parameters)
    assert answer["errCode"] == 400
    assert text in answer["errMsg"]


def test_unused_and_wrong_offset_parameters(call):
    wrong = '{"1:demo:0":"y"}'
    method = {"groupName": "gg", "modifyUser": "me", "manualSet": "true"}
    for text in ("x", wrong, "[5]"):
        answer = call("admin_set_offset", offsetJsonInfo=text, **method)
        assert answer["errMsg"].startswith("Parameter offsetJsonInfo value parse failure, error is ")
    assert call("admin_set_offset", offsetInfo='{"1:demo:0":null,"1:demo:1":0}', **method)["result"]


# --- groups


def names(answer):
    return {item["type"]: item["groupName"] for item in answer["dataSet"]}


def test_the_names_of_groups(start, tmp_path, connect):
    server = start(tmp_path)
    for group in ("g2", "g1"):
        connect(server, group=group).register()
    server.close()
    again = start(tmp_path)
    connect(again, group="g1").register()
    for method in ("admin_get_booked_groupname", "admin_query_group"):
        answer = ask(again.broker_web, method=method)
        assert (answer["dataCount"], names(answer)) == (1, {"all": ["g1", "g2"]})
    answer = ask(again.broker_web, method="admin_get_booked_groupname", div="1")
    assert (answer["dataCount"], names(answer)) == (2, {"online": ["g1"], "offline": ["g2"]})
    assert [item["groupCount"] for item in answer["dataSet"]] == [1, 1]


@pytest.fixture
def source(server, connect):
    """A group with offset 56 in demo's partition 0, and offset 0 in 10002."""
    client = connect(server, group="source")
    client.send(*(b"x" for _ in range(3)))
    client.register(currOffset=56)
    client.register(10_002)


@pytest.mark.usefixtures("source")
def test_cloning(call, broker_admin):
    parameters = {"srcGroup": "source", "tgtGroup": "t1,t2", "mur": "me"}
    assert call("admin_clone_offset", **parameters) == {"result": True, "errCode": 0, "errMsg": "OK"}
    for group in ("t1", "t2"):
        assert broker_admin.committed_offsets(group) == {("demo", 0): 56, ("demo", 10_002): 0}
    assert call("admin_clone_offset", **parameters, topicName="demo,other")["result"]


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"sourceGroupName": ""}, "Parameter sourceGroupName is missing or value is blank!"),
        (
            {"sourceGroupName": "nobody"},
            "Parameter sourceGroupName: subscribed topic set of nobody query result is null!",
        ),
        (
            {"topicName": "other"},
            "Parameter sourceGroupName: source unsubscribed to the specified topic set!",
        ),
        ({"targetGroupName": ""}, "Parameter targetGroupName is missing or value is blank!"),
        ({"modifyUser": ""}, "Parameter modifyUser is missing or value is blank!"),
    ],
)
def test_cloning_wrongly(call, parameters, text):
    usual = {"sourceGroupName": "source", "targetGroupName": "t1", "modifyUser": "me"}
    answer = call("admin_clone_offset", **{**usual, **parameters})
    assert (answer["result"], answer["errCode"], answer["errMsg"]) == (False, 400, text)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("parameters", "left"),
    [
        ({}, set()),
        ({"topicName": "demo"}, set()),
        ({"topicName": "other"}, {0, 10_002}),
        ({"groupName": "nobody"}, {0, 10_002}),
        ({"onlyMemory": "true"}, set()),
    ],
)
def test_removing_offsets(call, broker_admin, parameters, left):
    answer = call("admin_rmv_offset", **{"groupName": "source,x1", "modifyUser": "me", **parameters})
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": []}
    assert {number for _, number in broker_admin.committed_offsets("source")} == left


@pytest.mark.parametrize("missing", ["groupName", "modifyUser"])
def test_removing_needs_its_parameters(call, missing):
    parameters = {"groupName": "source", "modifyUser": "me", missing: ""}
    answer = call("admin_rmv_offset", **parameters)
    assert answer["errMsg"] == f"Parameter {missing} is missing or value is blank!"


@pytest.mark.usefixtures("source")
def test_backing_up(call, server):
    for place in (f"{server.data}/there/", "by/name", ""):
        assert call("admin_backup_group_offsets", backupPath=place)["result"]
    for directory in (server.data / "there", server.data / "by" / "name", server.data / "conf"):
        content = json.loads((directory / "offsets.meta").read_text())
        assert content["groupOffsetStgInfo"]["source"]["partOffsetInfo"]["demo-0"]["lstOffset"] == 56
    answer = call("admin_backup_group_offsets", backupPath="/")
    assert answer["errMsg"] == "Illegal parameter value, backupPath only include separator!"
    (server.data / "file").touch()
    answer = call("admin_backup_group_offsets", backupPath="file")
    assert answer["errMsg"].startswith("backup group offsets failed: ")


@pytest.mark.usefixtures("source")
def test_backups_outside_the_data_directory_are_refused(call, server, tmp_path):
    """Anyone may ask for one, so it must not write anywhere."""
    (server.data / "link").symlink_to(tmp_path)
    outside = (f"{tmp_path}", f"{server.data}/..", "../elsewhere", "/", "link", f"{server.data}/link/below")
    for place in outside:
        answer = call("admin_backup_group_offsets", backupPath=f"{place}/")
        assert not answer["result"]
        assert f"backupPath must be below the data directory {server.data}" in answer["errMsg"]
    assert list(tmp_path.iterdir()) == []
    assert not (server.data.parent / "elsewhere").exists()


@pytest.mark.usefixtures("source")
def test_a_backup_path_that_no_path_can_be_is_refused(call, caplog):
    answer = call("admin_backup_group_offsets", backupPath="by\0name")
    assert answer["errCode"] == 400
    assert answer["errMsg"].startswith("backup group offsets failed: ")
    assert not caplog.records


# --- consumers


def test_who_holds_what(call, server, connect):
    name = "group_127.0.0.9-1-2-Balance-3"
    one, two = connect(server, client=name), connect(server, group="other", client="me")
    one.register(1)
    two.register(2)
    for method in ("admin_get_partition_reginfo", "admin_query_consumer_regmap"):
        answer = call(method)
        assert answer["totalCnt"] == 2
        assert answer["dataSet"] == [
            {"Partition": "group:demo:1", "Consumer": name, "index": 1},
            {"Partition": "other:demo:2", "Consumer": "me", "index": 2},
        ]
        assert [item["Consumer"] for item in call(method, groupName="other,x1")["dataSet"]] == ["me"]


def test_all_about_consumers(call, server, connect):
    name = "group_127.0.0.9-1-2-Balance-3"
    client = connect(server, client=name)
    client.send(b"x" * 48, b"y" * 48)
    client.register(0, qryPriorityId=302)
    client.fetch()
    client.register(9)
    for method in ("admin_query_broker_all_consumer_info", "admin_get_group_detail_info"):
        answer = call(method, groupName="group")
        assert (answer["totalCnt"], answer["errMsg"]) == (2, "Success!")
        good, bad = answer["dataSet"]
        assert good.pop("lastRegTime") > 0
        assert good == {
            "index": 1,
            "groupName": "group",
            "topicName": "demo",
            "partitionId": 0,
            "consumerId": name,
            "isRegOk": True,
            "isFilterConsume": False,
            "receivedFrom": "127.0.0.9",
            "qryPriorityId": 302,
            "curDataLimitInM": 8796093022207,
            "curFreqLimit": 0,
            "totalSentSec": 200,
            "isSupportLimit": True,
            "sentUnitSec": 0,
            "totalSentMin": 200,
            "sentUnit": 327680,
            "isMessageStoreOk": True,
            "tmpOffset": 56,
            "minOffset": 0,
            "maxOffset": 56,
            "zkOffset": 0,
            "minDataOffset": 0,
            "maxDataOffset": 200,
        }
        assert (bad["partitionId"], bad["isMessageStoreOk"], "zkOffset" in bad) == (9, False, False)
    assert call("admin_get_group_detail_info", groupName="other")["dataSet"] == []
    answer = call("admin_query_group_offset", topicName="demo", groupName="group", partitionId=0, dko=1)
    assert (answer["curReadDataOffset"], answer["curRdDltDataOffset"]) == (200, 0)


# --- what stores hold


def test_the_sizes_of_stores(call, server, connect):
    connect(server).send(b"x" * 48, partition_id=10_001)
    answer = call("admin_query_broker_all_store_info", topicName="demo,nosuch")
    assert (answer["totalCnt"], answer["errMsg"]) == (1, "Success!")
    (topic,) = answer["dataSet"]
    (store,) = topic["storeInfo"]
    partitions = store.pop("partitionInfo")
    assert (topic["index"], topic["topicName"]) == (1, "demo")
    assert store == {
        "storeId": 1,
        "numPartition": 3,
        "minDataOffset": 0,
        "maxDataOffset": 100,
        "sizeInBytes": 100,
    }
    assert partitions == [
        {"partitionId": number, "minOffset": 0, "maxOffset": 28, "sizeInBytes": 28} for number in range(3)
    ]
    assert call("admin_query_broker_all_store_info")["totalCnt"] == 1


def test_statistics_are_closed(call, server, connect):
    connect(server).send(b"x")
    answer = call("admin_get_msgstore_stats", topicName="demo,nosuch", nrf="true")
    assert (answer["count"], [item["topicName"] for item in answer["data"]]) == (2, ["demo", "nosuch"])
    (store,) = answer["data"][0]["details"]
    assert (store["storeId"], [part["isClosed"] for part in store["msgStore"]]) == (0, [True, True])
    assert answer["data"][1]["details"] == []
    assert call("admin_get_msgstore_stats")["count"] == 1


def test_the_old_call_is_refused_as_by_tubemq(call):
    answer = call("admin_query_broker_memstore_info")
    text = "The method is deprecated, please use admin_get_msgstore_stats"
    assert answer == {"result": False, "errCode": 400, "errMsg": text}


def shown(answer):
    return [(base64.b64decode(item["data"]), item["attr"]) for item in answer["dataSet"]]


def test_the_newest_messages(call, server, connect):
    client = connect(server)
    client.send(*(b"%d" % number for number in range(10)))
    payload = encode_payload(b"body", {"k": "v"}, "kind", None)
    client.send(payload.data, flag=payload.flag, msgType="kind")
    answer = call("admin_snapshot_message", topicName="demo", partitionId=0, cnt=4)
    assert (answer["errMsg"], [item["index"] for item in answer["dataSet"]]) == ("Success!", [0, 1, 2, 3])
    attributes = "$msgType$=kind,k=v"
    assert shown(answer) == [(b"7", "null"), (b"8", "null"), (b"9", "null"), (b"body", attributes)]
    assert len(shown(call("admin_snapshot_message", topicName="demo"))) == 3, "of the first open store"
    answer = call("admin_snapshot_message", topicName="demo", flts="kind,other")
    assert shown(answer) == [(b"body", attributes)]


@pytest.mark.parametrize(
    ("parameters", "code", "text"),
    [
        ({"topicName": ""}, 400, "Parameter topicName is missing or value is blank!"),
        ({"msgCount": 2}, 400, "Parameter msgCount value must >= 3"),
        ({"msgCount": 51}, 400, "Over max allowed msgCount value, allowed count is 50!"),
        ({"topicName": "nosuch"}, 400, "Invalid parameter: not found the store by topicName(nosuch)!"),
        ({}, 400, "Invalid parameter: not found the store by topicName(demo)!"),
        ({"partitionId": 1}, 401, "Could not find message at position by topic (demo)!"),
        (
            {"partitionId": 3},
            501,
            "Get Message failure, exception is Wrong partition value 3,valid partitions in (0,2)",
        ),
    ],
)
def test_what_a_snapshot_refuses(call, parameters, code, text):
    answer = call("admin_snapshot_message", **{"topicName": "demo", **parameters})
    assert answer == {"result": False, "errCode": code, "errMsg": text}


def test_a_snapshot_while_reads_are_stopped(call, server):
    server._state.reads.stop()
    answer = call("admin_snapshot_message", topicName="demo")
    assert (answer["errCode"], answer["errMsg"]) == (503, "Read StoreService temporary unavailable!")


def test_the_call_for_the_history_topic_is_allowed(call):
    assert call("admin_query_pubinfo", topicName="__offset_history__")["dataSet"] == []
