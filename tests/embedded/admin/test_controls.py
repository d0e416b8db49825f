"""The web calls about the cluster's setting, and permissions of groups: they have an effect."""

import json

import pytest

ADD = {"confModAuthToken": "abc", "createUser": "me", "createDate": "20240102030405"}
CHANGE = {"confModAuthToken": "abc", "modifyUser": "you", "modifyDate": "20250102030405"}
RULES = [{"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]}]


@pytest.fixture
def server(start):
    return start(topics={"demo": (1, 1), "other": (1, 1)})


def codes(answer):
    assert answer["result"], answer
    assert answer["count"] == len(answer["data"])
    return [item["errCode"] for item in answer["data"]]


# --- of a group and a topic


def test_items_fail_one_by_one(web):
    assert codes(web("admin_add_group_csmctrl_info", **ADD, groupName="aa", topicName="demo")) == [200]
    both = {"groupName": "aa,bb", "topicName": "demo,other"}
    assert codes(web("admin_add_group_csmctrl_info", **ADD, **both)) == [402, 200, 200, 200]
    records = web("admin_query_group_csmctrl_info", groupName="bb", topicName="demo")["data"]
    assert [(item["groupName"], item["topicName"]) for item in records] == [("bb", "demo")]


def test_the_topic_of_a_consume_control_exists(web):
    answer = web("admin_add_group_csmctrl_info", **ADD, topicName="nosuch", groupName="grp")
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith("topicName value nosuch is not configure")


# --- of a group


def test_a_resource_control_is_added_changed_and_shown(web):
    added = web("admin_add_group_resctrl_info", **ADD, groupName="grp", alwdBrokerClientRate=0)
    assert added["data"] == [{"groupName": "grp", "success": True, "errCode": 200, "errInfo": "Ok!"}]
    (record,) = web("admin_query_group_resctrl_info")["data"]
    assert record.pop("serialId") > 0
    assert record == {
        "groupName": "grp",
        "resCheckEnable": False,
        "alwdBrokerClientRate": 0,
        "qryPriorityId": 303,
        "flowCtrlEnable": False,
        "flowCtrlRuleCount": 0,
        "flowCtrlInfo": [],
        "dataVersionId": -2,
        "createUser": "me",
        "createDate": "20240102030405",
        "modifyUser": "me",
        "modifyDate": "20240102030405",
    }
    changes = {
        "resCheckEnable": "true",
        "alwdBrokerClientRate": 7,
        "qryPriorityId": 201,
        "flowCtrlEnable": "true",
        "flowCtrlInfo": json.dumps(RULES),
    }
    assert codes(web("admin_update_group_resctrl_info", **CHANGE, groupName="grp", **changes)) == [200]
    (record,) = web("admin_query_group_resctrl_info", groupName="grp")["data"]
    assert (record["alwdBrokerClientRate"], record["qryPriorityId"]) == (7, 201)
    assert (record["flowCtrlRuleCount"], record["flowCtrlInfo"]) == (1, RULES)
    assert codes(web("admin_update_group_resctrl_info", **CHANGE, groupName="grp", **changes)) == [403]
    assert codes(web("admin_add_group_resctrl_info", **ADD, groupName="grp,new")) == [402, 200]
    assert codes(web("admin_update_group_resctrl_info", **CHANGE, groupName="nosuch", qryPriorityId=101)) == [
        401
    ]
    records = web("admin_query_group_resctrl_info")["data"]
    assert [item["groupName"] for item in records] == ["grp", "new"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"qryPriorityId": 304}, "Illegal value in qryPriorityId parameter: qryPriorityId value must be"),
        ({"qryPriorityId": 204}, "Illegal value in qryPriorityId parameter: the units of qryPriorityId"),
        ({"flowCtrlInfo": "[{]"}, "Parse parameter flowCtrlInfo failure: '"),
        ({"flowCtrlInfo": '[{"type":7,"rule":[]}]'}, "Parse parameter flowCtrlInfo failure: '"),
    ],
)
def test_what_a_resource_control_may_not_be(web, fields, text):
    answer = web("admin_add_group_resctrl_info", **ADD, groupName="grp", **fields)
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith(text)


def test_members_are_told_of_flow_rules(web, members):
    members.join_group("one", "grp")
    web(
        "admin_add_group_resctrl_info",
        **ADD,
        groupName="grp",
        flowCtrlEnable="true",
        flowCtrlInfo=json.dumps(RULES),
        qryPriorityId=202,
    )
    told = members.group_heartbeat("one", "grp", groupFlowCheckId=-2)
    assert told.groupFlowCheckId > 0
    assert json.loads(told.groupFlowControlInfo) == RULES
    assert told.qryPriorityId == 202


@pytest.mark.parametrize(("call", "kind"), [("add", "csmctrl"), ("add", "resctrl"), ("update", "resctrl")])
def test_changes_need_the_token_and_a_user(web, kind, call):
    method = f"admin_{call}_group_{kind}_info"
    assert "unauthorized" in web(method, confModAuthToken="x")["errMsg"]
    user = "createUser" if call == "add" else "modifyUser"
    missing = f"Parameter {user} is missing or value is blank!"
    assert web(method, confModAuthToken="abc", groupName="grp", topicName="demo")["errMsg"] == missing


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "Parameter maxMsgSizeInMB value must >= 1"),
        (21, "Parameter maxMsgSizeInMB value must <= 20"),
    ],
)
def test_sizes_have_bounds(web, size, text):
    answer = web("admin_set_cluster_default_setting", **ADD, maxMsgSizeInMB=size)
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith(text)


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


def test_a_topic_is_restricted_to_groups_with_rights_and_opened_again(web):
    method = "admin_set_topic_authorize_control"
    restrict, open_again = {"isEnable": "true"}, {"enableAuthControl": "false"}
    changes = (restrict, restrict, open_again)
    answers = [web(method, **ADD, topicName="demo", **fields)["data"] for fields in changes]
    assert [item["errCode"] for (item,) in answers] == [200, 403, 200]
    web(method, **ADD, topicName="demo", **restrict)
    rights = {"groupName": "grp", "topicName": "demo", "filterEnable": "true", "filterConds": "aa,bb"}
    web("admin_add_group_csmctrl_info", **ADD, **rights)
    (topic,) = web("admin_query_topic_info", topicName="demo")["data"]
    assert topic["authData"]["enableAuthControl"]
    assert [item["groupName"] for item in topic["authData"]["authConsumeGroup"]] == ["grp"]
    (filters,) = topic["authData"]["authFilterCondSet"]
    assert (filters["condStatus"], filters["filterConds"]) == (2, ",aa,bb,")
