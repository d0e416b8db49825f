"""Web calls about topics; integration tests compare the answers with TubeMQ's, word for word."""

import threading

import pytest

from tests.embedded.web import TOKEN, ask, change
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.config.catalog import TopicSpec, TopicStatus
from tubemq_spark.embedded.config.controls import ClusterSetting, ConsumeControl, TopicControl


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def master_admin(server):
    return MasterAdmin(server.master_web, token="abc")


def test_a_topics_life(server, master_admin, connect):
    master_admin.add_topic(
        "fresh", [1], stores=2, partitions=2, deletePolicy="delete,10m", unflushThreshold=7
    )
    assert master_admin.accepts_publish("fresh")
    assert master_admin.topic_brokers("fresh") == {1}
    place = master_admin.published_topics()["fresh", 1]
    assert (place.stores, place.partitions, place.accepts_publish, place.accepts_subscribe) == (
        2,
        2,
        True,
        True,
    )
    spec = server.topics()["fresh"]
    assert (spec.retention_ms, spec.flush_messages) == (600_000, 7)
    connect(server).send(b"x", topic="fresh", partition_id=10_001)
    master_admin.modify_topic("fresh", [1], numPartitions=3)
    assert server.topics()["fresh"].partitions == 3
    master_admin.delete_topic("fresh", [1])
    assert not master_admin.accepts_publish("fresh")
    assert not master_admin.published_topics()["fresh", 1].accepts_subscribe
    assert master_admin.topic_brokers("fresh") == {1}
    master_admin.remove_topic("fresh", [1])
    assert master_admin.topic_info("fresh") == []
    assert not list((server.data / "stores").glob("fresh*"))
    master_admin.add_topic("fresh", [1])
    assert master_admin.accepts_publish("fresh")


def test_a_deletion_is_taken_back(server, master_admin, connect):
    connect(server).send(b"x")
    master_admin.delete_topic("demo", [1])
    assert connect(server).try_send().errCode == 403
    assert change(server, "admin_redo_deleted_topic_info", topicName="demo", brokerId=1) == (200, "Ok!")
    assert server.topics()["demo"] == TopicSpec(2, 3, accept_publish=False, accept_subscribe=False)
    master_admin.modify_topic("demo", [1], acceptPublish=True, acceptSubscribe=True)
    assert connect(server).send(b"y")[0].appendOffset == 28


def test_a_removed_topic_is_gone_at_once(server, master_admin):
    master_admin.delete_topic("demo", [1])
    for method in ("admin_remove_topic_info", "admin_redo_deleted_topic_info"):
        code = change(server, method, topicName="demo", brokerId=1)[0]
        assert code == {"admin_remove_topic_info": 200, "admin_redo_deleted_topic_info": 401}[method]


def test_several_topics_and_brokers_in_one_call(server):
    answer = ask(
        server.master_web,
        **TOKEN,
        method="admin_add_topic_deploy_info",
        topicName="demo,new1,new2",
        brokerId="2,1",
    )
    assert answer["result"], "although items failed"
    assert [(item["topicName"], item["brokerId"], item["errCode"]) for item in answer["data"]] == [
        ("demo", 1, 402),
        ("demo", 2, 401),
        ("new1", 1, 200),
        ("new1", 2, 401),
        ("new2", 1, 200),
        ("new2", 2, 401),
    ]


def test_a_new_topic_is_as_the_brokers_defaults_are(server, master_admin):
    defaults = {"numPartitions": 4, "memCacheMsgSizeInMB": 9, "deletePolicy": "delete,3", "acceptPublish": 0}
    assert change(server, "admin_update_broker_configure", brokerId=1, **defaults) == (200, "Ok!")
    server._state.controls.set_cluster(ClusterSetting(max_message_mb=3), "me")
    method = "admin_add_new_topic_record"
    assert change(server, method, topicName="fresh", brokerId=1, acceptPublish=1, memCacheMsgCntInK=5)
    assert server.topics()["fresh"] == TopicSpec(
        partitions=4, cache_mib=9, cache_k_messages=5, retention_ms=3 * 3_600_000, max_message_bytes=3 << 20
    )
    assert master_admin.topic_info("fresh")[0]["maxMsgSizeInMB"] == 3


@pytest.mark.parametrize(
    ("parameters", "text"),
    [({"numTopicStores": 1001}, "stores is 1001"), ({"numPartitions": 10_001}, "partitions is 10001")],
)
def test_limits_of_this_server(server, parameters, text):
    code, info = change(server, "admin_modify_topic_info", topicName="demo", brokerId=1, **parameters)
    assert code == 407
    assert text in info


def test_two_at_once_do_not_both_add_a_topic(server):
    codes = []

    def add():
        codes.append(change(server, "admin_add_topic_deploy_info", topicName="fresh", brokerId=1)[0])

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200] + [402] * 7


@pytest.mark.parametrize(
    ("retention_ms", "policy"),
    [
        (168 * 3_600_000, "delete,168h"),
        (90 * 60_000, "delete,90m"),
        (61_000, "delete,61s"),
        (1, "delete,1s"),
        (1001, "delete,2s"),
    ],
)
def test_ages_are_shown_in_the_largest_unit_that_fits(start, retention_ms, policy):
    server = start(topics={"demo": TopicSpec(retention_ms=retention_ms)})
    (item,) = MasterAdmin(server.master_web, token="abc").topic_info("demo")
    assert item["topicInfo"][0]["deletePolicy"] == policy


def test_who_changed_a_topic_is_kept(start, tmp_path):
    server = start(data=tmp_path)
    who = {"confModAuthToken": "abc", "modifyUser": "changer", "modifyDate": "20200102030405"}
    method = "admin_modify_topic_info"
    ask(server.master_web, method=method, topicName="demo", brokerId=1, unflushInterval=5, **who)
    server.close()
    (item,) = MasterAdmin(start(data=tmp_path).master_web, token="abc").topic_info("demo")
    (place,) = item["topicInfo"]
    assert (place["createUser"], place["modifyUser"]) == ("systemSelf", "changer")
    assert place["modifyDate"] == "20200102030405"


def test_closed_topics_still_have_their_numbers(server, master_admin):
    master_admin.modify_topic("demo", [1], acceptPublish=False, acceptSubscribe=False)
    (item,) = master_admin.topic_info("demo")
    closed = {
        "acceptPublish": False,
        "acceptSubscribe": False,
        "numPartitions": 3,
        "numTopicStores": 2,
        "brokerManageStatus": "online",
    }
    assert item["topicInfo"][0]["runInfo"] == closed
    assert (item["isSrvAcceptPublish"], item["totalRunNumPartCount"]) == (False, 6)
    (view,) = ask(server.master_web, method="admin_query_topic_broker_config_info")["data"]
    assert [view[f"{what}TotalRunCnt"] for what in ("broker", "store", "part")] == [0, 0, 0]


def test_queries_by_status_and_address(server, master_admin):
    master_admin.add_topic("other", [1])
    master_admin.delete_topic("other", [1])

    def found(**parameters):
        answer = ask(server.master_web, method="admin_query_topic_info", **parameters)
        return [item["topicName"] for item in answer["data"]]

    assert found() == ["demo", "other"]
    assert found(topicStatusId=int(TopicStatus.SOFT_DELETED)) == ["other"]
    assert found(brokerIp="127.0.0.1", brokerPort=server.broker.partition(":")[2], numPartitions=3) == [
        "demo"
    ]
    assert found(brokerIp="127.0.0.2") == found(numTopicStores=7) == []


def test_which_groups_may_have_a_topic(server):
    controls = server._state.controls
    controls.set_topic("demo", TopicControl(authorize=True), "boss", "20200101000000")
    date = "20200202000000"
    controls.set_consume("ga", "demo", ConsumeControl(filter=True, filter_conditions=("x", "y")), "me", date)
    controls.set_consume("gb", "demo", ConsumeControl(consume=False, disable_reason="why"), "me", date)
    controls.set_consume("gc", "other", ConsumeControl(), "me", date)
    (item,) = ask(server.master_web, method="admin_query_topic_info", topicName="demo")["data"]
    changed = {"modifyUser": "me", "modifyDate": date}
    assert item["authData"] == {
        "enableAuthControl": True,
        "createUser": "boss",
        "createDate": "20200101000000",
        "authConsumeGroup": [
            {"groupName": group, "createUser": "me", "createDate": date, **changed} for group in ("ga", "gb")
        ],
        "groupCount": 2,
        "authFilterCondSet": [
            {"groupName": "ga", "condStatus": 2, "filterConds": ",x,y,", "createDate": date, **changed},
            {"groupName": "gb", "condStatus": 0, "filterConds": "", "createDate": date, **changed},
        ],
        "filterCount": 2,
    }
    query = {"method": "admin_query_topic_deploy_info", "withGroupAuthInfo": "true"}
    (item,) = ask(server.master_web, **query)["data"]
    assert (item["enableAuthControl"], item["groupAuthCount"], item["createUser"]) == (True, 2, "boss")
    second = item["groupAuthInfo"][1]
    assert (second["consumeEnable"], second["disableCsmRsn"], second["filterConds"]) == (False, "why", "")
