"""The broker's web calls give the same on both servers: shapes, numbers that must be equal, refusals."""

import contextlib
import itertools
import time

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.admin_answers import shape
from integration_tests.rig.raw_client import RawClient
from tubemq_spark.errors import AdminError

HISTORY_TOPIC = "__offset_history__"
HISTORY_BYTES = 28
BOOKING_TIMEOUT_S = 10.0

_numbers = itertools.count()


def answered(field, count, item):
    """Return the shape of a usual answer with its list."""
    return {"result": bool, "errCode": int, "errMsg": str, field: [item], count: int}


@pytest.fixture
def call(server):
    return server.broker_admin.call


@pytest.fixture
def refused(server):
    def refusal(method, **parameters):
        """Make a call that must fail; return its code and text."""
        with pytest.raises(AdminError) as raised:
            server.broker_admin.call(method, **parameters)
        return raised.value.code, raised.value.reason

    return refusal


@pytest.fixture
def group():
    return f"admin_{time.time_ns()}_{next(_numbers)}"


@pytest.fixture
def topic(server):
    return server.fresh_topic()


@pytest.fixture
def consumer(server, topic, group):
    """A consumer that fetched five messages of the topic and confirmed none; it is booked by the broker."""
    with contextlib.ExitStack() as stack:
        name = f"{group}_127.0.0.1-1-2-3-Balance-3.9"
        client = stack.enter_context(RawClient(server.broker, topic, group, name))
        for number in range(5):
            assert client.send(b"%03d" % number).success
        client.register(qryPriorityId=303)
        assert len(client.fetch().messages) == 5
        wait_until(
            lambda: server.broker_admin.call("admin_query_offset", groupName=group)["dataSet"],
            timeout_s=BOOKING_TIMEOUT_S,
            what="the broker to book the group",
        )
        yield client
        client.unregister()


def position(server, topic, group):
    answer = server.broker_admin.call(
        "admin_query_group_offset", topicName=topic, groupName=group, partitionId=0, requireRealOffset=True
    )
    return answer["zkOffset"]


# --- what calls there are


def test_the_version(call):
    answer = call("admin_query_server_version")
    assert (answer["errMsg"], shape(answer["data"])) == ("Ok", [{"version": str}])


def test_the_list_of_calls(call):
    answer = call("admin_get_methods")
    assert shape(answer) == answered("dataSet", "totalCnt", {"method": str, "needAuth": bool})
    assert {
        "admin_get_methods",
        "admin_get_partition_reginfo",
        "admin_query_group_offset",
        "admin_query_offset",
        "admin_query_pubinfo",
        "admin_query_server_version",
    } <= {item["method"] for item in answer["dataSet"]}


# --- where groups stand


@pytest.mark.usefixtures("consumer")
def test_where_one_group_stands(server, call, topic, group):
    parameters = {"topicName": topic, "groupName": group, "partitionId": 0}
    plain = {
        "result": True,
        "errCode": 0,
        "errMsg": "OK!",
        "tmpOffset": 140,
        "minOffset": 0,
        "maxOffset": 140,
        "minDataOffset": 0,
        "maxDataOffset": 275,
    }
    assert call("admin_query_group_offset", **parameters) == plain
    real = {"zkOffset": 0, "curReadDataOffset": 275, "curRdDltDataOffset": 0}
    assert call("admin_query_group_offset", **parameters, dko="true") == {**plain, **real}
    stranger = call("admin_query_group_offset", **{**parameters, "groupName": f"{group}_x", "dko": 1})
    assert stranger == {
        **plain,
        "tmpOffset": 0,
        "zkOffset": 0,
        "curReadDataOffset": -1,
        "curRdDltDataOffset": -1,
    }
    # Until this group connects, a Java broker refuses questions about all groups.
    with RawClient(server.broker, topic, f"{group}_x", "client-2") as client:
        assert client.register().success


@pytest.mark.usefixtures("consumer")
def test_where_groups_stand_everywhere(call, topic, group):
    answer = call("admin_query_offset", groupName=f"{group},nobody")
    offset = {
        "partitionId": 0,
        "curOffset": 0,
        "flightOffset": 140,
        "curDataOffset": 275,
        "offsetLag": 140,
        "dataLag": 0,
        "offsetMax": 140,
        "dataMax": 275,
    }
    info = [{"topicName": topic, "offsets": [offset], "partCount": 1}]
    assert answer == {
        "result": True,
        "errCode": 0,
        "errMsg": "Success!",
        "dataSet": [{"groupName": group, "subInfo": info, "topicCount": 1}],
        "totalCnt": 1,
    }
    nowhere = call("admin_query_offset", groupName=group, topicName="nosuch")["dataSet"]
    assert nowhere == [{"groupName": group, "subInfo": [], "topicCount": 0}]


# --- the history


def test_the_historys_topic(call, refused, server):
    with RawClient(server.broker, HISTORY_TOPIC) as client:
        answer = client.send()
    text = f"topicName {HISTORY_TOPIC} does not allow producers to send data!"
    assert (answer.errCode, answer.errMsg) == (403, text)
    answer = call("admin_query_group_offset", topicName=HISTORY_TOPIC, groupName="nobody", partitionId=9)
    assert answer["maxOffset"] % HISTORY_BYTES == 0
    text = "Invalid parameter: not found the store by topicName!"
    assert refused(
        "admin_query_group_offset", topicName=HISTORY_TOPIC, groupName="nobody", partitionId=10
    ) == (400, text)


# --- refusals


def missing(name):
    return f"Parameter {name} is missing or value is blank!"


ONE = {"topicName": "TOPIC", "groupName": "gg", "partitionId": 0}
NUMBER_RULE = "must only contain numbers"
TOPIC_RULE = "must begin with a letter, can only contain English letters, numbers, and underscores"
GROUP_RULE = "must begin with a letter, can only contain English letters, numbers, hyphens, and underscores"


@pytest.mark.parametrize(
    ("method", "usual", "changed", "code", "text"),
    [
        ("nosuch", {}, {}, 400, "Unsupported method nosuch"),
        ("admin_query_group_offset", ONE, {"topicName": ""}, 400, missing("topicName")),
        ("admin_query_group_offset", ONE, {"groupName": " "}, 400, missing("groupName")),
        ("admin_query_group_offset", ONE, {"partitionId": ""}, 400, missing("partitionId")),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "1st"},
            400,
            f"illegal value for topicName, value {TOPIC_RULE}",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "t" * 65},
            400,
            "over max length for topicName, only allow 64 length",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"groupName": "g.1"},
            400,
            f"illegal value for groupName, value {GROUP_RULE}",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"partitionId": "x"},
            400,
            f"illegal value for partitionId, value {NUMBER_RULE}",
        ),
        ("admin_query_group_offset", ONE, {"partitionId": -1}, 400, "Parameter partitionId value must >= 0"),
        (
            "admin_query_group_offset",
            ONE,
            {"partitionId": 1},
            400,
            "Invalid parameter: not found the store by topicName!",
        ),
        (
            "admin_query_group_offset",
            ONE,
            {"topicName": "nosuch"},
            400,
            "Invalid parameter: not found the topicName configure!",
        ),
    ],
)
def test_refusals(refused, empty_topic, method, usual, changed, code, text):
    parameters = {
        name: str(value).replace("TOPIC", empty_topic) for name, value in {**usual, **changed}.items()
    }
    assert refused(method, **parameters) == (code, text.replace("TOPIC", empty_topic))


@pytest.fixture(scope="module")
def empty_topic(server):
    """A topic without messages, one for all refusals."""
    return server.fresh_topic()
