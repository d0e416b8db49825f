"""Web calls about brokers; integration tests compare the answers with TubeMQ's, word for word."""

import pytest

from tests.embedded.web import TOKEN, ask, change
from tests.embedded.wire import MasterClient
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.controls import ClusterSetting
from tubemq_spark.errors import AdminError

ADD = "admin_add_broker_configure"
UPDATE = "admin_update_broker_configure"
ONLINE = "admin_online_broker_configure"
OFFLINE = "admin_offline_broker_configure"
SET = "admin_set_broker_read_or_write"
RELOAD = "admin_reload_broker_configure"
DELETE = "admin_delete_broker_configure"


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def master_admin(server):
    return MasterAdmin(server.master_web, token="abc")


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


def test_a_broker_set_up_anew_has_the_clusters_defaults(server):
    setting = ClusterSetting(broker_tls_port=9999, properties=TopicSpec(partitions=5, cache_mib=6))
    server._state.controls.set_cluster(setting, "me")
    assert change(server, ADD, brokerIp="127.0.0.1", numPartitions=4) == (200, "Ok!")
    item = setup(server)
    names = ("brokerTLSPort", "numPartitions", "memCacheMsgSizeInMB")
    assert [item[name] for name in names] == [9999, 4, 6]


def test_no_broker_can_be_made_that_does_not_run_here(server):
    code, text = change(server, ADD, brokerIp="127.0.0.9", brokerId=2)
    assert (code, text) == (407, "the embedded TubeMQ has no broker 2; the broker ids are: 1")
    codes = ask(server.master_web, method=OFFLINE, brokerId="2,1", **TOKEN)["data"]
    assert [(item["brokerId"], item["errCode"]) for item in codes] == [(1, 200), (2, 401)]


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([{"acceptPublish": False}], "only-read"),
        ([{"acceptSubscribe": 0}], "only-write"),
        ([{"isAcceptPublish": False}], "only-read"),
        ([{"isAcceptSubscribe": False, "acceptPublish": True}], "only-write"),
        ([{"acceptPublish": False, "acceptSubscribe": False}], "offline"),
        ([{"acceptPublish": False}, {"acceptSubscribe": False}], "offline"),
        ([{"acceptPublish": False, "acceptSubscribe": False}, {"acceptPublish": True}], "only-write"),
        ([{"acceptPublish": True}], "online"),
    ],
)
def test_opening_and_closing(server, steps, status):
    for step in steps:
        assert change(server, SET, brokerId=1, **step) == (200, "Ok!")
    assert setup(server)["manageStatus"] == status
    texts = {"online": "true true", "only-read": "false true", "only-write": "true false"}
    item = run_status(server)
    assert f"{item['acceptPublish']} {item['acceptSubscribe']}" == texts.get(status, "false false")


def test_producers_and_consumers_learn_of_it(server, closing):
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
    change(server, SET, brokerId=1, acceptPublish=False)
    assert (routes(), statuses()) == ([], ["1"])
    change(server, SET, brokerId=1, acceptPublish=True, acceptSubscribe=False)
    assert (len(routes()), statuses()) == (1, ["0"])
    assert server._state.catalog.version >= version + 2, "clients ask again"


def test_it_is_kept(start, tmp_path):
    server = start(data=tmp_path)
    change(server, UPDATE, brokerId=1, manageStatus="only-read", unflushInterval=77, brokerTLSPort=9999)
    server.close()
    again = setup(start(data=tmp_path))
    assert [again[name] for name in ("manageStatus", "unflushInterval", "brokerTLSPort")] == [
        "only-read",
        77,
        9999,
    ]
    assert (again["createUser"], again["modifyUser"]) == ("systemSelf", "me")


@pytest.mark.parametrize(
    ("method", "parameters", "code", "text"),
    [
        (OFFLINE, {}, 407, "cannot reverse manageStatus from draft to offline for the broker(brokerId=1)!"),
        (SET, {"acceptPublish": True}, 405, "The broker configure under draft status, please online first!"),
        (RELOAD, {}, 406, "is not in online status, can't reload this configure! "),
        (UPDATE, {"manageStatus": "only-read"}, 407, "cannot reverse manageStatus from draft to only-read"),
        (UPDATE, {"numPartitions": 2}, 200, "Ok!"),
        (ONLINE, {}, 200, "Ok!"),
    ],
)
def test_a_draft_can_only_go_online(server, method, parameters, code, text):
    change(server, ADD, brokerIp="127.0.0.1", brokerId=1)
    got, info = change(server, method, brokerId=1, **parameters)
    assert got == code
    assert text in info


def test_defaults_are_within_this_servers_limits(server):
    for method, more in ((UPDATE, {}), (ADD, {"brokerIp": "127.0.0.1"})):
        code, text = change(server, method, brokerId=1, numTopicStores=1001, **more)
        assert code == 407
        assert "stores is 1001" in text


def test_deleting_the_broker_takes_several_steps(server, master_admin, start):
    assert change(server, RELOAD, brokerId=1) == (200, "Ok!")
    assert change(server, DELETE, brokerId=1)[0] == 406
    assert change(server, OFFLINE, brokerId=1) == (200, "Ok!")
    code, text = change(server, DELETE, brokerId=1, isReservedData="true")
    assert code == 404
    assert text.endswith("the broker(1)'s topic deploy configure uncleaned, please delete them first!")
    master_admin.delete_topic("demo", [1])
    master_admin.remove_topic("demo", [1])
    assert change(server, DELETE, brokerId=1) == (200, "Ok!")
    assert change(server, DELETE, brokerId=1) == (200, "Success")
    for method in ("admin_query_broker_configure", "admin_query_broker_run_status"):
        assert ask(server.master_web, method=method)["data"] == []
    assert ask(server.master_web, method="admin_query_broker_topic_config_info")["data"] == []
    code, text = change(server, "admin_add_topic_deploy_info", topicName="demo", brokerId=1)
    assert code == 401
    master_admin.add_broker(1, "127.0.0.1", 8123, 8081)
    master_admin.online_broker(1)
    master_admin.add_topic("demo", [1])
    assert master_admin.accepts_publish("demo")


def test_a_broker_that_stopped_after_errors_is_released(server):
    server._state.reads.stop()
    server._state.writes.stop()
    method = {"method": "admin_release_broker_autoforbidden_status", "relReason": "mended", **TOKEN}
    assert ask(server.master_web, **method, brokerId="7")["result"]
    assert server._state.reads.stopped
    answer = ask(server.master_web, **method, brokerId="1")
    assert answer == {"result": True, "errCode": 0, "errMsg": "OK", "data": []}
    assert not server._state.reads.stopped
    assert not server._state.writes.stopped
