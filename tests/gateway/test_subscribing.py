"""Sessions that are members of their group: the master gives them partitions, and events tell which."""

import contextlib
import dataclasses

import pytest

from tests.gateway.fleet import ROW, fetch, fleet_of, place, values_of
from tests.gateway.running import PlainClient, refused
from tests.gateway.test_streaming import Consuming
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.values import partition_from_proto

QUICK = {"poll_ms": 20}


@pytest.fixture
def server():
    settings = EmbeddedSettings(balance_period_ms=50)
    with EmbeddedTubeMQ(topics={"demo": (1, 1), "other": (1, 1)}, brokers=3, settings=settings) as running:
        yield running


@pytest.fixture
def fleet(server, monkeypatch):
    """Members hear of their partitions by heartbeats, and repeat what they hold after a minute."""
    usual = GatewaySettings.client_config

    def quick(settings):
        config = usual(settings)
        consumer = dataclasses.replace(config.consumer, report_interval=1_000)
        return dataclasses.replace(config, heartbeat_period_ms=50, consumer=consumer)

    monkeypatch.setattr(GatewaySettings, "client_config", quick)
    with fleet_of(server, **QUICK) as fleet:
        yield fleet


@contextlib.contextmanager
def member(fleet, name, epoch=1, **asked):
    with PlainClient(fleet.served.address, name, epoch) as client:
        client.open(consume_position="first")
        client("Subscribe", **{"topics": ["demo"], **asked})
        yield client


class Told:
    """What the events of a session say, in their order."""

    def __init__(self, client):
        self._client = client
        self._seen = 0
        self.partitions = set()

    def look(self):
        for event in self._client("Heartbeat", seen=self._seen).events:
            self._seen = event.number
            if event.WhichOneof("event") == "partitions_changed":
                self.partitions = {
                    partition_from_proto(one.partition) for one in event.partitions_changed.partitions
                }
        return self.partitions


def shared(*told):
    """Whether all three partitions are held, each by one, as the members were told."""
    held = [one for each in told for one in each.look()]
    return len(held) == len(set(held)) == 3 and all(each.partitions for each in told)


def test_a_member_is_told_its_partitions_and_reads_them(fleet):
    with member(fleet, "first") as client:
        told = Told(client)
        wait_until(lambda: len(told.look()) == 3, 20)
        (seen,) = client("ListMembers").members
        assert [(one.topic, one.partition_id) for one in seen.partitions] == [("demo", 0)] * 3
        fleet.publish("demo", b"one", broker_id=2)
        answer = fetch(client)
        assert (values_of(answer), answer.partition) == ([b"one"], place("demo", 2))
        assert client("Commit", batch=answer.batch).offset == ROW
        assert client("Commit", batch=answer.batch).offset == ROW, "a repeat"


def test_a_member_that_is_refused_a_seek_keeps_the_partition_and_its_batch(fleet):
    with member(fleet, "first") as client:
        told = Told(client)
        wait_until(lambda: shared(told), 20)
        fleet.publish("demo", b"one")
        stream = Consuming(client)
        batch = stream.next()
        assert stream.seek(batch.partition, 0).error.condition == "TUBEMQ_GATEWAY_REQUEST"
        assert stream.commit(batch.batch).position.offset == ROW
        stream.finish()
        assert shared(told)


def test_members_of_two_gateways_share_and_closing_leaves_the_group(server, fleet):
    with fleet_of(server, **QUICK) as other, member(fleet, "first") as first:
        ones = Told(first)
        wait_until(lambda: shared(ones), 20)
        with member(other, "second") as second:
            twos = Told(second)
            wait_until(lambda: shared(ones, twos), 20)
            second("CloseSession")
            wait_until(lambda: shared(ones), 20)


def test_a_member_goes_on_at_another_gateway_at_once(server, fleet):
    """The first gateway dies without a word: nothing of it reaches a server any more."""
    with fleet_of(server, **QUICK) as other, member(fleet, "moves") as client:
        told = Told(client)
        wait_until(lambda: shared(told), 20)
        fleet.publish("demo", b"one", b"two")
        assert len(values_of(fetch(client))) == 2
        loop.run(fleet.gateway._upstream._connections.close())
        with member(other, "moves", epoch=2) as moved:
            there = Told(moved)
            wait_until(lambda: shared(there), 20)
            assert values_of(fetch(moved)) == [b"one", b"two"], "it was not committed"


def test_an_equal_request_may_be_repeated_and_another_is_refused(fleet):
    with member(fleet, "twice") as client:
        told = Told(client)
        wait_until(lambda: len(told.look()) == 3, 20)
        again = client("Subscribe", topics=["demo"])
        assert len(again.partitions) == 3
        assert refused(client, "Subscribe", topics=["demo", "other"]).status == "INVALID_ARGUMENT"
        wanted = pb.AttachPartitionsRequest.Wanted(partition=place("demo"))
        assert refused(client, "AttachPartitions", partitions=[wanted]).condition == "TUBEMQ_GATEWAY_REQUEST"


def test_a_session_that_has_attached_partitions_cannot_subscribe(fleet):
    client = fleet.client("plain")
    wanted = pb.AttachPartitionsRequest.Wanted(partition=place("demo"))
    client("AttachPartitions", partitions=[wanted])
    assert refused(client, "Subscribe", topics=["demo"]).condition == "TUBEMQ_GATEWAY_REQUEST"


def test_a_bound_group_starts_at_the_offsets_that_its_members_name(fleet):
    fleet.publish("demo", b"one", b"two", b"three")
    start = pb.SubscribeRequest.BoundStart(
        session_key="once",
        source_count=1,
        offsets=[pb.PartitionOffset(partition=place("demo"), offset=2 * ROW)],
    )
    with member(fleet, "bound", start=start) as client:
        assert values_of(fetch(client)) == [b"three"]


def test_a_member_whose_topic_does_not_exist_is_refused_and_may_ask_for_another(fleet):
    client = fleet.client("plain")
    assert refused(client, "Subscribe", topics=["missing"]).error.code == 431
    client("Subscribe", topics=["demo"])
    client = fleet.client("others")
    assert refused(client, "Subscribe", topics=["missing"]).error.code == 431
    wanted = pb.AttachPartitionsRequest.Wanted(partition=place("demo"))
    (answer,) = client("AttachPartitions", partitions=[wanted]).partitions
    assert answer.WhichOneof("result") == "offset", answer


def test_a_session_that_reads_under_its_own_group_cannot_consume(fleet):
    """Nor can that of a client in another language, which would not have refused it."""
    wanted = pb.AttachPartitionsRequest.Wanted(partition=place("demo"))
    client = fleet.client("only", reader_groups=["only"])
    for error in (
        refused(client, "Subscribe", topics=["demo"]),
        refused(client, "AttachPartitions", partitions=[wanted]),
    ):
        assert error.end == ("INVALID_ARGUMENT", "TUBEMQ_GROUP_OF_READERS")


@pytest.mark.parametrize("count", [0, 1 << 31, (1 << 32) - 1])
def test_a_number_of_members_that_tubemq_cannot_take_is_refused(fleet, count):
    """Ours has 32 bits without a sign, and TubeMQ's one with."""
    node = pb.AttachPartitionsRequest.Node(source_count=count, node_id=(count or 1) - 1)
    start = pb.SubscribeRequest.BoundStart(session_key="run", source_count=count)
    client = fleet.client("plain")
    attach = refused(client, "AttachPartitions", partitions=[{"partition": place("demo")}], node=node)
    subscribe = refused(client, "Subscribe", topics=["demo"], start=start)
    assert [one.condition for one in (attach, subscribe)] == ["TUBEMQ_BAD_SETTING"] * 2
    assert [one.status for one in (attach, subscribe)] == ["INVALID_ARGUMENT"] * 2
