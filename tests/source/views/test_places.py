"""The views ``partitions`` and ``groups``: where partitions and consumer groups are."""

import dataclasses

import pytest

from testkit.connections import opened_connections
from tests.source.views.test_lag import move, picked
from tests.waiting import wait_until
from tubemq_spark.client.broker.session import BrokerSession, Claim
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import LocalProtocolError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.options import OptionSet
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.source.views.places import partition_rows


def all_picked(rows, *columns):
    return [picked(row, *columns) for row in rows]


def test_each_partition_has_a_row(view, server, send):
    send("plain", 2, 10_000, *"abc")
    rows = view("partitions", subscribe="plain")

    assert all_picked(rows, "topic", "brokerId", "store", "partition", "partitionsInStore") == [
        ("plain", broker_id, store, 10_000 * store, 1) for broker_id in (1, 2, 3) for store in (0, 1)
    ]
    assert {row["brokerId"]: row["broker"] for row in rows} == server.brokers
    assert {row["state"] for row in rows} == {"answers"}
    assert {row["error"] for row in rows} == {None}
    held = {(row["brokerId"], row["store"]): (row["earliest"], row["latest"], row["rows"]) for row in rows}
    assert held.pop((2, 1)) == (0, 84, 3)
    assert set(held.values()) == {(0, 0, 0)}


def test_partitions_of_one_store_share_its_rows(view, send):
    send("shared", 1, 0, *"ab")
    send("shared", 1, 1, *"cde")

    of_first_broker = [row for row in view("partitions", subscribe="shared") if row["brokerId"] == 1]
    assert all_picked(of_first_broker, "partition", "partitionsInStore", "latest", "rows") == [
        (0, 2, 140, 5),
        (1, 2, 140, 5),
    ]
    (assigned,) = view("partitions", assign='{"shared":["1:1"]}')
    assert (assigned["partition"], assigned["partitionsInStore"]) == (1, 2)


def test_records_that_are_not_flushed_are_told_apart(view, server, send):
    send("plain", 1, 0, *"abc")
    server.faults.stop_broker(1, graceful=True)
    server.faults.start_broker(1)
    send("plain", 1, 0, *"de")

    (row,) = view("partitions", assign='{"plain":["1:0"]}')
    assert (row["earliest"], row["latest"], row["flushedLatest"], row["rows"]) == (0, 140, 84, 5)


def test_records_that_retention_removed_are_not_counted(view, server, send):
    send("plain", 1, 0, *"abc")
    server.apply_retention("plain", older_than_ms=0)
    send("plain", 1, 0, "d")

    (row,) = view("partitions", assign='{"plain":["1:0"]}')
    assert (row["earliest"], row["latest"], row["rows"]) == (84, 112, 1)


def test_a_broker_that_is_away_hides_nothing_else(view, server, send):
    send("plain", 1, 0, "a")
    server.faults.stop_broker(2)
    rows = view("partitions", subscribe="plain")

    assert all_picked(rows, "brokerId", "state") == [
        (broker_id, "away" if broker_id == 2 else "answers") for broker_id in (1, 1, 2, 2, 3, 3)
    ]
    away = [row for row in rows if row["brokerId"] == 2]
    assert all(row["error"].startswith("[TUBEMQ_CONNECT") for row in away)
    assert {row["broker"] for row in away} == {server.brokers[2]}
    unknown = ("earliest", "latest", "flushedLatest", "rows")
    assert all_picked(away, *unknown) == [(None,) * 4] * 2
    assert all(None not in one for one in all_picked((row for row in rows if row["brokerId"] != 2), *unknown))


def test_a_broker_that_does_not_answer_in_time_is_away(view, server):
    server.faults.freeze_broker(3)
    rows = view("partitions", subscribe="shared", tubemq_rpcTimeoutMs="300")

    assert all_picked(rows, "brokerId", "state") == [
        *((1, "answers"), (1, "answers"), (2, "answers"), (2, "answers"), (3, "away"), (3, "away"))
    ]


def test_topics_may_be_found_by_a_pattern(view):
    rows = view("partitions", subscribePattern="pla.*|sha.*")
    assert {row["topic"] for row in rows} == {"plain", "shared"}
    assert view("partitions", subscribePattern="nothing.*") == []


@pytest.mark.parametrize(
    ("options", "condition", "words"),
    [
        ({"subscribe": "absent"}, "TUBEMQ_TOPIC_NOT_DEPLOYED", "absent"),
        ({"assign": '{"plain":["1:7"]}'}, "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS", "plain/1:7"),
        ({}, "TUBEMQ_NOTHING_SUBSCRIBED", "must be specified for the view 'partitions'"),
    ],
)
def test_an_unknown_topic_or_partition_is_an_error(view, options, condition, words):
    with pytest.raises(TubeMQError) as refused:
        view("partitions", **options)
    assert refused.value.condition == condition
    assert words in str(refused.value)


def test_partitions_are_those_of_topics():
    options = OptionSet.parse(
        {"tubemq.master.servers": "master:8715", "view": "partitions", "subscribe": "demo"}
    )
    with pytest.raises(LocalProtocolError, match="a view of no topics"):
        list(partition_rows(dataclasses.replace(options.for_view(), subscription=None)))


def test_an_option_without_effect_is_refused(view):
    with pytest.raises(TubeMQError) as refused:
        view("partitions", subscribe="plain", startingOffsets="earliest")
    assert "Option 'startingOffsets' has no effect in the view 'partitions'" in str(refused.value)


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
