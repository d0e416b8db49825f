"""The master's web calls about brokers: word for word the same of the embedded server and of the Java one.

Nothing is changed here: the servers are those of all tests.
"""

import pytest

from integration_tests.rig.admin_answers import PROPERTIES, STAMP, WHO, refused, shape

BROKER = {"brokerId": int, "brokerIp": str, "brokerPort": int, "brokerWebPort": int, "brokerTLSPort": int}
RUN_STATUS = {
    **BROKER,
    "manageStatus": str,
    "enableTLS": bool,
    "isRepAbnormal": bool,
    "isAutoForbidden": bool,
    "runStatus": str,
    "subStatus": str,
    "isConfChanged": str,
    "isConfLoaded": str,
    "isBrokerOnline": str,
    "brokerVersion": str,
    "acceptPublish": str,
    "acceptSubscribe": str,
}


def test_how_the_broker_is_set_up(server, ask):
    answer = ask(method="admin_query_broker_configure")
    assert {name: answer[name] for name in ("result", "errCode", "errMsg", "count")} == {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        "count": 1,
    }
    (item,) = answer["data"]
    flags = {"isConfChanged": bool, "isConfLoaded": bool}
    places = {"manageStatus": str, "regionId": int, "groupId": int}
    assert shape(item) == BROKER | flags | places | PROPERTIES | STAMP
    assert (item["brokerId"], f"{item['brokerIp']}:{item['brokerPort']}") == (1, server.broker)
    assert (item["manageStatus"], item["regionId"], item["groupId"]) == ("online", 0, 0)


def test_how_the_broker_is(server, ask):
    (item,) = ask(method="admin_query_broker_run_status")["data"]
    item.pop("stepOp", None)  # only while the Java server is about to publish something
    assert shape(item) == RUN_STATUS
    assert f"{item['brokerIp']}:{item['brokerPort']}" == server.broker
    assert [item[name] for name in ("manageStatus", "runStatus", "isBrokerOnline", "brokerVersion")] == [
        *("online", "running", "true", "-")
    ]
    assert (item["acceptPublish"], item["acceptSubscribe"], item["enableTLS"]) == ("true", "true", False)
    (detailed,) = ask(method="admin_query_broker_run_status", withDetail=True)["data"]
    detail = detailed["BrokerRunStatusInfo"]
    detail.pop("BrokerSyncData", None)  # of the Java server only: what it sends to its broker
    assert {name: type(value) for name, value in detail.items()} == {
        **dict.fromkeys(("type", "brokerInfo", "createId", "curStepStatus"), str),
        **dict.fromkeys(("isConfChanged", "isConfLoaded", "isOnline", "isOverTLS"), bool),
        **dict.fromkeys(("isDoneDataLoad", "isDoneDataSub", "isDoneDataPub"), bool),
        **dict.fromkeys(("confChangeNo", "confLoadedNo", "nextStepOpTimeInMills"), int),
        **dict.fromkeys(("lastBrokerSyncTime", "maxConfLoadedTimeInMs", "curConfLoadTimeInMs"), int),
    }
    assert detail["brokerInfo"] == f"1:{server.broker}"


@pytest.mark.parametrize(
    ("method", "parameters", "text"),
    [
        (
            "admin_add_broker_configure",
            {"brokerIp": "127.0.0.9", "manageStatus": "asleep"},
            "Illegal manageStatus parameter value :unknown broker manage status name asleep",
        ),
        (
            "admin_query_broker_run_status",
            {"brokerIp": "1.2.3"},
            "illegal value for brokerIp, value must matches the IPv4 address regulation",
        ),
        ("admin_add_broker_configure", {}, "Parameter brokerIp is missing or value is blank!"),
        (
            "admin_add_broker_configure",
            {"brokerIp": "127.0.0.9", "brokerPort": 0},
            "Parameter brokerPort value must >= 1",
        ),
        (
            "admin_add_broker_configure",
            {"brokerIp": "127.0.0.9", "brokerId": -3},
            "Parameter brokerId value must >= 0",
        ),
        ("admin_online_broker_configure", {}, "Parameter brokerId is missing or value is blank!"),
    ],
)
def test_calls_for_brokers_that_are_refused(ask, method, parameters, text):
    assert ask(method=method, **WHO, **parameters) == refused(text)
