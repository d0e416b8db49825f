"""The master's web calls about topics: word for word the same of the embedded server and of the Java one.

Only what the Java server does at once is asked for here: it publishes changes of topics half a minute later.
"""

import itertools

import pytest

from integration_tests.rig.admin_answers import DEPLOYED, PROPERTIES, STAMP, WHO, done, refused, shape

MODIFY = "admin_modify_topic_info"

RUN_INFO = {
    "acceptPublish": bool,
    "acceptSubscribe": bool,
    "numPartitions": int,
    "numTopicStores": int,
    "brokerManageStatus": str,
}
TOTALS = {
    "infoCount": int,
    "totalCfgNumPart": int,
    "isSrvAcceptPublish": bool,
    "isSrvAcceptSubscribe": bool,
    "totalRunNumPartCount": int,
}
SHAPES = {
    "admin_query_topic_info": {
        "topicName": str,
        "maxMsgSizeInMB": int,
        "topicInfo": [DEPLOYED | {"runInfo": RUN_INFO}],
        **TOTALS,
        "authData": {},
    },
    "admin_query_topic_deploy_info": {
        "topicName": str,
        "topicNameId": int,
        "enableAuthControl": bool,
        "maxMsgSizeInMB": int,
        **STAMP,
        "deployInfo": [DEPLOYED | {"runInfo": RUN_INFO}],
        **TOTALS,
    },
    "admin_query_topic_deploy_configure": DEPLOYED,
    "admin_query_topic_broker_config_info": {
        "topicName": str,
        "brokerTotalCfgCnt": int,
        "brokerTotalRunCnt": int,
        "storeTotalCfgCnt": int,
        "storeTotalRunCnt": int,
        "partTotalCfgCnt": int,
        "partTotalRunCnt": int,
        "brokerAccPubTotalCnt": int,
        "brokerAccSubTotalCnt": int,
        "storeAccPubTotalCnt": int,
        "storeAccSubTotalCnt": int,
        "partAccPubTotalCnt": int,
        "partAccSubTotalCnt": int,
        "topicSrvAccPubStatus": bool,
        "topicSrvAccSubStatus": bool,
        "enableAuthControl": bool,
    },
    "admin_query_cluster_topic_view": {
        "topicName": str,
        "totalCfgBrokerCnt": int,
        "totalCfgNumStore": int,
        "totalRunNumStore": int,
        "totalCfgNumPart": int,
        "totalRunNumPartCount": int,
        "isSrvAcceptPublish": bool,
        "isSrvAcceptSubscribe": bool,
        "enableAuthControl": bool,
    },
    "admin_query_deployed_broker_ids": {"topicName": str, "brokerInfo": [int], "brokerCnt": int},
}

numbers = itertools.count()


@pytest.fixture
def ask(server):
    """Send parameters to the master."""
    return server.admin.ask


@pytest.fixture
def topic(server):
    """An empty topic of 2 stores with 3 partitions each."""
    return server.fresh_topic("2x3")


@pytest.fixture
def deploy(ask):
    """Add topics that are removed again after the test."""
    added = []

    def add(**properties):
        name = f"admin_{next(numbers)}"
        answer = ask(method="admin_add_topic_deploy_info", topicName=name, brokerId=1, **WHO, **properties)
        assert answer == done({"brokerId": 1, "topicName": name, "code": 200, "text": "Ok!"})
        added.append(name)
        return name

    yield add
    for method, properties in (
        (MODIFY, {"acceptPublish": False, "acceptSubscribe": False}),
        ("admin_delete_topic_info", {}),
        ("admin_remove_topic_info", {}),
    ):
        for name in added:
            ask(method=method, topicName=name, brokerId=1, **WHO, **properties)


@pytest.mark.parametrize("method", SHAPES)
def test_queries_of_a_topic(ask, topic, method):
    answer = ask(method=method, topicName=topic)
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": answer["data"], "count": 1}
    (item,) = answer["data"]
    assert shape(item) == SHAPES[method]
    assert item["topicName"] == topic
    if method != "admin_query_deployed_broker_ids":
        assert ask(method=method, topicName="nosuch")["data"] == []
        assert ask(method=method, topicName=topic, brokerId=7)["data"] == []
        assert ask(method=method, topicName=topic, brokerId="7,1")["data"] == [item]


def test_what_is_told_of_a_topic(ask, topic):
    (item,) = ask(method="admin_query_topic_info", topicName=topic)["data"]
    (place,) = item["topicInfo"]
    assert place["runInfo"] == {
        "acceptPublish": True,
        "acceptSubscribe": True,
        "numPartitions": 3,
        "numTopicStores": 2,
        "brokerManageStatus": "online",
    }
    assert [item[name] for name in TOTALS] == [1, 6, True, True, 6]
    assert (place["topicNameId"], place["dataStoreType"], place["dataPath"]) == (-2, -2, "")
    assert (place["topicStatusId"], item["maxMsgSizeInMB"]) == (0, 1)
    (view,) = ask(method="admin_query_topic_broker_config_info", topicName=topic)["data"]
    assert list(view.values()) == [topic, 1, 1, 2, 2, 6, 6, 1, 1, 2, 2, 6, 6, True, True, False]
    (view,) = ask(method="admin_query_cluster_topic_view", topicName=topic)["data"]
    assert list(view.values()) == [topic, 1, 2, 2, 6, 6, True, True, False]
    (view,) = ask(method="admin_query_topic_deploy_info", topicName=topic, withGroupAuthInfo=True)["data"]
    assert (view["groupAuthInfo"], view["groupAuthCount"]) == ([], 0)


def test_the_brokers_of_topics(ask, server, topic):
    method = "admin_query_deployed_broker_ids"
    host = server.broker.partition(":")[0]
    answer = ask(method=method, topicName=f"{topic},nosuch", withIp=True)
    assert sorted(answer["data"], key=lambda item: item["topicName"]) == [
        {"topicName": "nosuch", "brokerInfo": [], "brokerCnt": 0},
        {"topicName": topic, "brokerInfo": [{"brokerId": 1, "brokerIp": host}], "brokerCnt": 1},
    ]


def test_the_topics_of_brokers(ask, topic):
    first, second = ask(method="admin_query_deployed_topics", brokerId="1,7")["data"]
    assert set(first) == {"brokerId", "topicName", "topicCount"}
    assert topic in first["topicName"]
    assert first["topicCount"] == len(first["topicName"])
    assert second == {"brokerId": 7, "topicName": [], "topicCount": 0}
    (item,) = ask(method="admin_query_broker_topic_config_info", topicName=topic)["data"]
    assert list(item)[:7] == [
        "brokerId",
        "brokerIp",
        "brokerPort",
        "manageStatus",
        "acceptPublish",
        "acceptSubscribe",
        "nodeRunInfo",
    ]
    assert list(item.values())[3:] == ["online", True, True, "running", 1, 2, 6, 1, 1, 2, 2, 6, 6]
    (item,) = ask(method="admin_query_broker_topic_config_info", topicName="nosuch")["data"]
    assert list(item.values())[7:] == [0] * 9
    assert ask(method="admin_query_broker_topic_config_info", brokerId=7)["data"] == []


def test_topics_are_found_by_what_they_are(ask, deploy):
    name = deploy(numPartitions=7, acceptPublish=False, unflushInterval=4711)
    query = {"method": "admin_query_topic_info", "topicName": name}
    for found in (
        {"numPartitions": 7},
        {"acceptPublish": False},
        {"unflushInterval": 4711},
        {"createUser": "me"},
        {"topicStatusId": 0},
        {"topicStatusId": -2},
    ):
        assert ask(**query, **found)["count"] == 1, found
    for missed in (
        {"numPartitions": 6},
        {"acceptPublish": True},
        {"modifyUser": "you"},
        {"topicStatusId": 1},
        {"brokerPort": 1},
    ):
        assert ask(**query, **missed)["count"] == 0, missed
    unknown = "The value of field topicStatusId invalid:unknown topic status code 9"
    assert ask(**query, topicStatusId=9) == refused(unknown)


def test_properties_of_a_new_topic(ask, deploy):
    name = deploy(
        numTopicStores=2,
        numPartitions=3,
        unflushThreshold=0,
        unflushInterval=5,
        unflushDataHold=6,
        memCacheMsgSizeInMB=7,
        memCacheMsgCntInK=8,
        memCacheFlushIntvl=4009,
        acceptPublish="0",
        acceptSubscribe="yes",
        deletePolicy="DELETE,10M",
        createDate="20200102030405",
    )
    (item,) = ask(method="admin_query_topic_deploy_configure", topicName=name)["data"]
    assert [item[key] for key in PROPERTIES] == [
        *(2, 3, 0, 5, 6, 7, 8, 4009, False, True, "delete,10m", -2, "")
    ]
    assert [item[key] for key in STAMP if key != "serialId"] == [
        *(-2, "me", "20200102030405", "me", "20200102030405")
    ]


def test_adding_topics(ask, deploy):
    name, another = deploy(), f"admin_{next(numbers)}"
    for method in ("admin_add_new_topic_record", "admin_add_topic_deploy_info"):
        assert ask(method=method, topicName=name, brokerId="7,1", **WHO) == done(
            {
                "brokerId": 1,
                "topicName": name,
                "code": 402,
                "text": f"Existed record found for brokerId-topicName(1:{name})!",
            },
            {
                "brokerId": 7,
                "topicName": name,
                "code": 401,
                "text": "Not found broker configure record by brokerId=7, please create the broker's "
                "configure first!",
            },
        )
    nobody = {name: value for name, value in WHO.items() if name != "createUser"}
    answer = ask(method="admin_add_new_topic_record", topicName=another, brokerId=1, **nobody)
    assert answer == refused("Parameter createUser is missing or value is blank!")


@pytest.mark.parametrize(
    ("parameters", "code", "text"),
    [
        ({}, 403, "Topic deploy configure not changed!"),
        ({"numPartitions": 3, "acceptPublish": "maybe"}, 403, "Topic deploy configure not changed!"),
        (
            {"numPartitions": 2},
            407,
            (
                "Partition number less than before, new value is 2, current value is 3in "
                "brokerId-topicName(1:{topic}) record!"
            ),
        ),
        (
            {"numTopicStores": 1},
            407,
            (
                "TopicStores number less than before, new value is 1, current value is 2in "
                "brokerId-topicName(1:{topic}) record!"
            ),
        ),
    ],
)
def test_changes_of_a_topic_that_are_refused(ask, topic, parameters, code, text):
    answer = ask(method=MODIFY, topicName=topic, brokerId=1, **WHO, **parameters)
    assert answer == done(
        {"brokerId": 1, "topicName": topic, "code": code, "text": text.replace("{topic}", topic)}
    )


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (MODIFY, "Not found topic deploy configure for brokerId-topicName(1:nosuch)!"),
        *(
            (
                f"admin_{what}_topic_info",
                (
                    "Not found the topic nosuch's deploy configure in broker=1, please confirm the configure "
                    "first!"
                ),
            )
            for what in ("delete", "remove", "redo_deleted")
        ),
    ],
)
def test_changes_of_no_topic(ask, method, text):
    here = {"brokerId": 1, "topicName": "nosuch", "code": 401, "text": text}
    no_broker = "Not found broker configure record by brokerId=7, please create the broker's configure first!"
    there = {"brokerId": 7, "topicName": "nosuch", "code": 401, "text": no_broker}
    assert ask(method=method, topicName="nosuch", brokerId="1,7", **WHO) == done(here, there)


def test_the_end_of_a_topic(ask, deploy):
    name = deploy()

    def change(method, **properties):
        answer = ask(method=method, topicName=name, brokerId=1, **WHO, **properties)
        (item,) = answer["data"]
        assert set(item) == {"brokerId", "topicName", "success", "errCode", "errInfo"}
        return item["errCode"], item["errInfo"]

    def status():
        (item,) = ask(method="admin_query_topic_deploy_configure", topicName=name)["data"]
        return item["topicStatusId"]

    record = f"brokerId-topicName(1:{name})"
    open_still = "The values of acceptPublish and acceptSubscribe must be false before change status of"
    accepting = f"{open_still} {record}"
    assert change("admin_redo_deleted_topic_info") == (200, "Ok!")
    for method in ("admin_delete_topic_info", "admin_remove_topic_deploy_info"):
        assert change(method) == (406, f"{accepting} record!")
    assert change(MODIFY, acceptPublish=False) == (200, "Ok!")
    assert change("admin_delete_topic_deploy_info") == (406, f"{accepting} record!")
    assert change(MODIFY, acceptSubscribe=False) == (200, "Ok!")
    assert change("admin_remove_topic_info") == (406, f"Please softly deleted the {record} record first!")
    assert status() == 0
    assert change("admin_delete_topic_info") == (200, "Ok!")
    assert change("admin_delete_topic_info") == (200, "Ok!")
    assert status() == 1
    frozen = "Softly deleted record cannot be changed, please resume or hard remove for"
    assert change(MODIFY, unflushInterval=4) == (406, f"{frozen} {record} record!")
    assert change(MODIFY) == (403, "Topic deploy configure not changed!")
    deleted = f"Softly deleted record found for {record}, please resume or remove it first!"
    assert change("admin_add_topic_deploy_info") == (402, deleted)
    assert change("admin_redo_deleted_topic_info") == (200, "Ok!")
