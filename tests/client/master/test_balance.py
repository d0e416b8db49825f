"""What masters tell consumers: where partitions are to be read."""

import pytest

from testkit.connections import opened
from tests.client.scripted_master import FIRST, SECOND, balance, config_for, meta, partition
from tubemq_spark.errors import RemoteProtocolError, RpcError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.protocol.constants import Method

META = Method.BALANCE_PARTITION_META


@pytest.fixture
def session(master, connections):
    with opened(balance(config_for(master), connections)) as session:
        yield session


def test_the_layout_names_every_partition_and_its_broker(master, session):
    master.say(META, meta("demo#1:2:3:1,2:1:1:0", "other#2:1:2:1"))
    layout = run(session.layout())

    assert layout.partitions == {
        **{partition(1, number): FIRST for number in (0, 1, 2, 10000, 10001, 10002)},
        partition(2, 0): SECOND,
        partition(2, 0, "other"): SECOND,
        partition(2, 1, "other"): SECOND,
    }
    assert layout.not_subscribable == {partition(2, 0)}


def test_lists_that_did_not_change_are_not_sent_again(master, session):
    def answer(request):
        news = request.topicMetaInfoId != 9
        return meta(*(["demo#1:1:1:1"] if news else []), meta_id=9)

    master.say(META, answer)
    layouts = [run(session.layout()) for _ in range(3)]

    asked = [(item.brokerConfigId, item.topicMetaInfoId) for item in master.of(META)]
    assert asked == [(5, -2), (5, 9), (5, 9)]
    assert layouts[0] == layouts[1] == layouts[2]


def test_a_list_that_changes_alone_changes_the_layout(master, session):
    moved = {"brokerConfigId": 6, "brokerConfigList": ["1:10.9.9.9:8123"]}
    master.say(META, meta("demo#1:1:1:1"), meta(**moved), meta("demo#1:1:2:1", meta_id=10, brokerConfigId=6))
    layouts = [dict(run(session.layout()).partitions) for _ in range(3)]

    there = Endpoint("10.9.9.9", 8123)
    assert layouts == [
        {partition(1, 0): FIRST},
        {partition(1, 0): there},
        {partition(1, 0): there, partition(1, 1): there},
    ]


def test_brokers_that_come_with_the_layout_count_at_once(master, session):
    master.say(META, meta("demo#3:1:1:1", brokerConfigId=6, brokerConfigList=["3:10.1.2.12: "]))
    assert run(session.layout()).partitions == {partition(3, 0): Endpoint("10.1.2.12", 8123)}


def test_a_broker_that_is_not_listed_is_asked_for(master, session):
    master.say(META, meta("demo#3:1:1:1"), meta("demo#3:1:1:1", brokerConfigList=["3:10.1.2.12: "]))
    assert run(session.layout()).partitions == {partition(3, 0): Endpoint("10.1.2.12", 8123)}

    again = master.of(META)[1]
    assert (again.brokerConfigId, again.topicMetaInfoId) == (-2, -2)


def test_a_broker_that_is_never_listed_is_an_error(master, session):
    master.say(META, meta("demo#3:1:1:1"))
    with pytest.raises(RemoteProtocolError, match=r"\[3\]"):
        run(session.layout())


def test_a_broker_that_left_the_list_is_forgotten(master, session):
    master.say(
        META,
        meta("demo#1:1:1:1,2:1:1:1"),
        meta(brokerConfigId=6, brokerConfigList=["1:10.1.2.10: "]),
        meta(brokerConfigId=6),
    )
    assert run(session.layout()).partitions == {partition(1, 0): FIRST, partition(2, 0): SECOND}
    with pytest.raises(RemoteProtocolError, match=r"\[2\]"):
        run(session.layout())


def test_a_layout_is_asked_again_after_the_master_forgot_us(master, session):
    master.say(META, meta(code=411), meta("demo#1:1:1:1"))
    assert run(session.layout()).partitions == {partition(1, 0): FIRST}
    assert len(master.of(Method.BALANCE_REGISTER)) == 2


def test_a_layout_that_is_refused_is_an_error(master, session):
    master.say(META, meta(code=400))
    with pytest.raises(RpcError) as caught:
        run(session.layout())
    assert caught.value.code == 400
