"""The frame of the master's web calls: word for word the same of the embedded server and of the Java one."""

import json
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from integration_tests.real.servers import ADMIN_TOKEN
from integration_tests.rig.admin_answers import WHO, refused, shape

MODIFY = "admin_modify_topic_info"
LETTERS = "value must begin with a letter, can only contain English letters, numbers, and underscores"

GUARDED = [
    "admin_add_broker_configure",
    "admin_add_group_csmctrl_info",
    "admin_add_group_resctrl_info",
    "admin_add_new_topic_record",
    "admin_delete_topic_info",
    "admin_modify_topic_info",
    "admin_online_broker_configure",
    "admin_remove_topic_info",
    "admin_set_client_balance_group_consume_from_max",
    "admin_set_cluster_default_setting",
    "admin_set_topic_authorize_control",
    "admin_update_group_resctrl_info",
]
OPEN = [
    "admin_get_methods",
    "admin_query_broker_configure",
    "admin_query_broker_run_status",
    "admin_query_consume_group_detail",
    "admin_query_group_csmctrl_info",
    "admin_query_group_resctrl_info",
    "admin_query_master_group_info",
    "admin_query_server_version",
    "admin_query_sub_info",
    "admin_query_topic_info",
]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "Please take with method parameter!"),
        ({"method": ""}, "unsupported method!"),
        ({"method": "nosuch"}, "unsupported method!"),
        ({"method": MODIFY}, "Parameter confModAuthToken is missing or value is blank!"),
        (
            {"method": MODIFY, "confModAuthToken": " "},
            "Parameter confModAuthToken is missing or value is blank!",
        ),
        (
            {"method": MODIFY, "confModAuthToken": "t" * 129},
            "over max length for confModAuthToken, only allow 128 length",
        ),
        ({"method": MODIFY, "authToken": "wrong"}, "illegal access, unauthorized request!"),
    ],
)
def test_calls_that_are_not_let_through(server, ask, parameters, text):
    """By POST with a form, as the client asks, and by GET."""
    refusal = refused(f"Bad request from client, {text}")
    assert ask(**parameters) == refusal
    with urlopen(f"{server.admin.url}?{urlencode(parameters)}", timeout=10) as response:
        assert json.loads(response.read()) == refusal


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"modifyUser": ""}, "Parameter modifyUser is missing or value is blank!"),
        ({"modifyUser": "1st"}, f"illegal value for modifyUser, {LETTERS}"),
        ({"modifyUser": "m" * 65}, "over max length for modifyUser, only allow 64 length"),
        (
            {"modifyDate": "20200101"},
            "Parameter modifyDate's value 20200101 parse error, required value format is yyyyMMddHHmmss",
        ),
        ({"dataVersionId": "x"}, "illegal value for dataVersionId, value must only contain numbers"),
        ({"topicName": ""}, "Parameter topicName is missing or value is blank!"),
        ({"topicName": " , "}, "Parameter topicName is missing or value is blank!"),
        ({"topicName": "demo,a-b"}, f"illegal value for topicName, {LETTERS}"),
        ({"topicName": "t" * 65}, "over max length for topicName, only allow 64 length"),
        ({"brokerId": ""}, "Parameter brokerId is missing or value is blank!"),
        ({"brokerId": "one"}, "illegal value for brokerId, value must only contain numbers"),
        ({"numTopicStores": "0"}, "Parameter numTopicStores value must >= 1"),
        ({"numPartitions": "many"}, "illegal value for numPartitions, value must only contain numbers"),
        ({"unflushThreshold": "-1"}, "Parameter unflushThreshold value must >= 0"),
        ({"unflushInterval": "0"}, "Parameter unflushInterval value must >= 1"),
        ({"unflushDataHold": "-1"}, "Parameter unflushDataHold value must >= 0"),
        ({"memCacheMsgSizeInMB": "1"}, "Parameter memCacheMsgSizeInMB value must >= 2"),
        ({"memCacheMsgSizeInMB": "2049"}, "Parameter memCacheMsgSizeInMB value must <= 2048"),
        ({"memCacheMsgCntInK": "0"}, "Parameter memCacheMsgCntInK value must >= 1"),
        ({"memCacheFlushIntvl": "3999"}, "Parameter memCacheFlushIntvl value must >= 4000"),
        (
            {"deletePolicy": "delete"},
            (
                "Value must include one and only one comma character, the format of DELETEPOLICY must like "
                "{method},{digital}[m|s|h]"
            ),
        ),
        (
            {"deletePolicy": ",3h"},
            "Method value must not be blank, the format of DELETEPOLICY must like {method},{digital}[m|s|h]",
        ),
        ({"deletePolicy": "keep,3h"}, "Field DELETEPOLICY only support delete method now!"),
        ({"deletePolicy": "delete,3d"}, "Field DELETEPOLICY only support [s|m|h] unit!"),
        ({"deletePolicy": "delete,xh"}, "The value of field DELETEPOLICY's valid duration must digits!"),
        (
            {"deletePolicy": "delete,169h"},
            (
                "The value of field DELETEPOLICY must be greater than 0 and  less than or equal to604800000 "
                "seconds!"
            ),
        ),
    ],
)
def test_parameters_that_are_refused(ask, parameters, text):
    usual = {"method": MODIFY, "topicName": "demo", "brokerId": "1", **WHO}
    assert ask(**{**usual, **parameters}) == refused(text)


def test_aliases(server, ask):
    topic = server.fresh_topic("2x3")
    usual = {"method": MODIFY, "authToken": ADMIN_TOKEN, "mur": "me", "topic": topic, "brokerId": 1}
    assert ask(**usual, numPart=2)["data"][0]["errCode"] == 407
    assert ask(**usual, numPart=3)["data"][0]["errCode"] == 403


def test_jsonp(server):
    query = urlencode({"method": "admin_query_server_version", "callback": "tell"})
    with urlopen(f"{server.admin.url}?{query}", timeout=10) as response:
        assert response.headers.get_content_type() == "text/plain"
        text = response.read().decode()
    assert text.startswith("tell({")
    assert text.endswith("})")
    assert json.loads(text[5:-1])["result"]


def test_the_calls_and_who_may_make_them(ask):
    answer = ask(method="admin_get_methods")
    calls = {item["method"]: item["needAuth"] for item in answer["data"]}
    assert answer["count"] == len(answer["data"]) == len(calls)
    expected = dict.fromkeys(GUARDED, True) | dict.fromkeys(OPEN, False)
    assert {name: calls.get(name) for name in expected} == expected


def test_the_servers_version(ask):
    answer = {"result": True, "errCode": 0, "errMsg": "OK", "data": [{"version": "2.4.0"}], "count": 1}
    assert ask(method="admin_query_server_version") == answer


def test_the_masters(server, ask):
    answer = ask(method="admin_query_master_group_info")
    node = {
        "index": int,
        "name": str,
        "hostName": str,
        "port": str,
        "statusInfo": {"nodeStatus": str, "joinTime": str},
    }
    whole = {"result": bool, "errCode": int, "errMsg": str, "groupName": str, "isPrimaryNodeActive": bool}
    assert shape(answer) == whole | {"data": [node], "count": int, "groupStatus": str}
    assert (answer["errMsg"], answer["groupStatus"], answer["count"]) == ("Ok", "Running-ReadWrite", 1)
    assert answer["isPrimaryNodeActive"] is False
    (master,) = answer["data"]
    # With Berkeley DB the Java master tells its port for replication.
    assert master["hostName"] == server.master.partition(":")[0]
    assert master["port"].isdigit()
    assert master["statusInfo"]["nodeStatus"].lower() == "master"
