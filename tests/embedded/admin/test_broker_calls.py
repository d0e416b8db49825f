"""The broker's web calls: same names, JSON and error texts as TubeMQ's."""

import pytest

from tests.embedded.web import ask
from tubemq_spark.client.metadata.admin import BrokerAdmin


@pytest.fixture
def broker_admin(server):
    return BrokerAdmin(server.broker_web)


def test_pubinfo_knows_open_stores_only(server, broker_admin, connect):
    assert broker_admin.pubinfo() == {}
    connect(server).send(b"x", b"y", partition_id=10_001)
    info = broker_admin.pubinfo()
    assert set(info) == {("demo", 10_000), ("demo", 10_001), ("demo", 10_002)}
    assert set(info.values()) == {(0, 56)}
    assert broker_admin.message_count("demo") == 2
    assert broker_admin.pubinfo(["nosuch"]) == {}
    answer = ask(server.broker_web, method="admin_query_pubinfo")
    (topic,) = answer["dataSet"]
    assert (answer["errMsg"], answer["dataCount"], topic["itemCount"]) == ("Success!", 1, 3)
    assert topic["offsetInfo"][0]["dataMax"] == 2 * 53


def test_group_offset_opens_the_store_and_makes_a_record_when_asked(server, broker_admin):
    answer = broker_admin.group_offset("demo", "gg", 2)
    expected = {"tmpOffset", "minOffset", "maxOffset", "minDataOffset", "maxDataOffset"}
    assert set(answer) == {"result", "errCode", "errMsg", *expected}
    assert {answer[name] for name in expected} == {0}
    assert broker_admin.committed_offsets("gg") == {}
    assert broker_admin.group_offset("demo", "gg", 2, real_offset=True)["zkOffset"] == 0
    assert broker_admin.committed_offsets("gg") == {("demo", 2): 0}


def test_query_offset(server, broker_admin, connect):
    client = connect(server)
    client.send(b"x", b"y", b"z")
    client.register()
    client.fetch()
    client.commit()
    client.send(b"more")
    client.fetch()
    assert broker_admin.committed_offsets("group") == {("demo", 0): 84}
    answer = ask(server.broker_web, method="admin_query_offset", groupName="group,other", topicName="demo")
    (group,) = answer["dataSet"]
    held, _, _, other, *_ = group["subInfo"][0]["offsets"]
    assert (held["curOffset"], held["flightOffset"], held["dataMax"]) == (84, 28, 3 * 53 + 56)
    assert (other["partitionId"], other["curOffset"], other["offsetMax"]) == (10_000, -2, -2)
    (elsewhere,) = ask(server.broker_web, method="admin_query_offset", topicName="other")["dataSet"]
    assert (elsewhere["subInfo"], elsewhere["topicCount"]) == ([], 0)
