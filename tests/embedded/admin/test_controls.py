"""The web calls about permissions of groups: they change records, and the records have an effect."""

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
