"""The view ``partitions`` says where partitions are and what they hold, also while a broker is away."""

import dataclasses

import pytest

from tubemq_spark.errors import LocalProtocolError, TubeMQError
from tubemq_spark.options import OptionSet
from tubemq_spark.source.views.places import partition_rows


def picked(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def test_each_partition_has_a_row(view, server, send):
    send("plain", 2, 10_000, *"abc")
    rows = view("partitions", subscribe="plain")

    assert picked(rows, "topic", "brokerId", "store", "partition", "partitionsInStore") == [
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
    assert picked(of_first_broker, "partition", "partitionsInStore", "latest", "rows") == [
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

    assert picked(rows, "brokerId", "state") == [
        (broker_id, "away" if broker_id == 2 else "answers") for broker_id in (1, 1, 2, 2, 3, 3)
    ]
    away = [row for row in rows if row["brokerId"] == 2]
    assert all(row["error"].startswith("[TUBEMQ_CONNECT") for row in away)
    assert {row["broker"] for row in away} == {server.brokers[2]}
    unknown = ("earliest", "latest", "flushedLatest", "rows")
    assert picked(away, *unknown) == [(None,) * 4] * 2
    assert all(None not in one for one in picked((row for row in rows if row["brokerId"] != 2), *unknown))


def test_a_broker_that_does_not_answer_in_time_is_away(view, server):
    server.faults.freeze_broker(3)
    rows = view("partitions", subscribe="shared", tubemq_rpcTimeoutMs="300")

    assert picked(rows, "brokerId", "state") == [
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
