"""What masters tell producers: where topics can be published."""

import pytest

from testkit.connections import opened
from tests.client.scripted_master import (
    FIRST,
    SECOND,
    ScriptedMaster,
    config_for,
    partition,
    producer_beat,
    producer_refused,
    producer_registered,
    token,
)
from tubemq_spark.client.master.producers import ProducerSession, fresh_visit_token
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import common_pb2

BEAT = Method.PRODUCER_HEARTBEAT


@pytest.fixture
def session(master, connections):
    with opened(ProducerSession(config_for(master), connections)) as session:
        yield session


def test_a_producer_learns_routes_and_limits(master, session):
    master.say(BEAT, producer_beat("demo#1:2:2,2:1:1#", "big#2:1:1#2097152"))
    run(session.publish(["demo", "big"]))

    assert session.routes("demo").partitions == {
        **{partition(1, number): FIRST for number in (0, 1, 10000, 10001)},
        partition(2, 0): SECOND,
    }
    assert session.routes("demo").max_message_bytes == 1 << 20
    assert session.routes("big").max_message_bytes == 2 << 20
    assert not session.routes("unknown").partitions
    (request,) = master.of(BEAT)
    assert list(request.topicList) == ["big", "demo"]
    assert request.brokerCheckSum == 11


@pytest.mark.parametrize(
    ("told", "limit"), [(None, 1 << 20), (5, 1 << 20), (4 << 20, 4 << 20), (1 << 30, 20 << 20)]
)
def test_the_clusters_limit_holds_within_reason(connections, told, limit):
    settings = common_pb2.ApprovedClientConfig(configId=3, maxMsgSize=told)
    with ScriptedMaster(producer_register=producer_registered(appdConfig=settings)) as master:
        with opened(ProducerSession(config_for(master), connections)) as session:
            assert session.routes("any").max_message_bytes == limit
            run(session.refresh())
        assert master.of(BEAT)[0].appdConfig.configId == 3


def test_routes_are_replaced_by_every_heartbeat(master, session):
    master.say(
        BEAT, producer_beat("demo#1:1:1#", "other#1:1:1#"), producer_beat("demo#1:2:1#"), producer_beat()
    )
    run(session.publish(["demo", "other"]))
    run(session.refresh())
    assert len(session.routes("demo").partitions) == 2
    assert not session.routes("other").partitions
    run(session.refresh())
    assert not session.routes("demo").partitions


def test_routes_stay_when_the_master_is_not_ready(master, session):
    master.say(BEAT, producer_beat("demo#1:1:1#"), producer_beat(errCode=201))
    run(session.publish(["demo"]))
    run(session.refresh())
    assert len(session.routes("demo").partitions) == 1


def test_a_changed_list_of_brokers_is_taken_over(master, session):
    moved = producer_beat("demo#1:1:1#", brokerCheckSum=12, brokerInfos=["1:10.9.9.9:8123"])
    master.say(BEAT, moved, producer_beat("demo#1:1:1#", brokerCheckSum=12))
    run(session.publish(["demo"]))
    run(session.refresh())

    assert session.routes("demo").partitions == {partition(1, 0): Endpoint("10.9.9.9", 8123)}
    assert [item.brokerCheckSum for item in master.of(BEAT)] == [11, 12]


def test_a_route_to_an_unknown_broker_is_left_out_and_its_address_asked_for(master, session):
    master.say(BEAT, producer_beat("demo#1:1:1,9:1:1#"))
    run(session.publish(["demo"]))
    assert session.routes("demo").partitions == {partition(1, 0): FIRST}
    run(session.refresh())
    assert [item.brokerCheckSum for item in master.of(BEAT)] == [11, -1]


def test_a_forgotten_producer_registers_again(master, session):
    master.say(BEAT, producer_refused(411), producer_beat("demo#1:1:1#"))
    run(session.publish(["demo"]))

    assert len(session.routes("demo").partitions) == 1
    assert [list(item.topicList) for item in master.of(Method.PRODUCER_REGISTER)] == [[], ["demo"]]


def test_producers_send_heartbeats_too(master, connections):
    with opened(ProducerSession(config_for(master, heartbeat_period_ms=5), connections)):
        master.wait_for(BEAT, 2)


def test_what_proves_to_a_broker_that_a_master_knows_us(master, connections):
    tokens = token(8, "from the master"), token(9, " ")
    master.say(BEAT, *(producer_beat(authorizedInfo=each) for each in tokens))
    session = ProducerSession(config_for(master), connections)
    assert session.broker_tokens == (-2, "")
    with opened(session):
        assert session.broker_tokens == (7, "")
        for number in (8, 9):
            run(session.refresh())
            assert session.broker_tokens == (number, "from the master")


def test_a_user_without_a_token_of_the_master_proves_itself_to_brokers(master, connections):
    tokens = token(8, " "), token(9, "mine")
    master.say(BEAT, *(producer_beat(authorizedInfo=each) for each in tokens))
    config = config_for(master, username="user", password="password")
    with opened(ProducerSession(config, connections)) as session:
        proofs = [session.broker_tokens[1]]
        run(session.refresh())
        proofs.append(session.broker_tokens[1])
        for proof in proofs:
            user, timestamp, nonce, signature = proof.split(" ")
            assert user == "user"
            assert signature == messages.sign("user", "password", int(timestamp), int(nonce))
        assert proofs[0] != proofs[1], "each heartbeat brings a new one"
        run(session.refresh())
        assert session.broker_tokens == (9, "mine")


def test_a_fresh_visit_token_costs_no_topic_and_no_group(master, connections):
    assert run(fresh_visit_token(config_for(master), connections)) == 7
    assert [method for method, _ in master.requests] == [Method.PRODUCER_REGISTER, Method.PRODUCER_CLOSE]
    assert not master.requests[0][1].topicList


def test_a_topic_that_was_withdrawn_is_in_no_later_heartbeat(master, session):
    run(session.publish(["demo"]))
    run(session.publish(["nowhere"]))
    session.withdraw("nowhere")
    run(session.refresh())
    asked = [list(request.topicList) for request in master.of(BEAT)]
    assert asked == [["demo"], ["demo", "nowhere"], ["demo"]]


def test_routes_are_asked_for_in_the_background(master, connections):
    with opened(ProducerSession(config_for(master), connections)) as session:
        run(session.publish(["demo"]))
        session.refresh_soon()
        master.wait_for(BEAT, 2)
    session.refresh_soon()
    assert len(master.of(BEAT)) == 2
