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


def test_a_consume_control_is_made_changed_shown_and_forgotten(web):
    key = {"groupName": "grp", "topicName": "demo"}
    added = web("admin_add_group_csmctrl_info", **ADD, **key)
    assert added["data"] == [
        {"groupName": "grp", "topicName": "demo", "success": True, "errCode": 200, "errInfo": "Ok!"}
    ]
    (record,) = web("admin_query_group_csmctrl_info")["data"]
    assert record.pop("serialId") > 0
    assert record == {
        **key,
        "consumeEnable": True,
        "disableCsmRsn": "",
        "filterEnable": False,
        "filterConds": "",
        "dataVersionId": -2,
        "createUser": "me",
        "createDate": "20240102030405",
        "modifyUser": "me",
        "modifyDate": "20240102030405",
    }
    changes = {"consumeEnable": "false", "disableCsmRsn": "why", "filterEnable": "1", "filterConds": "b,a"}
    assert codes(web("admin_update_group_csmctrl_info", **CHANGE, **key, **changes)) == [200]
    (record,) = web("admin_query_group_csmctrl_info")["data"]
    assert (record["consumeEnable"], record["filterEnable"]) == (False, True)
    assert (record["filterConds"], record["disableCsmRsn"]) == (",a,b,", "why")
    assert (record["createUser"], record["modifyUser"]) == ("me", "you")
    assert codes(web("admin_update_group_csmctrl_info", **CHANGE, **key, filterConds="a,b")) == [200], (
        "no reason"
    )
    assert codes(web("admin_update_group_csmctrl_info", **CHANGE, **key, filterConds="a,b")) == [403]
    assert codes(web("admin_delete_group_csmctrl_info", **CHANGE, **key)) == [200]
    assert web("admin_query_group_csmctrl_info")["data"] == []
    assert codes(web("admin_delete_group_csmctrl_info", **CHANGE, **key)) == [200], "an unknown one too"


def test_items_fail_one_by_one(web):
    assert codes(web("admin_add_group_csmctrl_info", **ADD, groupName="aa", topicName="demo")) == [200]
    both = {"groupName": "aa,bb", "topicName": "demo,other"}
    assert codes(web("admin_add_group_csmctrl_info", **ADD, **both)) == [402, 200, 200, 200]
    answer = web(
        "admin_update_group_csmctrl_info", **CHANGE, groupName="cc", topicName="demo", consumeEnable="0"
    )
    (item,) = answer["data"]
    assert (item["success"], item["errCode"]) == (False, 401)
    assert item["errInfo"].startswith("Not found consume control for groupName-topicName(")


def test_queries_choose(web):
    web("admin_add_group_csmctrl_info", **ADD, groupName="aa", topicName="demo,other", filterConds="x,y")
    web("admin_add_group_csmctrl_info", **ADD, groupName="bb", topicName="demo", consumeEnable="false")

    def found(**wish):
        data = web("admin_query_group_csmctrl_info", **wish)["data"]
        return [f"{item['groupName']}-{item['topicName']}" for item in data]

    assert found() == ["aa-demo", "aa-other", "bb-demo"]
    assert found(topicName="demo") == ["aa-demo", "bb-demo"]
    assert found(groupName="bb") == ["bb-demo"]
    assert found(consumeEnable="true") == ["aa-demo", "aa-other"]
    assert found(filterEnable="true") == []
    assert found(filterConds="x") == ["aa-demo", "aa-other"]
    assert found(filterConds="x,z") == []
    assert found(createUser="somebody") == []
    assert web("admin_query_booked_csmctrl_groups")["data"] == ["aa", "bb"]
    codes(web("admin_delete_group_csmctrl_info", **CHANGE, groupName="aa"))
    assert found() == ["bb-demo"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topicName": "nosuch", "groupName": "grp"}, "topicName value nosuch is not configure"),
        ({"groupName": "grp"}, "Parameter topicName is missing"),
        ({"topicName": "demo"}, "Parameter groupName is missing"),
        ({"topicName": "demo", "groupName": "1"}, "illegal value for groupName"),
    ],
)
def test_what_a_consume_control_may_not_be(web, fields, text):
    answer = web("admin_add_group_csmctrl_info", **ADD, **fields)
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith(text)


def test_it_opens_a_topic_that_is_for_some_groups_only(web, members):
    assert codes(web("admin_set_topic_authorize_control", **ADD, topicName="demo", isEnable="true")) == [200]
    assert members.join_group("one", "grp").errCode == 450
    web("admin_add_group_csmctrl_info", **ADD, groupName="grp", topicName="demo")
    assert members.join_group("one", "grp").errCode == 200
    web(
        "admin_update_group_csmctrl_info",
        **CHANGE,
        groupName="grp",
        topicName="demo",
        filterEnable="true",
        filterConds="a",
    )
    assert members.register_consumer("one", "grp2").errCode == 450
    assert members.join_group("two", "grp").errCode == 455


# --- of a group


def test_a_resource_control_is_made_changed_shown_and_forgotten(web):
    added = web("admin_add_group_resctrl_info", **ADD, groupName="grp")
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
    (record,) = web("admin_query_group_resctrl_info", flowCtrlEnable="true", qryPriorityId=201)["data"]
    assert (record["alwdBrokerClientRate"], record["qryPriorityId"]) == (7, 201)
    assert (record["flowCtrlRuleCount"], record["flowCtrlInfo"]) == (1, RULES)
    assert codes(web("admin_update_group_resctrl_info", **CHANGE, groupName="grp", **changes)) == [403]
    assert codes(web("admin_add_group_resctrl_info", **ADD, groupName="grp,new")) == [402, 200]
    assert codes(web("admin_update_group_resctrl_info", **CHANGE, groupName="nosuch", qryPriorityId=101)) == [
        401
    ]
    assert web("admin_query_booked_resctrl_groups")["data"] == ["grp", "new"]
    assert web("admin_query_group_resctrl_info", resCheckEnable="false", groupName="grp")["data"] == []
    assert codes(web("admin_delete_group_resctrl_info", **CHANGE, groupName="grp,nosuch")) == [200, 200]


def test_one_that_goes_with_a_consume_control_stays(web):
    web("admin_add_group_csmctrl_info", **ADD, groupName="grp", topicName="demo")
    assert web("admin_query_booked_resctrl_groups")["data"] == ["grp"], "made along with it"
    assert codes(web("admin_delete_group_resctrl_info", **CHANGE, groupName="grp")) == [405]
    web("admin_delete_group_csmctrl_info", **CHANGE, groupName="grp")
    assert codes(web("admin_delete_group_resctrl_info", **CHANGE, groupName="grp")) == [200]
    assert web("admin_query_booked_resctrl_groups")["data"] == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"qryPriorityId": 100}, "Parameter qryPriorityId value must >= 101"),
        ({"qryPriorityId": 304}, "Illegal value in qryPriorityId parameter: qryPriorityId value must be"),
        ({"qryPriorityId": 204}, "Illegal value in qryPriorityId parameter: the units of qryPriorityId"),
        ({"qryPriorityId": 200}, "Illegal value in qryPriorityId parameter: the units of qryPriorityId"),
        ({"qryPriorityId": "x"}, "illegal value for qryPriorityId"),
        ({"alwdBrokerClientRate": -1}, "Parameter alwdBrokerClientRate value must >= 0"),
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


@pytest.mark.parametrize("call", ["add", "update", "delete"])
@pytest.mark.parametrize("kind", ["csmctrl", "resctrl"])
def test_changes_need_the_token_and_a_user(web, kind, call):
    method = f"admin_{call}_group_{kind}_info"
    assert "unauthorized" in web(method, confModAuthToken="x")["errMsg"]
    user = "createUser" if call == "add" else "modifyUser"
    missing = f"Parameter {user} is missing or value is blank!"
    assert web(method, confModAuthToken="abc", groupName="grp", topicName="demo")["errMsg"] == missing
