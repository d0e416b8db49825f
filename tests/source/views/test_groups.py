"""The view ``groups`` shows what brokers know of consumer groups, without disturbing anybody."""

from testkit.connections import opened_connections
from tests.source.views.test_lag import move, picked
from tests.waiting import wait_until
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import UNDEFINED


def test_each_group_has_a_row_per_partition(view, server, send):
    send("plain", 1, 0, *"abc")
    move(server, "billing", "plain", b1_0=28, b2_10000=0)
    move(server, "audit", "plain", b1_0=84)
    rows = [row for row in view("groups", subscribe="plain") if row["group"] in ("billing", "audit")]

    columns = ("group", "topic", "brokerId", "partition", "rows", "offset", "latest", "state")
    assert [picked(row, *columns) for row in rows] == [
        ("audit", "plain", 1, 0, 0, 84, 84, "answers"),
        ("billing", "plain", 1, 0, 2, 28, 84, "answers"),
        ("billing", "plain", 2, 10_000, 0, 0, 0, "answers"),
    ]
    assert {row["consumer"] for row in rows} == {None}


def test_one_group_and_one_topic_may_be_asked_for(view, server, send):
    move(server, "billing", "plain", b1_0=0)
    move(server, "billing", "shared", b1_0=0)
    move(server, "audit", "plain", b1_0=0)

    assert {picked(row, "group", "topic") for row in view("groups", tubemq_group="billing")} == {
        ("billing", "plain"),
        ("billing", "shared"),
    }
    only = view("groups", tubemq_group="billing", subscribe="shared,nobody_has_it")
    assert [picked(row, "group", "topic", "error") for row in only] == [("billing", "shared", None)]
    assert view("groups", tubemq_group="billing", subscribe="nobody_has_it") == []


def test_the_groups_view_shows_the_consumer_and_the_rows_in_flight(view, server, send):
    send("plain", 1, 0, *"abc")
    partition = TopicPartition("plain", 1, 0)
    claim = Claim(partition, "billing", "client-7")
    config = ClientConfig((Endpoint.parse(server.master),), "billing")

    async def fetch(connections):
        session = BrokerSession(await connections.get(Endpoint.parse(server.brokers[1])), config, UNDEFINED)
        await session.start_register(claim, 28)
        return session, (await session.start_fetch(claim)).count

    async def unregister(session):
        await session.start_unregister(claim)

    with opened_connections() as connections:
        session, count = loop.run(fetch(connections))
        assert count == 2
        wait_until(lambda: view("groups", tubemq_group="billing"))
        (row,) = view("groups", tubemq_group="billing")
        loop.run(unregister(session))

    assert picked(row, "rows", "rowsInFlight", "offset", "consumer") == (2, 2, 28, "client-7")


def test_a_broker_that_is_away_has_one_row(view, server):
    move(server, "billing", "plain", b1_0=0)
    server.faults.stop_broker(2)
    rows = view("groups", tubemq_group="billing")

    assert [picked(row, "brokerId", "group", "state") for row in rows] == [
        (1, "billing", "answers"),
        (2, None, "away"),
    ]
    assert rows[1]["error"].startswith("[TUBEMQ_ADMIN_NO_ANSWER]")
