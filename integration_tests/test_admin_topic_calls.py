"""The master's web calls about topics: word for word the same of the embedded server and of the Java one.

Only what the Java server does at once is asked for here: it publishes changes of topics half a minute later.
"""

import itertools

import pytest

from integration_tests.rig.admin_answers import PROPERTIES, STAMP, WHO, done, refused

MODIFY = "admin_modify_topic_info"

numbers = itertools.count()


@pytest.fixture
def deploy(ask):
    """Add topics that are removed again after the test."""
    added = []

    def add(**properties):
        name = f"admin_{next(numbers)}"
        answer = ask(method="admin_add_new_topic_record", topicName=name, brokerId=1, **WHO, **properties)
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
    (shown,) = ask(method="admin_query_topic_info", topicName=name)["data"]
    (item,) = shown["topicInfo"]
    assert [item[key] for key in PROPERTIES] == [
        *(2, 3, 0, 5, 6, 7, 8, 4009, False, True, "delete,10m", -2, "")
    ]
    assert [item[key] for key in STAMP if key != "serialId"] == [
        *(-2, "me", "20200102030405", "me", "20200102030405")
    ]


def test_adding_topics(ask, deploy):
    name, another = deploy(), f"admin_{next(numbers)}"
    assert ask(method="admin_add_new_topic_record", topicName=name, brokerId="7,1", **WHO) == done(
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
    no_user = {name: value for name, value in WHO.items() if name != "createUser"}
    answer = ask(method="admin_add_new_topic_record", topicName=another, brokerId=1, **no_user)
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
def test_changes_of_a_topic_that_are_refused(server, ask, parameters, code, text):
    topic = server.fresh_topic("2x3")
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
            for what in ("delete", "remove")
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
        (shown,) = ask(method="admin_query_topic_info", topicName=name)["data"]
        return shown["topicInfo"][0]["topicStatusId"]

    record = f"brokerId-topicName(1:{name})"
    open_still = "The values of acceptPublish and acceptSubscribe must be false before change status of"
    accepting = f"{open_still} {record}"
    for method in ("admin_delete_topic_info", "admin_remove_topic_info"):
        assert change(method) == (406, f"{accepting} record!")
    assert change(MODIFY, acceptPublish=False) == (200, "Ok!")
    assert change("admin_delete_topic_info") == (406, f"{accepting} record!")
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
    assert change("admin_add_new_topic_record") == (402, deleted)
