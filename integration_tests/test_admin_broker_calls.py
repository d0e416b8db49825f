"""The master's web calls about brokers: word for word the same of the embedded server and of the Java one.

Nothing is changed here: the servers are those of all tests.
"""

import pytest

from integration_tests.rig.admin_answers import DEPLOYED, PROPERTIES, STAMP, WHO, done, refused, shape

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


@pytest.fixture
def ask(server):
    """Send parameters to the master."""
    return server.admin.ask


@pytest.fixture
def topic(server):
    """An empty topic of 2 stores with 3 partitions each."""
    return server.fresh_topic("2x3")


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


@pytest.mark.parametrize(
    ("parameters", "count"),
    [
        ({"brokerId": "1,7"}, 1),
        ({"brokerId": "7"}, 0),
        ({"brokerIp": "127.0.0.1"}, 1),
        ({"brokerIp": "127.0.0.77"}, 0),
        ({"brokerPort": 1}, 0),
        ({"manageStatus": "online"}, 1),
        ({"manageStatus": "OFFLINE"}, 0),
        ({"numPartitions": 1}, 1),
        ({"numPartitions": 9}, 0),
        ({"topicName": "nosuch"}, 0),
        ({"topicName": "nosuch", "isInclude": False}, 1),
        ({"topicStatusId": 0}, 1),
    ],
)
def test_the_broker_is_found_by_what_it_is(ask, parameters, count):
    assert ask(method="admin_query_broker_configure", **parameters)["count"] == count


def test_the_broker_with_its_topics(ask, topic):
    (item,) = ask(method="admin_query_broker_configure", topicName=topic, withTopic=True)["data"]
    assert [shape(place) for place in item["topicSet"] if place["topicName"] == topic] == [DEPLOYED]


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


@pytest.mark.parametrize("only", ["onlyAbnormal", "onlyAutoForbidden", "onlyEnableTLS"])
def test_a_broker_in_order_is_not_among_the_others(ask, only):
    assert ask(method="admin_query_broker_run_status", **{only: True})["data"] == []
    assert ask(method="admin_query_broker_run_status", **{only: False})["count"] == 1


@pytest.mark.parametrize(
    ("method", "parameters", "text"),
    [
        ("admin_query_broker_configure", {"manageStatus": "asleep"}, "status"),
        ("admin_update_broker_configure", {"brokerId": 1, "manageStatus": "asleep"}, "status"),
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
        (
            "admin_set_broker_read_or_write",
            {"brokerId": 1},
            "Fields acceptPublish or acceptSubscribe must exist at this method!",
        ),
        (
            "admin_set_broker_read_or_write",
            {"acceptPublish": True},
            "Parameter brokerId is missing or value is blank!",
        ),
    ],
)
def test_calls_for_brokers_that_are_refused(ask, method, parameters, text):
    if text == "status":
        text = "Illegal manageStatus parameter value :unknown broker manage status name asleep"
    assert ask(method=method, **WHO, **parameters) == refused(text)


MISSING = "Not found broker configure for brokerId(7)!"
ABSENT = "The broker configure not exist!"


@pytest.mark.parametrize(
    ("method", "parameters", "ip", "code", "text"),
    [
        ("admin_online_broker_configure", {"brokerId": 7}, "", 401, MISSING),
        ("admin_offline_broker_configure", {"brokerId": 7}, "", 401, MISSING),
        ("admin_update_broker_configure", {"brokerId": 7}, "", 401, MISSING),
        ("admin_reload_broker_configure", {"brokerId": 7}, "", 401, ABSENT),
        ("admin_set_broker_read_or_write", {"brokerId": 7, "acceptPublish": False}, "", 401, ABSENT),
        ("admin_delete_broker_configure", {"brokerId": 7}, "null", 200, "Success"),
        ("admin_online_broker_configure", {"brokerId": 1}, "", 403, "Unchanged  manageStatus(online)!"),
        ("admin_update_broker_configure", {"brokerId": 1}, "", 403, "Broker configure not changed!"),
        (
            "admin_update_broker_configure",
            {"brokerId": 1, "manageStatus": "draft"},
            "",
            407,
            (
                "Illegal manage status, cannot reverse manageStatus from online to draft for the "
                "broker(brokerId=1)!"
            ),
        ),
        (
            "admin_set_broker_read_or_write",
            {"brokerId": 1, "acceptPublish": True},
            "127.0.0.1",
            200,
            "Ok!",
        ),
        (
            "admin_delete_broker_configure",
            {"brokerId": 1},
            "null",
            406,
            "Broker manage status is online, please offline first!",
        ),
    ],
)
def test_changes_of_brokers_that_do_nothing(ask, method, parameters, ip, code, text):
    expected = {"brokerId": parameters["brokerId"], "brokerIp": ip, "code": code, "text": text}
    assert ask(method=method, **WHO, **parameters) == done(expected)
