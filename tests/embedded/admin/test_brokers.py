"""Web calls about brokers; integration tests compare the answers with TubeMQ's, word for word."""

import threading

import pytest

from tests.embedded.web import TOKEN, ask, change
from tests.embedded.wire import MasterClient
from tubemq_spark.embedded.admin.brokers import BrokerSetup
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.controls import ClusterSetting
from tubemq_spark.errors import AdminError

ADD = "admin_add_broker_configure"


def setup(server):
    (item,) = ask(server.master_web, method="admin_query_broker_configure")["data"]
    return item


def run_status(server):
    (item,) = ask(server.master_web, method="admin_query_broker_run_status")["data"]
    return item


def test_the_master_is_active_and_the_broker_runs(server, master_admin):
    assert master_admin.is_active()
    assert master_admin.group_nodes() == {server.master: "Master"}
    status = master_admin.broker_run_status()
    assert (status[1].run_status, status[1].sub_status, status[1].is_online) == ("running", "idle", True)
    item = run_status(server)
    assert f"{item['brokerIp']}:{item['brokerPort']}" == server.broker
    assert f"{item['brokerIp']}:{item['brokerWebPort']}" == server.broker_web


def test_the_state_machine_of_a_broker_is_shown_when_asked_for(server):
    assert "BrokerRunStatusInfo" not in run_status(server)
    arguments = {"method": "admin_query_broker_run_status", "withDetail": True}
    (item,) = ask(server.master_web, **arguments)["data"]
    detail = item["BrokerRunStatusInfo"]
    version = server._state.catalog.version
    assert int(detail.pop("createId"))
    assert detail == {
        "type": "BrokerRunStatusInfo",
        "brokerInfo": f"1:{server.broker}",
        "curStepStatus": "idle",
        **dict.fromkeys(("isConfLoaded", "isOnline"), True),
        **dict.fromkeys(("isDoneDataLoad", "isDoneDataSub", "isDoneDataPub"), True),
        **dict.fromkeys(("isConfChanged", "isOverTLS"), False),
        **dict.fromkeys(("confChangeNo", "confLoadedNo"), version),
        **dict.fromkeys(("lastBrokerSyncTime", "curConfLoadTimeInMs"), version),
        **dict.fromkeys(("nextStepOpTimeInMills", "maxConfLoadedTimeInMs"), 0),
    }


def test_a_script_that_makes_a_cluster_can_set_the_broker_up(server, master_admin):
    assert setup(server)["createUser"] == "systemSelf"
    master_admin.add_broker(1, "127.0.0.1", 8123, 8081, numPartitions=3)
    assert (setup(server)["manageStatus"], setup(server)["numPartitions"]) == ("draft", 3)
    assert f"127.0.0.1:{setup(server)['brokerPort']}" == server.broker, "it knows its port itself"
    assert run_status(server)["runStatus"] == "-"
    (item,) = master_admin.topic_info("demo")
    assert item["topicInfo"][0]["runInfo"]["numPartitions"] == "-"
    assert not item["isSrvAcceptPublish"]
    master_admin.online_broker(1)
    assert master_admin.accepts_publish("demo")
    for address, text in (("127.0.0.1", "brokerIp : 127.0.0.1"), ("127.0.0.9", "brokerId : 1")):
        with pytest.raises(AdminError, match=f"Duplicated broker configure record, query by {text}"):
            master_admin.add_broker(1, address, 8123, 8081)


def test_the_id_may_be_left_to_the_master(server):
    parameters = {"brokerIp": "10.1.2.3", "manageStatus": "online", "regionId": 4, "groupId": 5}
    answer = ask(server.master_web, method=ADD, **TOKEN, **parameters)
    ok = {"success": True, "errCode": 200, "errInfo": "Ok!"}
    assert answer["data"] == [{"brokerId": 1, "brokerIp": "10.1.2.3", **ok}]
    assert [setup(server)[name] for name in ("manageStatus", "regionId", "groupId")] == ["online", 4, 5]


def test_a_new_broker_has_the_clusters_defaults(server):
    setting = ClusterSetting(broker_tls_port=9999, properties=TopicSpec(partitions=5, cache_mib=6))
    server._state.controls.set_cluster(setting, "me")
    assert change(server, ADD, brokerIp="127.0.0.1", numPartitions=4) == (200, "Ok!")
    item = setup(server)
    names = ("brokerTLSPort", "numPartitions", "memCacheMsgSizeInMB")
    assert [item[name] for name in names] == [9999, 4, 6]


def test_no_broker_can_be_made_that_does_not_run_here(server):
    code, text = change(server, ADD, brokerIp="127.0.0.9", brokerId=2)
    assert (code, text) == (407, "the embedded TubeMQ has no broker 2; the broker ids are: 1")
    codes = ask(server.master_web, method="admin_online_broker_configure", brokerId="2,1", **TOKEN)["data"]
    assert [(item["brokerId"], item["errCode"]) for item in codes] == [(1, 403), (2, 401)]


def test_a_broker_is_put_online_after_the_call_that_changes_it(server, monkeypatch):
    began, may_end, codes = threading.Event(), threading.Event(), []

    def refuse_second(*_):
        began.set()
        may_end.wait(10)

    def call(name, **parameters):
        codes.append(change(server, name, **parameters)[0])

    monkeypatch.setattr(BrokerSetup, "_refuse_second", refuse_second)
    adding = threading.Thread(target=call, args=[ADD], kwargs={"brokerIp": "127.0.0.1"})
    online = threading.Thread(target=call, args=["admin_online_broker_configure"], kwargs={"brokerId": 1})
    adding.start()
    assert began.wait(10)
    online.start()
    online.join(0.2)
    may_end.set()
    adding.join()
    online.join()
    assert (codes, setup(server)["manageStatus"]) == ([200, 200], "online")


def test_producers_and_consumers_learn_of_a_brokers_status(server, closing):
    def routes():
        client = closing.enter_context(MasterClient(server.master))
        client.register_producer()
        return list(client.producer_heartbeat(topics=["demo"]).topicInfos)

    def statuses():
        client = closing.enter_context(MasterClient(server.master))
        client.register_consumer()
        return [text[-1] for text in client.layout().topicMetaInfoList]

    version = server._state.catalog.version
    assert (len(routes()), statuses()) == (1, ["1"])
    change(server, ADD, brokerId=1, brokerIp="127.0.0.1", manageStatus="only-read")
    assert (routes(), statuses()) == ([], ["1"])
    assert server._state.catalog.version > version, "clients ask again"


def test_the_configuration_of_a_broker_is_kept(start, tmp_path):
    server = start(data=tmp_path)
    more = {"manageStatus": "only-read", "unflushInterval": 77, "brokerTLSPort": 9999}
    change(server, ADD, brokerId=1, brokerIp="127.0.0.1", **more)
    server.close()
    again = setup(start(data=tmp_path))
    assert [again[name] for name in ("manageStatus", "unflushInterval", "brokerTLSPort")] == [
        "only-read",
        77,
        9999,
    ]
    assert (again["createUser"], again["modifyUser"]) == ("me", "me")


def test_defaults_are_within_this_servers_limits(server):
    code, text = change(server, ADD, brokerId=1, brokerIp="127.0.0.1", numTopicStores=1001)
    assert code == 407
    assert "stores is 1001" in text
