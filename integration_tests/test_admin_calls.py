"""The broker's web calls give the same on both servers: shapes, numbers that must be equal, refusals."""

import base64
import contextlib
import itertools
import time

import pytest

from integration_tests.real.waiting import wait_until
from integration_tests.rig.raw_client import RawClient
from tubemq_spark.errors import AdminError

HISTORY_TOPIC = "__offset_history__"
HISTORY_BYTES = 28
DATE = "%Y%m%d%H%M%S"
OPEN_TIMEOUT_S = 10.0

_numbers = itertools.count()


def shape(value):
    """Return a JSON value with the names of its types for values; of a list its first item counts."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def answered(field, count, item):
    """Return the shape of a usual answer with its list."""
    return {"result": "bool", "errCode": "int", "errMsg": "str", field: [item], count: "int"}


def numbers(*names):
    return dict.fromkeys(names, "int")


@pytest.fixture
def call(server):
    return server.broker_admin.call


@pytest.fixture
def refused(server):
    def refusal(method, **parameters):
        """Make a call that must fail; return its code and text."""
        with pytest.raises(AdminError) as raised:
            server.broker_admin.call(method, **parameters)
        return raised.value.code, raised.value.reason

    return refusal


@pytest.fixture
def group():
    return f"admin_{time.time_ns()}_{next(_numbers)}"


@pytest.fixture
def topic(server):
    return server.fresh_topic()


@pytest.fixture
def consumer(server, topic, group):
    """A consumer that fetched five messages of the topic and confirmed none; it is booked by the broker."""
    with contextlib.ExitStack() as stack:
        name = f"{group}_127.0.0.1-1-2-3-Balance-3.9"
        client = stack.enter_context(RawClient(server.broker, topic, group, name))
        for number in range(5):
            assert client.send(b"%03d" % number).success
        client.register(qryPriorityId=303)
        assert len(client.fetch().messages) == 5
        wait_until(
            lambda: group in booked(server), timeout_s=OPEN_TIMEOUT_S, what="the broker to book the group"
        )
        yield client
        client.unregister()


def booked(server):
    (item,) = server.broker_admin.call("admin_get_booked_groupname")["dataSet"]
    return item["groupName"]


def position(server, topic, group):
    answer = server.broker_admin.call(
        "admin_query_group_offset", topicName=topic, groupName=group, partitionId=0, requireRealOffset=True
    )
    return answer["zkOffset"]


# --- what calls there are


def test_the_version(call):
    answer = call("admin_query_server_version")
    assert (answer["errMsg"], shape(answer["data"])) == ("Ok", [{"version": "str"}])


def test_the_list_of_calls(call):
    answer = call("admin_get_methods")
    assert shape(answer) == answered("dataSet", "totalCnt", {"method": "str", "needAuth": "bool"})
    assert {
        "admin_backup_group_offsets",
        "admin_clone_offset",
        "admin_get_booked_groupname",
        "admin_get_group_detail_info",
        "admin_get_group_history_offset",
        "admin_get_methods",
        "admin_get_msgstore_stats",
        "admin_get_partition_reginfo",
        "admin_manual_set_current_offset",
        "admin_query_broker_all_consumer_info",
        "admin_query_broker_all_store_info",
        "admin_query_broker_memstore_info",
        "admin_query_consumer_regmap",
        "admin_query_group",
        "admin_query_group_offset",
        "admin_query_offset",
        "admin_query_pubinfo",
        "admin_query_server_version",
        "admin_rmv_offset",
        "admin_set_offset",
        "admin_set_offset_by_time",
        "admin_snapshot_message",
    } <= {item["method"] for item in answer["dataSet"]}


# --- stores


@pytest.mark.usefixtures("consumer")
def test_stores(call, topic):
    place = numbers("partitionId", "offsetMin", "offsetMax", "dataMin", "dataMax")
    answer = call("admin_query_pubinfo", topic=f"{topic},nosuch")
    item = {"topicName": "str", "offsetInfo": [place], "itemCount": "int"}
    assert shape(answer) == answered("dataSet", "dataCount", item)
    assert answer["dataSet"][0]["offsetInfo"] == [
        {"partitionId": 0, "offsetMin": 0, "offsetMax": 140, "dataMin": 0, "dataMax": 275}
    ]
    answer = call("admin_query_broker_all_store_info", topicName=topic)
    part = {"partitionId": 0, "minOffset": 0, "maxOffset": 140, "sizeInBytes": 140}
    store = {"storeId": 0, "numPartition": 1, "minDataOffset": 0, "maxDataOffset": 275, "sizeInBytes": 275}
    assert answer == {
        "result": True,
        "errCode": 0,
        "errMsg": "Success!",
        "dataSet": [{"index": 1, "topicName": topic, "storeInfo": [{**store, "partitionInfo": [part]}]}],
        "totalCnt": 1,
    }


@pytest.mark.usefixtures("consumer")
def test_statistics(call, topic):
    counts = numbers("count", "min", "max")
    times = {**counts, "cells": {}, **numbers("P99", "P999", "P9999")}
    answer = call("admin_get_msgstore_stats", topicName=topic)
    details = answer["data"][0]["details"][0]
    assert (answer["errMsg"], answer["count"], details["storeId"]) == ("OK", 1, 0)
    assert shape(details["msgStore"]) == [
        {
            "reset_time": "str",
            "isClosed": "bool",
            "msg_append_size": counts,
            "msg_append_dlt": times,
            "msg_append_fail": "int",
            **numbers("cache_data_full", "cache_count_full", "cache_time_full", "cache_flush_pending"),
            **numbers("cache_realloc", "file_total_msg_cnt", "file_total_data_size", "file_total_index_size"),
            "file_flush_dlt": times,
            "file_flush_data_size": counts,
            "file_flush_msg_cnt": counts,
            **numbers("file_data_seg", "file_index_seg", "file_meta_flush", "file_data_full"),
            **numbers("file_count_full", "file_time_full"),
            "end_time": "str",
        }
    ]


def test_the_old_statistics_are_gone(refused):
    text = "The method is deprecated, please use admin_get_msgstore_stats"
    assert refused("admin_query_broker_memstore_info") == (400, text)


@pytest.mark.usefixtures("consumer")
def test_the_newest_messages(call, topic):
    answer = call("admin_snapshot_message", topicName=topic, partitionId=0, msgCount=4)
    assert (answer["errMsg"], shape(answer["dataSet"])) == (
        "Success!",
        [{"index": "int", "data": "str", "attr": "str"}],
    )
    assert [base64.b64decode(item["data"]) for item in answer["dataSet"]] == [b"001", b"002", b"003", b"004"]
    assert {item["attr"] for item in answer["dataSet"]} == {"null"}


# --- consumers


def test_who_holds_what(call, consumer, topic, group):
    for method in ("admin_get_partition_reginfo", "admin_query_consumer_regmap"):
        answer = call(method, groupName=group)
        assert answer["dataSet"] == [
            {"Partition": f"{group}:{topic}:0", "Consumer": consumer.client, "index": 1}
        ]
        assert answer["totalCnt"] == 1


@pytest.mark.usefixtures("consumer")
def test_all_about_a_consumer(call, group):
    for method in ("admin_query_broker_all_consumer_info", "admin_get_group_detail_info"):
        answer = call(method, groupName=group)
        texts = dict.fromkeys(("groupName", "topicName", "consumerId", "receivedFrom"), "str")
        flags = dict.fromkeys(("isRegOk", "isFilterConsume", "isSupportLimit", "isMessageStoreOk"), "bool")
        assert shape(answer) == answered(
            "dataSet",
            "totalCnt",
            {
                **texts,
                **flags,
                **numbers("index", "partitionId", "lastRegTime", "qryPriorityId", "curDataLimitInM"),
                **numbers("curFreqLimit", "totalSentSec", "sentUnitSec", "totalSentMin", "sentUnit"),
                **numbers("tmpOffset", "minOffset", "maxOffset", "zkOffset", "minDataOffset"),
                **numbers("maxDataOffset"),
            },
        )
        (item,) = answer["dataSet"]
        known = {
            "receivedFrom": "127.0.0.1",
            "isRegOk": True,
            "isFilterConsume": False,
            "isSupportLimit": True,
            "qryPriorityId": 303,
            "curDataLimitInM": 8796093022207,
            "curFreqLimit": 0,
            "totalSentSec": 275,
            "totalSentMin": 275,
            "sentUnitSec": 0,
            "sentUnit": 327680,
            "tmpOffset": 140,
            "zkOffset": 0,
            "maxOffset": 140,
            "maxDataOffset": 275,
        }
        assert {name: item[name] for name in known} == known


# --- where groups stand


@pytest.mark.usefixtures("consumer")
def test_where_one_group_stands(call, topic, group):
    parameters = {"topicName": topic, "groupName": group, "partitionId": 0}
    plain = {
        "result": True,
        "errCode": 0,
        "errMsg": "OK!",
        "tmpOffset": 140,
        "minOffset": 0,
        "maxOffset": 140,
        "minDataOffset": 0,
        "maxDataOffset": 275,
    }
    assert call("admin_query_group_offset", **parameters) == plain
    real = {"zkOffset": 0, "curReadDataOffset": 275, "curRdDltDataOffset": 0}
    assert call("admin_query_group_offset", **parameters, dko="true") == {**plain, **real}
    stranger = call("admin_query_group_offset", **{**parameters, "groupName": f"{group}_x", "dko": 1})
    assert stranger == {
        **plain,
        "tmpOffset": 0,
        "zkOffset": 0,
        "curReadDataOffset": -1,
        "curRdDltDataOffset": -1,
    }


@pytest.mark.usefixtures("consumer")
def test_where_groups_stand_everywhere(call, topic, group):
    answer = call("admin_query_offset", groupName=f"{group},nobody")
    offset = {
        "partitionId": 0,
        "curOffset": 0,
        "flightOffset": 140,
        "curDataOffset": 275,
        "offsetLag": 140,
        "dataLag": 0,
        "offsetMax": 140,
        "dataMax": 275,
    }
    info = [{"topicName": topic, "offsets": [offset], "partCount": 1}]
    assert answer == {
        "result": True,
        "errCode": 0,
        "errMsg": "Success!",
        "dataSet": [{"groupName": group, "subInfo": info, "topicCount": 1}],
        "totalCnt": 1,
    }
    nowhere = call("admin_query_offset", groupName=group, topicName="nosuch")["dataSet"]
    assert nowhere == [{"groupName": group, "subInfo": [], "topicCount": 0}]


@pytest.mark.usefixtures("consumer")
def test_groups_by_name(call, group):
    item = {"type": "str", "groupName": ["str"], "groupCount": "int"}
    for method in ("admin_get_booked_groupname", "admin_query_group"):
        answer = call(method)
        assert shape(answer) == answered("dataSet", "dataCount", item)
        assert answer["dataSet"][0]["type"] == "all"
    online, offline = call("admin_get_booked_groupname", divide=True)["dataSet"]
    assert (online["type"], offline["type"]) == ("online", "offline")
    assert group in online["groupName"]
    assert group not in offline["groupName"]


# --- moving them


def test_moving_one_position(call, server, consumer, topic, group):
    parameters = {"topicName": topic, "groupName": group, "partitionId": 0, "modifyUser": "me"}
    answer = call("admin_manual_set_current_offset", **parameters, manualOffset=60)
    assert (answer["errMsg"], answer["oldOffset"]) == ("Manual update current Offset success!", 0)
    assert position(server, topic, group) == 56, "rounded down to a message"
    assert consumer.commit().currOffset == 56, "nothing is in flight any more"


@pytest.mark.usefixtures("consumer")
def test_moving_groups(call, server, topic, group):
    method = {"groupName": group, "modifyUser": "me"}
    done = {"result": True, "errCode": 0, "errMsg": "OK"}
    goals = f'{{"1:{topic}:0":84,"2:{topic}:0":1,"1:nosuch:0":1}}'
    assert call("admin_set_offset", **method, manualSet="true", offsetJsonInfo=goals) == done
    assert position(server, topic, group) == 84
    assert call("admin_set_offset", **method, manualSet="false", topicName=f"{topic},nosuch") == done
    assert position(server, topic, group) == 140


@pytest.mark.usefixtures("consumer")
def test_cloning_and_removing(call, server, topic, group):
    call("admin_set_offset", groupName=group, mur="me", manSet=1, offsetInfo=f'{{"1:{topic}:0":84}}')
    target = f"{group}_target"
    answer = call("admin_clone_offset", srcGroup=group, tgtGroup=target, topicName=topic, modifyUser="me")
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK"}
    assert position(server, topic, target) == 84
    wait_until(lambda: target in booked(server), timeout_s=OPEN_TIMEOUT_S, what="the group to be booked")
    answer = call("admin_rmv_offset", groupName=f"{target},nobody", modifyUser="me")
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": []}
    assert position(server, topic, target) == 0, "asking for it makes a new one"


@pytest.mark.usefixtures("consumer")
def test_backing_up(call, server, topic, group, tmp_path):
    place = tmp_path if server.data is None else server.data / "backup"
    answer = call("admin_backup_group_offsets", backupPath=f"{place}/")
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": []}
    text = (place / "offsets.meta").read_text()
    assert f'"{group}"' in text
    assert f'"{topic}-0"' in text


# --- the history


def test_the_history(call, server, topic, group):
    """A broker that ends writes a last snapshot."""
    before = time.strftime(DATE, time.localtime(time.time() - 5))
    with RawClient(server.broker, topic, group) as client:
        assert client.send().success
        client.register()
    server.restart_broker()
    # The snapshot of a broker that has served hundreds of tests is longer than the two reads of the default.
    answer = call(
        "admin_get_group_history_offset", groupName=f"{group},nobody", recordTime=before, maxRetryCnt=30
    )
    known, unknown = answer["data"]
    assert (answer["errMsg"], answer["count"]) == ("OK", 2)
    assert unknown == {"groupName": "nobody", "result": False, "errMsg": "Could not find record!"}
    assert (known["groupName"], known["result"], known["errMsg"]) == (group, True, "ok")
    record = known["records"][-1]
    part = numbers("partId", "iCfm", "iFlt")
    if record["on"]:
        part["recId"] = "int"
    store = {**numbers("storeId", "iMin", "iMax", "dMin", "dMax"), "parts": [part]}
    clients = [{"recId": "int", "cltId": "str", "lstTm": "int"}] if record["on"] else []
    assert shape(record) == {
        **numbers("dt", "bId", "ver", "on", "flt"),
        "group": "str",
        "clients": clients,
        "records": [{"topic": "str", "offsets": [store]}],
    }
    assert (record["bId"], record["ver"], record["group"], record["flt"]) == (1, 3, group, 0)
    (place,) = record["records"][0]["offsets"]
    assert (record["records"][0]["topic"], place["iMax"], place["dMax"]) == (topic, 28, 53)
    assert (place["parts"][0]["partId"], place["parts"][0]["iCfm"]) == (0, 0)


def test_the_historys_topic(call, refused, server):
    with RawClient(server.broker, HISTORY_TOPIC) as client:
        answer = client.send()
    text = f"topicName {HISTORY_TOPIC} does not allow producers to send data!"
    assert (answer.errCode, answer.errMsg) == (403, text)
    answer = call("admin_query_group_offset", topicName=HISTORY_TOPIC, groupName="nobody", partitionId=9)
    assert answer["maxOffset"] % HISTORY_BYTES == 0
    text = "Invalid parameter: not found the store by topicName!"
    assert refused(
        "admin_query_group_offset", topicName=HISTORY_TOPIC, groupName="nobody", partitionId=10
    ) == (400, text)


# --- refusals


def missing(name):
    return f"Parameter {name} is missing or value is blank!"


ONE = {"topicName": "TOPIC", "groupName": "gg", "partitionId": 0}
MOVE = {**ONE, "modifyUser": "me", "manualOffset": 0}
SET = {"groupName": "gg", "manualSet": "true", "modifyUser": "me"}
BACK = {"groupName": "gg", "modifyUser": "me", "recordTime": "20260101000000"}
NUMBER_RULE = "must only contain numbers"
TOPIC_RULE = "must begin with a letter, can only contain English letters, numbers, and underscores"
GROUP_RULE = "must begin with a letter, can only contain English letters, numbers, hyphens, and underscores"


@pytest.mark.parametrize(
    ("method", "usual", "changed", "code", "text"),
    [
        ("nosuch", {}, {}, 400, "Unsupported method nosuch"),
        ("admin_query_group_offset", ONE, {"topicName": ""}, 400, missing("topicName")),
        ("admin_query_group_offset", ONE, {"groupName": " "}, 400, missing("groupName")),
        ("admin_query_group_offset", ONE, {"partitionId": ""}, 400, missing("partitionId")),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "1st"},
            400,
            f"illegal value for topicName, value {TOPIC_RULE}",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "t" * 65},
            400,
            "over max length for topicName, only allow 64 length",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"groupName": "g.1"},
            400,
            f"illegal value for groupName, value {GROUP_RULE}",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"partitionId": "x"},
            400,
            f"illegal value for partitionId, value {NUMBER_RULE}",
        ),
        ("admin_query_group_offset", ONE, {"partitionId": -1}, 400, "Parameter partitionId value must >= 0"),
        (
            "admin_query_group_offset",
            ONE,
            {"partitionId": 1},
            400,
            "Invalid parameter: not found the store by topicName!",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "nosuch"},
            400,
            "Invalid parameter: not found the topicName configure!",
        ),
        ("admin_manual_set_current_offset", MOVE, {"modifyUser": ""}, 400, missing("modifyUser")),
        ("admin_manual_set_current_offset", MOVE, {"manualOffset": ""}, 400, missing("manualOffset")),
        (
            "admin_manual_set_current_offset",
            MOVE,
            {"manualOffset": "x"},
            400,
            f"illegal value for manualOffset, value {NUMBER_RULE}",
        ),
        (
            "admin_manual_set_current_offset",
            MOVE,
            {"manualOffset": -1},
            400,
            "Invalid parameter: manualOffset lower than Current MinOffset:(-1<0)",
        ),
        (
            "admin_manual_set_current_offset",
            MOVE,
            {"manualOffset": 28},
            400,
            "Invalid parameter: manualOffset bigger than Current MaxOffset:(28>0)",
        ),
        ("admin_set_offset", SET, {"groupName": ""}, 400, missing("groupName")),
        ("admin_set_offset", SET, {"manualSet": ""}, 400, missing("manualSet")),
        ("admin_set_offset", SET, {"modifyUser": ""}, 400, missing("modifyUser")),
        ("admin_set_offset", SET, {}, 400, missing("offsetJsonInfo")),
        ("admin_set_offset", SET, {"manualSet": "false"}, 400, missing("topicName")),
        (
            "admin_set_offset",
            SET,
            {"offsetJsonInfo": "{}"},
            400,
            "Parameter offsetJsonInfo's value is invalid!",
        ),
        (
            "admin_set_offset",
            SET,
            {"offsetJsonInfo": '{"2:demo:0":1}'},
            400,
            "Parameter offsetJsonInfo's value is invalid!",
        ),
        (
            "admin_set_offset",
            SET,
            {"offsetJsonInfo": '{"1:demo":1}'},
            400,
            "Parameter offsetJsonInfo's key invalid:1:demo must be brokerId:topicName:partitionId !",
        ),
        (
            "admin_set_offset",
            SET,
            {"offsetJsonInfo": '{"1:TOPIC:x":1}'},
            400,
            "Parameter offsetJsonInfo's key invalid:1:TOPIC:x's partitionId value not number!",
        ),
        (
            "admin_clone_offset",
            {},
            {"sourceGroupName": "nobody"},
            400,
            "Parameter sourceGroupName: subscribed topic set of nobody query result is null!",
        ),
        ("admin_clone_offset", {}, {}, 400, missing("sourceGroupName")),
        ("admin_rmv_offset", {}, {}, 400, missing("groupName")),
        ("admin_rmv_offset", {}, {"groupName": "gg"}, 400, missing("modifyUser")),
        (
            "admin_backup_group_offsets",
            {},
            {"backupPath": "/"},
            400,
            "Illegal parameter value, backupPath only include separator!",
        ),
        ("admin_set_offset_by_time", BACK, {"groupName": ""}, 400, missing("groupName")),
        ("admin_set_offset_by_time", BACK, {"modifyUser": ""}, 400, missing("modifyUser")),
        ("admin_set_offset_by_time", BACK, {"recordTime": ""}, 400, missing("recordTime")),
        (
            "admin_set_offset_by_time",
            BACK,
            {"recordTime": "2026"},
            400,
            "Parameter recordTime's value 2026 parse error, required value format is yyyyMMddHHmmss",
        ),
        (
            "admin_set_offset_by_time",
            BACK,
            {"endTime": "20250101000000"},
            400,
            "Parameter endTime value must >= recordTime",
        ),
        (
            "admin_set_offset_by_time",
            BACK,
            {"maxRetryCnt": 101},
            400,
            "Parameter maxRetryCnt value must <= 100",
        ),
        ("admin_get_group_history_offset", {}, {}, 400, missing("groupName")),
        ("admin_get_group_history_offset", {}, {"groupName": "gg"}, 400, missing("recordTime")),
        ("admin_get_group_history_offset", BACK, {"msgCount": 0}, 400, "Parameter msgCount value must >= 1"),
        (
            "admin_get_group_history_offset",
            BACK,
            {"maxRetryCnt": 31},
            400,
            "Parameter maxRetryCnt value must <= 30",
        ),
        ("admin_snapshot_message", {}, {}, 400, missing("topicName")),
        ("admin_snapshot_message", ONE, {"msgCount": 2}, 400, "Parameter msgCount value must >= 3"),
        (
            "admin_snapshot_message",
            ONE,
            {"msgCount": 51},
            400,
            "Over max allowed msgCount value, allowed count is 50!",
        ),
        (
            "admin_snapshot_message",
            {},
            {"topicName": "nosuch"},
            400,
            "Invalid parameter: not found the store by topicName(nosuch)!",
        ),
        ("admin_snapshot_message", ONE, {}, 401, "Could not find message at position by topic (TOPIC)!"),
        (
            "admin_snapshot_message",
            ONE,
            {"partitionId": 9},
            501,
            "Get Message failure, exception is Wrong partition value 9,valid partitions in (0,0)",
        ),
    ],
)
def test_refusals(refused, empty_topic, method, usual, changed, code, text):
    parameters = {
        name: str(value).replace("TOPIC", empty_topic) for name, value in {**usual, **changed}.items()
    }
    assert refused(method, **parameters) == (code, text.replace("TOPIC", empty_topic))


@pytest.fixture(scope="module")
def empty_topic(server):
    """A topic without messages, one for all refusals."""
    return server.fresh_topic()
