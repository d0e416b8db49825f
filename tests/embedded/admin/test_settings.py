"""The web calls about topic controls, size limits, and the cluster's setting."""

import json

import pytest

from tests.embedded.web import ask

ADD = {"confModAuthToken": "abc", "createUser": "me"}
CHANGE = {"confModAuthToken": "abc", "modifyUser": "you"}


@pytest.fixture
def server(start):
    return start(topics={"demo": (1, 1), "other": (1, 1)})


def codes(answer):
    assert answer["result"], answer
    return [item["errCode"] for item in answer["data"]]


# --- topics


@pytest.mark.parametrize("name", ["isEnable", "enableAuthControl"])
def test_a_topic_is_closed_to_groups_without_rights_and_opened_again(server, web, members, name):
    assert codes(web("admin_set_topic_authorize_control", **ADD, topicName="demo", **{name: "true"})) == [200]
    assert members.join_group("one", "grp").errCode == 450
    (shown,) = web("admin_query_topic_authorize_control", topicName="demo")["data"]
    assert (shown["isEnable"], shown["groupCount"], shown["createUser"]) == (True, 0, "me")
    again = web("admin_set_topic_authorize_control", **ADD, topicName="demo", **{name: "true"})
    assert codes(again) == [403]
    assert codes(web("admin_delete_topic_authorize_control", **CHANGE, topicName="demo,other")) == [200, 200]
    assert members.join_group("one", "grp").errCode == 200


def test_who_may_have_a_topic_is_shown(web):
    web(
        "admin_add_group_csmctrl_info",
        **ADD,
        groupName="grp",
        topicName="demo",
        filterEnable="1",
        filterConds="a",
    )
    (shown,) = web("admin_query_topic_authorize_control", topicName="demo")["data"]
    assert [item["groupName"] for item in shown["authConsumeGroup"]] == ["grp"]
    (condition,) = shown["authFilterCondSet"]
    assert (condition["condStatus"], condition["filterConds"]) == (2, ",a,")
    assert (shown["groupCount"], shown["filterCount"]) == (1, 1)


def test_a_topic_control_is_changed_and_shown(server, web, members):
    answer = web(
        "admin_update_topic_control_info",
        **CHANGE,
        topicName="demo",
        maxMsgSizeInMB=3,
        enableAuthControl="true",
    )
    assert codes(answer) == [200]
    (shown,) = web("admin_query_topic_control_info", topicName="demo")["data"]
    assert (shown["enableAuthControl"], shown["maxMsgSizeInMB"]) == (True, 3)
    assert shown["modifyUser"] == "you"
    members.register_producer()
    route = members.producer_heartbeat(topics=["demo"]).topicInfos[0]
    assert route == f"demo#1:1:1#{3 << 20}"
    assert server._state.catalog.get("demo").max_message_bytes == 3 << 20
    again = web("admin_update_topic_control_info", **CHANGE, topicName="demo,nosuch", maxMsgSizeInMB=3)
    assert codes(again) == [403, 401]


def test_a_topic_that_is_there_has_a_control(web):
    names = [item["topicName"] for item in web("admin_query_topic_control_info")["data"]]
    assert names == ["demo", "other"]
    assert codes(web("admin_add_topic_control_info", **ADD, topicName="demo,later")) == [402, 200]
    assert codes(web("admin_add_topic_control_info", **ADD, topicName="nosuch", maxMsgSizeInMB=2)) == [405]
    assert codes(web("admin_delete_topic_control_info", **CHANGE, topicName="demo,later,nosuch")) == [
        406,
        200,
        200,
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "Parameter maxMsgSizeInMB value must >= 1"),
        (21, "Parameter maxMsgSizeInMB value must <= 20"),
        ("x", "illegal value for maxMsgSizeInMB"),
    ],
)
@pytest.mark.parametrize(
    "method", ["admin_update_topic_control_info", "admin_update_cluster_default_setting"]
)
def test_sizes_have_bounds(web, method, size, text):
    answer = web(method, **CHANGE, topicName="demo", maxMsgSizeInMB=size)
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith(text)


# --- the cluster


def test_the_cluster_has_a_setting_once_it_is_set(web):
    assert web("admin_query_cluster_default_setting")["data"] == []
    (shown,) = web("admin_set_cluster_default_setting", **ADD, numPartitions=2)["data"]
    assert web("admin_query_cluster_default_setting")["data"] == [shown]
    assert (shown["maxMsgSizeInMB"], shown["qryPriorityId"]) == (1, 303)
    assert (shown["flowCtrlEnable"], shown["flowCtrlInfo"]) == (False, [])
    assert (shown["brokerPort"], shown["numTopicStores"], shown["deletePolicy"]) == (8123, 1, "delete,168h")


def test_producers_are_told_of_the_clusters_size_limit(server, web, members):
    first = members.register_producer().appdConfig
    (shown,) = web("admin_set_cluster_default_setting", **ADD, maxMsgSizeInMB=4)["data"]
    assert shown["maxMsgSizeInMB"] == 4
    told = members.producer_heartbeat(topics=["demo"], appdConfig={"configId": first.configId})
    assert told.appdConfig.configId == shown["serialId"] != first.configId
    assert told.appdConfig.maxMsgSize == 4 << 20
    assert list(told.topicInfos) == [f"demo#1:1:1#{1 << 20}"], "old topics keep their limit, and say it"
    known = members.producer_heartbeat(appdConfig={"configId": shown["serialId"]}).appdConfig
    assert not known.HasField("maxMsgSize")


def test_what_is_not_named_stays_or_becomes_as_at_first(web):
    rules = '[{"type":1,"rule":[{"zeroCnt":3,"freqInMs":300}]}]'
    (first,) = web(
        "admin_set_cluster_default_setting",
        **ADD,
        qryPriorityId=302,
        flowCtrlEnable="true",
        flowCtrlInfo=rules,
        numPartitions=5,
        brokerPort=9123,
    )["data"]
    assert (first["qryPriorityId"], first["flowCtrlRuleCount"], first["numPartitions"]) == (302, 1, 5)
    assert first["flowCtrlInfo"] == json.loads(rules)
    (updated,) = web("admin_update_cluster_default_setting", **CHANGE, numTopicStores=2)["data"]
    assert (updated["numTopicStores"], updated["numPartitions"], updated["brokerPort"]) == (2, 5, 9123)
    assert updated["flowCtrlEnable"]
    (set_again,) = web("admin_set_cluster_default_setting", **ADD, maxMsgSizeInMB=2)["data"]
    assert (set_again["numPartitions"], set_again["flowCtrlInfo"]) == (1, [])
    assert (set_again["qryPriorityId"], set_again["brokerPort"]) == (302, 9123)
    assert set_again["serialId"] > updated["serialId"] > first["serialId"]
    unchanged = web("admin_update_cluster_default_setting", **CHANGE, maxMsgSizeInMB=2)
    assert (unchanged["result"], unchanged["errMsg"]) == (False, "Cluster configure not changed!")


def test_settings_outlive_the_server(start, tmp_path):
    server = start(tmp_path)
    wish = {"maxMsgSizeInMB": 2, "deletePolicy": "delete,5m"}
    ask(server.master_web, method="admin_set_cluster_default_setting", **ADD, **wish)
    server.close()
    with server.reopened() as again:
        (shown,) = ask(again.master_web, method="admin_query_cluster_default_setting")["data"]
    assert {name: shown[name] for name in wish} == wish
