"""The web calls about groups that are online."""

import time

import pytest

from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings

TOKEN = {"confModAuthToken": "abc", "modifyUser": "me"}


@pytest.fixture
def server(start):
    settings = EmbeddedSettings(balance_period_ms=10)
    return start(topics={"demo": (2, 1), "other": (1, 1)}, settings=settings)


def take_part(members, client="one", group="balanced", **fields):
    """Join a server-balanced group, and take what the first event brings."""
    members.join_group(client, group, **fields)
    events = []

    def gets_partitions():
        answer = members.group_heartbeat(client, group, [])
        events.extend([answer.event] if answer.HasField("event") else [])
        return events

    wait_until(gets_partitions, 10)
    members.group_heartbeat(client, group, list(events[0].subscribeInfo), events[0])


def test_online_groups(web, members):
    members.join_group("one", "balanced", ["demo", "other"])
    members.join_group("two", "balanced", ["demo", "other"])
    members.register_consumer("three", "own", ["demo"])
    both = {"consumeGroup": "balanced", "topicSet": ["demo", "other"], "consumerNum": 2}
    own = {"consumeGroup": "own", "topicSet": ["demo"], "consumerNum": 1}
    for wish, found in (
        ({}, [both, own]),
        ({"groupName": "own"}, [own]),
        ({"consumeGroup": "own,nosuch"}, [own]),
        ({"topicName": "other"}, [both]),
        ({"topicName": "other", "groupName": "own"}, []),
    ):
        answer = web("admin_query_sub_info", **wish)
        assert (answer["data"], answer["count"]) == (found, len(found))


def test_details_of_a_balanced_group(server, web, members):
    take_part(members, topicCondition=["demo#b,a"])
    members.join_group("two", "balanced", topicCondition=["demo#b,a"])
    answer = web("admin_query_consume_group_detail", groupName="balanced")
    parts = [
        {"partId": number, "brokerAddr": f"1:{server.broker}", "topicName": "demo"} for number in (0, 10000)
    ]
    common = {"receivedFrom": "", "isOverTLS": False}
    assert answer == {
        "result": True,
        "errCode": 0,
        "errMsg": "OK",
        "count": 2,
        "topicSet": ["demo"],
        "consumeGroup": "balanced",
        "re-rebalance": {},
        "isBandConsume": "unbound",
        "rebInfo": {
            "isRebalanced": True,
            "checkPasted": True,
            "defBClientRate": 1000,
            "confBClientRate": -2,
            "curBClientRate": 1,
        },
        "filterConds": {"demo": ["a", "b"]},
        "data": [
            {"consumerId": "one", **common, "parCount": 2, "parInfo": parts},
            {"consumerId": "two", **common, "parCount": 0, "parInfo": []},
        ],
    }


def test_details_of_a_bound_group(web, members):
    bound = {"requireBound": True, "sessionKey": "k", "totalCount": 2, "selectBig": False}
    members.join_group("one", "grp", **bound, requiredPartition="1:demo:0=56")
    answer = web("admin_query_consume_group_detail", consumeGroup="grp")
    assert answer["isBandConsume"] == "bound"
    assert answer["isNotAllocate"] is True
    assert (answer["sessionKey"], answer["isSelectBig"]) == ("k", False)
    assert (answer["reqSourceCount"], answer["curSourceCount"]) == (2, 1)
    assert answer["rebInfo"] == {"isRebalanced": False}
    (one,) = answer["data"]
    assert one["initReSetPartCount"] == 1
    assert one["initReSetPartInfo"] == [{"partitionKey": "1:demo:0", "Offset": 56}]
    time.sleep(0.05)
    assert web("admin_query_consume_group_detail", group="grp")["rebalanceCheckTime"] > 0


def test_details_of_a_group_that_balances_itself(web, members):
    members.register_consumer("one", "own", source_count=3, node_id=2)
    members.consumer_heartbeat("one", "own", reportSubInfo=True, partSubInfo=["demo#1:10000"])
    answer = web("admin_query_consume_group_detail", groupName="own")
    assert answer["isBandConsume"] == "client-rebalance"
    assert answer["topicMetaId"] == members.layout("one", "own").topicMetaInfoId
    assert answer["metaDetails"] == ["demo#1:2:1:1"]
    (one,) = answer["data"]
    assert (one["sourceCount"], one["nodeId"], one["parCount"]) == (3, 2, 1)
    assert one["parInfo"][0]["partId"] == 10000


def test_an_unknown_group_has_no_members(web):
    answer = web("admin_query_consume_group_detail", groupName="nosuch")
    assert (answer["result"], answer["count"], answer["data"]) == (True, 0, [])
    assert answer["isBandConsume"] == "unbound"
    refused = web("admin_query_consume_group_detail")
    assert refused["errMsg"].endswith("is missing or value is blank!")


# --- on with the latest messages


def test_a_group_goes_on_with_the_latest_messages(web, members):
    members.register_consumer("one", "own")
    assert not members.consumer_heartbeat("one", "own").opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")
    answer = web("admin_set_client_balance_group_consume_from_max", **TOKEN, groupName="own,nosuch")
    assert answer["result"]
    order = members.consumer_heartbeat("one", "own").opsTaskInfo.csmFrmMaxOffsetCtrlId
    assert order > 0
    assert members.register_consumer("one", "own").opsTaskInfo.csmFrmMaxOffsetCtrlId == order
    done = members.register_consumer("one", "own", opsTaskInfo={"csmFrmMaxOffsetCtrlId": order})
    assert not done.opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId"), "it has done so"
    assert not members.consumer_heartbeat("one", "own").opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")
    web("admin_set_client_balance_group_consume_from_max", **TOKEN, groupName="own")
    assert members.consumer_heartbeat("one", "own").opsTaskInfo.csmFrmMaxOffsetCtrlId > order


def test_only_groups_that_balance_themselves_can_consume_from_max(web, members):
    members.join_group("one", "balanced")
    answer = web("admin_set_client_balance_group_consume_from_max", **TOKEN, groupName="balanced")
    assert (answer["result"], answer["errMsg"]) == (
        False,
        "all consumer groups are not client balance groups",
    )
