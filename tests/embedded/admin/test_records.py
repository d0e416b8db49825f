"""Each record that the master shows, whole; integration tests compare their forms with TubeMQ's."""

import pytest

from tests.embedded.web import TOKEN, change

PROPERTIES = {
    "numTopicStores": 2,
    "numPartitions": 3,
    "unflushThreshold": 0,
    "unflushInterval": 1,
    "unflushDataHold": 0,
    "memCacheMsgSizeInMB": 2,
    "memCacheMsgCntInK": 1,
    "memCacheFlushIntvl": 4000,
    "acceptPublish": True,
    "acceptSubscribe": True,
    "deletePolicy": "delete,168h",
}
"""The least values that are taken, and the oldest age."""
SHOWN = {**PROPERTIES, "dataStoreType": -2, "dataPath": ""}
NO_RULES = {"flowCtrlEnable": False, "flowCtrlRuleCount": 0, "flowCtrlInfo": []}
BY = dict.fromkeys(("createUser", "modifyUser"), TOKEN["createUser"])


@pytest.fixture
def server(start):
    return start(topics={"demo": (1, 1)})


def only(answer):
    """Return the only record of an answer, without what differs from run to run."""
    assert (answer["result"], answer["errCode"], answer["count"]) == (True, 0, 1)
    (record,) = answer["data"]
    assert record.pop("serialId", 1) > 0
    assert record.pop("createDate")
    assert record.pop("modifyDate")
    return record


def test_a_topic(server, web):
    assert change(server, "admin_add_new_topic_record", topicName="new", brokerId=1, **PROPERTIES)[0] == 200
    topic = web("admin_query_topic_info", topicName="new")["data"][0]
    (place,) = topic.pop("topicInfo")
    assert topic == {
        "topicName": "new",
        "maxMsgSizeInMB": 1,
        "infoCount": 1,
        "totalCfgNumPart": 6,
        "totalRunNumPartCount": 6,
        "isSrvAcceptPublish": True,
        "isSrvAcceptSubscribe": True,
        "authData": {},
    }
    host, _, port = server.broker.partition(":")
    assert only({"result": True, "errCode": 0, "count": 1, "data": [place]}) == {
        "topicName": "new",
        "brokerId": 1,
        "brokerIp": host,
        "brokerPort": int(port),
        "topicNameId": -2,
        "topicStatusId": 0,
        **SHOWN,
        **BY,
        "dataVersionId": -2,
        "runInfo": {
            **dict.fromkeys(("acceptPublish", "acceptSubscribe"), True),
            "numPartitions": 3,
            "numTopicStores": 2,
            "brokerManageStatus": "online",
        },
    }


def test_a_broker(server, web):
    numbers = {"regionId": 0, "groupId": 0, "brokerTLSPort": 1}
    call = {"brokerIp": "127.0.0.1", "brokerPort": 1, "brokerWebPort": 1, **numbers, **PROPERTIES}
    assert change(server, "admin_add_broker_configure", **call) == (200, "Ok!")
    host, _, port = server.broker.partition(":")
    broker = {"brokerId": 1, "brokerIp": host, "brokerPort": int(port), "brokerTLSPort": 1}
    broker["brokerWebPort"] = int(server.broker_web.rpartition(":")[2])
    assert only(web("admin_query_broker_configure")) == {
        **broker,
        "manageStatus": "draft",
        "isConfChanged": False,
        "isConfLoaded": False,
        "regionId": 0,
        "groupId": 0,
        **SHOWN,
        **BY,
        "dataVersionId": -2,
    }
    unknown = ("enableTLS", "runStatus", "subStatus", "isConfChanged", "isConfLoaded", "isBrokerOnline")
    unknown += ("brokerVersion", "acceptPublish", "acceptSubscribe")
    status = {**broker, "manageStatus": "draft", **dict.fromkeys(unknown, "-")}
    status |= dict.fromkeys(("isRepAbnormal", "isAutoForbidden"), False)
    assert web("admin_query_broker_run_status")["data"] == [status]
    assert change(server, "admin_online_broker_configure", brokerId=1) == (200, "Ok!")
    status |= {"manageStatus": "online", "enableTLS": False, "runStatus": "running", "subStatus": "idle"}
    status |= {"isConfChanged": "false", "isConfLoaded": "true", "isBrokerOnline": "true"}
    status |= {"acceptPublish": "true", "acceptSubscribe": "true"}
    assert web("admin_query_broker_run_status")["data"] == [status]


def test_the_cluster(web):
    ports = dict.fromkeys(("brokerPort", "brokerTLSPort", "brokerWebPort"), 1)
    setting = {**ports, "maxMsgSizeInMB": 1, "qryPriorityId": 101}
    assert only(web("admin_set_cluster_default_setting", **TOKEN, **setting, **PROPERTIES)) == {
        **setting,
        **NO_RULES,
        **SHOWN,
        **BY,
        "dataVersionId": -2,
    }


def test_a_group_and_a_topic(web):
    names = {"topicName": "demo", "groupName": "grp"}
    given = {"consumeEnable": False, "disableCsmRsn": "late", "filterEnable": True, "filterConds": "a,b"}
    web("admin_add_group_csmctrl_info", **TOKEN, **names, **given)
    shown = {**names, **given, "filterConds": ",a,b,", **BY, "dataVersionId": -2}
    assert only(web("admin_query_group_csmctrl_info")) == shown


def test_the_masters(server, web):
    answer = web("admin_query_master_group_info")
    (node,) = answer.pop("data")
    assert answer == {
        "result": True,
        "errCode": 0,
        "errMsg": "Ok",
        "groupName": "embedded",
        "isPrimaryNodeActive": False,
        "count": 1,
        "groupStatus": "Running-ReadWrite",
    }
    host, _, port = server.master.partition(":")
    status = node.pop("statusInfo")
    assert node == {"index": 1, "name": "embedded", "hostName": host, "port": port}
    assert (status["nodeStatus"], int(status["joinTime"]) > 0) == ("Master", True)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        (
            "admin_add_broker_configure",
            ("regionId", "groupId", "brokerTLSPort", "brokerPort", "brokerWebPort"),
        ),
        (
            "admin_set_cluster_default_setting",
            ("maxMsgSizeInMB", "brokerPort", "brokerTLSPort", "brokerWebPort"),
        ),
        ("admin_add_group_resctrl_info", ("alwdBrokerClientRate",)),
        ("admin_modify_topic_info", tuple(name for name, least in PROPERTIES.items() if type(least) is int)),
    ],
)
def test_what_is_below_the_least_value_is_refused(web, method, names):
    """The tests above, and those of groups, give the least values."""
    needed = {"groupName": "grp", "topicName": "demo", "brokerId": 1, "brokerIp": "127.0.0.1"}
    for name in names:
        least = 0 if name in {"regionId", "groupId", "alwdBrokerClientRate"} else PROPERTIES.get(name, 1)
        least = 1 if name in {"numTopicStores", "numPartitions"} else least
        answer = web(method, **TOKEN, **needed, **{name: least - 1})
        assert (answer["result"], answer["errCode"]) == (False, 400)
        assert name in answer["errMsg"]


def test_what_a_call_says_of_a_topic_that_is_not_as_it_should_be(server):
    def said(method, topic="demo", **parameters):
        return change(server, f"admin_{method}", topicName=topic, brokerId=1, **parameters)

    record = "brokerId-topicName(1:demo)"
    assert said("add_new_topic_record") == (402, f"Existed record found for {record}!")
    what = "Not found topic deploy configure for brokerId-topicName(1:nosuch)!"
    assert said("modify_topic_info", "nosuch", numPartitions=2) == (401, what)
    must = "The values of acceptPublish and acceptSubscribe must be false before change status"
    assert said("delete_topic_info") == (406, f"{must} of {record} record!")
    closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
    assert said("modify_topic_info", **closed) == (200, "Ok!")
    assert said("modify_topic_info", **closed) == (403, "Topic deploy configure not changed!")
    assert said("remove_topic_info") == (406, f"Please softly deleted the {record} record first!")
    assert said("delete_topic_info") == (200, "Ok!")
    deleted = f"Softly deleted record found for {record}, please resume or remove it first!"
    assert said("add_new_topic_record") == (402, deleted)
