"""Web calls on a server with three brokers: each call reaches the brokers that it names."""

import pytest

from tests.embedded.web import TOKEN, ask
from tests.embedded.wire import BrokerClient


@pytest.fixture
def server(start):
    return start(brokers=3)


def data(server, method, **parameters):
    answer = ask(server.master_web, method=method, **parameters)
    assert answer["result"], answer
    return answer["data"]


def change(server, method, **parameters):
    """Make a call that changes something; return the result of each item by broker id."""
    items = data(server, method, **TOKEN, **parameters)
    return {item["brokerId"]: item["errCode"] for item in items}


def test_the_views_show_all_brokers(server):
    setups = data(server, "admin_query_broker_configure")
    assert [(item["brokerId"], f"{item['brokerIp']}:{item['brokerPort']}") for item in setups] == list(
        server.brokers.items()
    )
    assert [f"{item['brokerIp']}:{item['brokerWebPort']}" for item in setups] == list(
        server.broker_webs.values()
    )
    assert len(data(server, "admin_query_broker_run_status")) == 3
    (two,) = data(server, "admin_query_broker_configure", brokerId=2)
    assert two["brokerIp"] == "127.0.0.2"
    (two,) = data(server, "admin_query_broker_run_status", brokerIp="127.0.0.2")
    assert two["brokerId"] == 2


def test_a_parameter_that_is_not_as_it_may_be_is_refused_though_no_broker_is_meant(server):
    answer = ask(server.master_web, method="admin_query_broker_configure", brokerId=7, manageStatus="odd")
    assert not answer["result"]
    assert "unknown broker manage status name odd" in answer["errMsg"]


def test_a_broker_that_was_given_up_is_not_running(server):
    server.faults.stop_broker(2, graceful=True)
    states = [item["runStatus"] for item in data(server, "admin_query_broker_run_status")]
    assert states == ["running", "-", "running"]


def test_topics_come_to_the_brokers_that_are_named(server):
    codes = change(server, "admin_add_new_topic_record", topicName="some", brokerId="1,3,7", numPartitions=2)
    assert codes == {1: 200, 3: 200, 7: 401}
    assert [list(server.topics_of(number)) for number in (1, 2, 3)] == [
        ["demo", "some"],
        ["demo"],
        ["demo", "some"],
    ]
    (topic,) = data(server, "admin_query_topic_info", topicName="some")
    assert [item["brokerId"] for item in topic["topicInfo"]] == [1, 3]
    assert (topic["infoCount"], topic["totalCfgNumPart"]) == (2, 4)
    (topic,) = data(server, "admin_query_cluster_topic_view", topicName="some")
    assert (topic["totalCfgBrokerCnt"], topic["totalCfgNumStore"], topic["totalRunNumPartCount"]) == (2, 2, 4)
    (topic,) = data(server, "admin_query_deployed_broker_ids", topicName="some")
    assert topic["brokerInfo"] == [1, 3]
    names = {item["brokerId"]: item["topicName"] for item in data(server, "admin_query_deployed_topics")}
    assert names == {1: ["demo", "some"], 2: ["demo"], 3: ["demo", "some"]}
    counts = {
        item["brokerId"]: item["partTotalCfgCnt"]
        for item in data(server, "admin_query_broker_topic_config_info")
    }
    assert counts == {1: 3, 2: 1, 3: 3}


def test_a_topic_is_changed_and_removed_on_one_broker(server):
    closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
    assert change(server, "admin_modify_topic_info", topicName="demo", brokerId=2, **closed) == {2: 200}
    assert not server.topics_of(2)["demo"].accept_publish
    assert server.topics_of(1)["demo"].accept_publish
    for step in ("admin_delete_topic_info", "admin_remove_topic_info"):
        assert change(server, step, topicName="demo", brokerId=2) == {2: 200}
    assert [list(server.topics_of(number)) for number in (1, 2, 3)] == [["demo"], [], ["demo"]]


def test_a_size_limit_holds_on_all_brokers(server):
    items = data(server, "admin_update_topic_control_info", **TOKEN, topicName="demo", maxMsgSizeInMB=3)
    assert items[0]["success"]
    assert [server.topics_of(number)["demo"].max_message_bytes for number in (1, 2, 3)] == [3 << 20] * 3


def test_one_broker_is_taken_offline(server):
    assert change(server, "admin_offline_broker_configure", brokerId="2,5") == {2: 200, 5: 401}
    states = [item["manageStatus"] for item in data(server, "admin_query_broker_configure")]
    assert states == ["online", "offline", "online"]
    (topic,) = data(server, "admin_query_topic_info", topicName="demo")
    assert [item["runInfo"]["acceptPublish"] for item in topic["topicInfo"]] == [True, False, True]
    assert topic["isSrvAcceptPublish"], "the others take it"


def test_a_broker_is_set_up_anew_by_its_id_or_its_address(server):
    add = "admin_add_broker_configure"
    assert change(server, add, brokerIp="127.0.0.2", brokerId=2, manageStatus="online") == {2: 200}
    assert change(server, add, brokerIp="127.0.0.3", manageStatus="online") == {3: 200}
    again = ask(server.master_web, method=add, **TOKEN, brokerIp="127.0.0.9", brokerId=2)
    assert "Duplicated broker configure record, query by brokerId : 2" in again["errMsg"]


def test_one_broker_is_released(server):
    for node in server._nodes:
        node.state.reads.stop()
    server.faults.stop_broker(3)
    answer = ask(
        server.master_web, method="admin_release_broker_autoforbidden_status", **TOKEN, brokerId="2,3,7"
    )
    assert answer["result"]
    assert server._nodes.get(1).state.reads.stopped
    assert not server._nodes.get(2).state.reads.stopped


def test_each_broker_tells_of_its_own_groups_and_topics(server):
    server.add_topic("some", brokers=[2])
    with BrokerClient(server.brokers[2], topic="some") as broker:
        broker.register()
    topics = [
        {item["topicName"] for item in ask(web, method="admin_query_pubinfo")["dataSet"]}
        for web in server.broker_webs.values()
    ]
    assert [("some" in names) for names in topics] == [False, True, False]
