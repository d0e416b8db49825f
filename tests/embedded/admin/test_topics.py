"""Web calls about topics; integration tests compare the answers with TubeMQ's, word for word."""

import threading

import pytest

from tests.embedded.web import TOKEN, ask, change
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.config.catalog import TopicSpec


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


def test_several_topics_and_brokers_in_one_call(server):
    answer = ask(
        server.master_web,
        **TOKEN,
        method="admin_add_new_topic_record",
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
        codes.append(change(server, "admin_add_new_topic_record", topicName="fresh", brokerId=1)[0])

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
