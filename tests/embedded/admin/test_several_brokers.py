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


def test_a_broker_that_was_given_up_is_not_running(server):
    server.faults.stop_broker(2, graceful=True)
    states = [item["runStatus"] for item in data(server, "admin_query_broker_run_status")]
    assert states == ["running", "-", "running"]


def test_a_topic_is_changed_and_removed_on_one_broker(server):
    closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
    assert change(server, "admin_modify_topic_info", topicName="demo", brokerId=2, **closed) == {2: 200}
    assert not server.topics_of(2)["demo"].accept_publish
    assert server.topics_of(1)["demo"].accept_publish
    for step in ("admin_delete_topic_info", "admin_remove_topic_info"):
        assert change(server, step, topicName="demo", brokerId=2) == {2: 200}
    assert [list(server.topics_of(number)) for number in (1, 2, 3)] == [["demo"], [], ["demo"]]


def test_a_broker_is_set_up_anew_by_its_id_or_its_address(server):
    add = "admin_add_broker_configure"
    assert change(server, add, brokerIp="127.0.0.2", brokerId=2, manageStatus="online") == {2: 200}
    assert change(server, add, brokerIp="127.0.0.3", manageStatus="online") == {3: 200}
    again = ask(server.master_web, method=add, **TOKEN, brokerIp="127.0.0.9", brokerId=2)
    assert "Duplicated broker configure record, query by brokerId : 2" in again["errMsg"]


def test_each_broker_tells_of_its_own_groups_and_topics(server):
    server.add_topic("some", brokers=[2])
    with BrokerClient(server.brokers[2], topic="some") as broker:
        broker.register()
    topics = [
        {item["topicName"] for item in ask(web, method="admin_query_pubinfo")["dataSet"]}
        for web in server.broker_webs.values()
    ]
    assert [("some" in names) for names in topics] == [False, True, False]
