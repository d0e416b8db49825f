"""The view ``lag`` says how far a query or a group is behind, and which of it cannot be known now."""

import dataclasses
import datetime

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.cli.stored_checkpoint import offset, store_checkpoint
from tests.waiting import wait_until
from tubemq_spark.client import ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import OffsetFormatError, OptionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

MINUTE = "202601010000"
MADE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
KAFKA = '{"demo":{"0":17}}'
FIRST_OF_PLAIN = '{"plain":["1:0"]}'


@pytest.fixture
def checkpoint(tmp_path):
    """Write the files of a query's micro-batches; return their folder."""
    return lambda *batches, **how: str(store_checkpoint(tmp_path, *batches, **how))


@pytest.fixture
def lag_of(view, checkpoint):
    """Return the row of one partition for a query that stands at these offsets."""

    def row(*batches, finished=None, first=0, **options):
        stands = checkpoint(*((end,) for end in batches), finished=finished, first=first)
        (found,) = view("lag", checkpointLocation=stands, assign=FIRST_OF_PLAIN, **options)
        return found

    return row


def by_place(rows):
    return {(row["brokerId"], row["partition"]): row for row in rows}


def picked(row, *columns):
    return tuple(row[column] for column in columns)


def test_rows_that_a_query_has_not_read_are_counted(view, checkpoint, send):
    send("plain", 1, 0, *"abcde", message_time=MINUTE)
    send("plain", 2, 10_000, *"ab")
    stands = offset("plain", b1_0=56, b1_10000=0, b2_0=0, b2_10000=56, b3_0=0, b3_10000=0)
    rows = by_place(view("lag", checkpointLocation=checkpoint((stands,))))

    assert len(rows) == 6
    behind = rows[1, 0]
    assert picked(behind, "rows", "rowsUntilExpiry", "rowsExpired", "rowsUnderWay") == (3, 2, 0, 0)
    assert picked(behind, "offset", "earliest", "latest") == (56, 0, 140)
    assert picked(behind, "source", "batch", "state", "error") == ("0", 0, "answers", None)
    assert behind["nextTime"] == MADE
    age = datetime.datetime.now(datetime.UTC) - MADE
    assert 0 <= age.total_seconds() - behind["ageSeconds"] < 60
    at_end = rows[2, 10_000]
    assert picked(at_end, "rows", "bytes", "nextTime", "ageSeconds", "rowsUntilExpiry") == (
        0,
        None,
        None,
        None,
        2,
    )


def test_bytes_are_those_of_the_log(lag_of, send):
    send("plain", 1, 0, *(b"x" * 1000 for _ in range(2000)), message_time=None)
    row = lag_of(offset("plain", b1_0=28 * 500))

    assert row["rows"] == 1500
    assert row["bytes"] == 1500 * (1000 + 52), "each with its header"


def test_no_message_is_read_when_no_column_needs_one(view, checkpoint, send, server):
    send("plain", 1, 0, *"ab")
    stands = checkpoint((offset("plain", b1_0=0),))
    fetches = server.faults.answer(Method.GET_MESSAGE, 500)
    wanted = StructType([StructField("rows", LongType()), StructField("error", StringType())])
    (row,) = view("lag", wanted, checkpointLocation=stands, assign=FIRST_OF_PLAIN)

    assert row == {"rows": 2, "error": None}
    assert fetches.hits == 0


def test_a_message_that_cannot_be_read_leaves_the_rest(lag_of, send, server):
    send("plain", 1, 0, *"ab")
    server.faults.answer(Method.GET_MESSAGE, 500, "unreadable")
    row = lag_of(offset("plain", b1_0=0), tubemq_rpcTimeoutMs="500")
    assert picked(row, "rows", "bytes", "nextTime", "state") == (2, None, None, "answers")
    assert "unreadable" in row["error"]


def test_a_broker_that_limits_its_readers_is_not_waited_for(lag_of, send, server):
    """It asks for one pause after the other, which a range that is planned puts up with."""
    send("plain", 1, 0, *"ab")
    server.faults.answer(Method.GET_MESSAGE, ErrCode.SERVER_CONSUME_SPEED_LIMIT)
    row = lag_of(offset("plain", b1_0=0), tubemq_rpcTimeoutMs="500")
    assert picked(row, "rows", "bytes", "nextTime", "state") == (2, None, None, "answers")
    assert row["error"].startswith("[TUBEMQ_NO_PROGRESS] Reading plain/1:0")


def test_a_message_without_a_time_has_no_age(lag_of, send):
    send("plain", 1, 0, "a", message_time=None)
    row = lag_of(offset("plain", b1_0=0))
    assert picked(row, "rows", "nextTime", "ageSeconds") == (1, None, None)
    assert row["bytes"] > 0


def test_the_time_zone_of_messages_counts(lag_of, send):
    send("plain", 1, 0, "a", message_time="202601010800")
    row = lag_of(offset("plain", b1_0=0), messageTimeZone="Asia/Shanghai")
    assert row["nextTime"] == MADE


def test_a_message_whose_time_may_be_either_of_two_has_no_age(lag_of, send):
    send("plain", 1, 0, "a", message_time="202610250230")
    row = lag_of(offset("plain", b1_0=0), messageTimeZone="Europe/Berlin")
    assert picked(row, "rows", "nextTime", "ageSeconds") == (1, None, None)


def test_a_micro_batch_under_way_is_not_done(lag_of, send):
    send("plain", 1, 0, *"abcde")
    before, planned = offset("plain", b1_0=28), offset("plain", b1_0=112)
    row = lag_of(before, planned, finished=0)
    assert picked(row, "rows", "rowsUnderWay", "offset", "batch") == (4, 3, 28, 0)


def test_the_first_micro_batch_under_way_begins_where_it_says(lag_of, send):
    send("plain", 1, 0, *"abcde")
    row = lag_of(offset("plain", {"b1_0": 28}, b1_0=112), finished=-1)
    assert picked(row, "rows", "rowsUnderWay", "offset", "batch") == (4, 3, 28, None)


def test_only_the_last_two_micro_batches_count(lag_of, send):
    """Numbers are compared, not names; Spark deletes old files."""
    send("plain", 1, 0, *"abcde")
    row = lag_of(*(offset("plain", b1_0=28 * done) for done in range(3)), first=9, finished=10)
    assert picked(row, "rows", "rowsUnderWay", "offset", "batch") == (4, 1, 28, 10)


def test_a_partition_that_the_query_has_not_seen_counts_from_its_beginning(view, checkpoint, send):
    send("plain", 3, 0, *"abc")
    rows = by_place(view("lag", checkpointLocation=checkpoint((offset("plain", b1_0=0),))))
    assert picked(rows[3, 0], "rows", "offset", "rowsUnderWay") == (3, None, None)
    assert set(rows) == {(broker_id, 10_000 * store) for broker_id in (1, 2, 3) for store in (0, 1)}


def test_a_partition_that_an_assignment_left_out_counts_from_its_beginning(view, checkpoint, send):
    send("shared", 1, 0, *"ab")
    send("shared", 1, 1, *"abc")
    named = dataclasses.replace(offset("shared", b1_0=140), partial=True)
    left_out = [
        row
        for row in view("lag", checkpointLocation=checkpoint((named,)))
        if (row["brokerId"], row["partition"]) == (1, 1)
    ]
    assert [row["rows"] for row in left_out] == [5], "of the whole store"


def test_each_of_several_sources_has_its_rows(view, checkpoint, send):
    send("plain", 1, 0, *"ab")
    send("shared", 1, 1, *"abc")
    stands = checkpoint((KAFKA, offset("plain", b1_0=0), "-", offset("shared", b1_0=28, b1_1=28)))

    rows = view("lag", checkpointLocation=stands)
    assert {(row["source"], row["topic"]) for row in rows} == {("1", "plain"), ("3", "shared")}
    shared = [
        picked(row, "partition", "rows", "partitionsInStore")
        for row in rows
        if row["rows"] and row["source"] == "3"
    ]
    assert shared == [(0, 2, 2), (1, 2, 2)]
    assert {row["topic"] for row in view("lag", checkpointLocation=stands, subscribe="shared")} == {"shared"}


def test_a_broker_that_is_away_leaves_its_own_lag_unknown(view, checkpoint, send, server):
    send("plain", 1, 0, "a", message_time=MINUTE)
    stands = checkpoint((offset("plain", b1_0=0, b2_0=0, b3_0=0),))
    server.faults.stop_broker(2)
    rows = by_place(view("lag", checkpointLocation=stands))

    away = rows[2, 0]
    assert picked(away, "state", "offset", "broker") == ("away", 0, server.brokers[2])
    assert away["error"].startswith("[TUBEMQ_CONNECT")
    unknown = ("rows", "bytes", "nextTime", "ageSeconds", "rowsUntilExpiry", "rowsExpired", "latest")
    assert set(picked(away, *unknown)) == {None}
    assert picked(rows[1, 0], "state", "rows", "nextTime") == ("answers", 1, MADE)


def test_rows_that_retention_took_are_counted_as_expired(lag_of, server, send):
    send("plain", 1, 0, *"abcde")
    server.apply_retention("plain", older_than_ms=0)
    send("plain", 1, 0, *"fg")
    row = lag_of(offset("plain", b1_0=56))

    assert picked(row, "rows", "rowsExpired", "rowsUntilExpiry", "offset", "earliest") == (2, 3, 0, 56, 140)
    assert row["error"].startswith("[TUBEMQ_DATA_LOSS.EXPIRED] plain/1:0")


@pytest.mark.parametrize(("stands_at", "numbers"), [(28, (2, 2, 0)), (112, (1, 0, 1))])
def test_messages_whose_data_is_gone_before_the_index_are_expired(
    view, checkpoint, send, monkeypatch, stands_at, numbers
):
    """Retention takes data and index in files of different reach; only a read shows where data begins."""
    send("plain", 1, 0, *"abcde")
    asked = []

    async def first_readable(*args):
        asked.append(args)
        return 84

    monkeypatch.setattr("tubemq_spark.client.transport.direct.first_readable", first_readable)
    stands = checkpoint((offset("plain", b1_0=stands_at),))
    options = {"checkpointLocation": stands, "assign": FIRST_OF_PLAIN}
    (row,) = view("lag", **options)

    assert picked(row, "rows", "rowsExpired", "rowsUntilExpiry") == numbers
    assert row["earliest"] == 0
    view("lag", StructType([StructField("rows", LongType())]), **options)
    assert len(asked) == 1, "no column of that question needs it"


def test_a_log_that_went_back_is_told(lag_of, send):
    send("plain", 1, 0, "a")
    row = lag_of(offset("plain", b1_0=280))
    assert picked(row, "rows", "rowsExpired", "offset", "latest") == (0, 0, 280, 28)
    assert row["error"].startswith("[TUBEMQ_DATA_LOSS.MOVED_BACK] plain/1:0")


def test_removed_topics_and_partitions_have_a_row(view, checkpoint, send):
    stands = checkpoint((offset("gone", b1_0=28), offset("plain", b1_0=0, b7_0=56)))
    rows = {
        (row["topic"], row["brokerId"], row["partition"]): row
        for row in view("lag", checkpointLocation=stands)
    }

    assert picked(rows["gone", 1, 0], "state", "offset", "rows", "broker") == ("removed", 28, None, None)
    assert "TOPIC_REMOVED" in rows["gone", 1, 0]["error"]
    assert rows["plain", 7, 0]["state"] == "removed"
    assert "PARTITION_REMOVED" in rows["plain", 7, 0]["error"]
    assert rows["plain", 1, 0]["state"] == "answers"


@pytest.mark.parametrize("prefix", ["file://", "file:"])
def test_a_checkpoint_may_be_a_uri(view, checkpoint, prefix):
    stands = f"{prefix}{checkpoint((offset('plain', b1_0=0),))}/"
    assert len(view("lag", checkpointLocation=stands)) == 6


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "No such file or directory"),
        ({"offsets/.0.crc": "x"}, "has not planned a micro-batch yet"),
        ({"offsets/0": f"v1\n{{}}\n{KAFKA}"}, "does not read from TubeMQ"),
        ({"offsets/0": "v7\n{}\n-"}, "begins with 'v7'"),
    ],
)
def test_other_folders_are_refused(view, tmp_path, files, problem):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(OptionError) as refused:
        view("lag", checkpointLocation=str(tmp_path))
    assert refused.value.condition == "TUBEMQ_CHECKPOINT_UNREADABLE"
    assert str(tmp_path) in str(refused.value)
    assert problem in str(refused.value)


def test_an_invalid_checkpoint_location_is_refused(view):
    for place in ("relative/path", "nofs://x/y"):
        with pytest.raises(OptionError, match=f"'checkpointLocation' is '{place}', but must be an absolute"):
            view("lag", checkpointLocation=place)


def test_credentials_in_a_uri_are_not_shown(view):
    """There is no such store; what Arrow says of it has them."""
    place = "s3://key:secret@bucket/x?endpoint_override=127.0.0.1:1&request_timeout=1&connect_timeout=1"
    with pytest.raises(OptionError) as refused:
        view("lag", checkpointLocation=place)
    assert refused.value.condition == "TUBEMQ_CHECKPOINT_UNREADABLE"
    assert "secret" not in str(refused.value)


def test_a_checkpoint_of_a_newer_release_is_refused(view, tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"v":3,"topics":{}}')
    with pytest.raises(OffsetFormatError, match="format version 3"):
        view("lag", checkpointLocation=str(tmp_path))


def move(server, group, topic, **offsets):
    """Commit for a group, and wait until the brokers' web servers know it."""
    cluster = open_cluster(
        ClusterConfig(
            ClientConfig((Endpoint.parse(server.master),), group), web=(Endpoint.parse(server.master_web),)
        )
    )
    wanted = offset(topic, **offsets).next_offsets
    assert cluster.move_group(cluster.layout([topic]), wanted) == {}
    wait_until(lambda: {one.partition for one in cluster.stored_offsets(group).offsets} >= wanted.keys())


def test_the_lag_of_a_group(view, server, send):
    send("plain", 1, 0, *"abc", message_time=MINUTE)
    move(server, "billing", "plain", b1_0=28)
    rows = by_place(view("lag", tubemq_group="billing"))

    assert picked(rows[1, 0], "rows", "offset", "nextTime", "source", "batch") == (2, 28, MADE, None, None)
    # It has no offset there, and where it begins is for its consumers to say.
    assert picked(rows[3, 0], "state", "rows", "offset", "latest") == ("answers", None, None, 0)


def test_a_group_s_broker_may_be_away(view, server, send):
    send("plain", 1, 0, *"abc")
    move(server, "billing", "plain", b1_0=28, b2_0=0)
    server.faults.stop_broker(2)
    rows = by_place(view("lag", tubemq_group="billing"))

    assert picked(rows[1, 0], "rows", "offset") == (2, 28)
    assert picked(rows[2, 0], "state", "rows", "offset") == ("away", None, None)


def test_a_group_s_broker_that_is_frozen_is_waited_for_once(view, server, send):
    send("plain", 1, 0, *"abc")
    move(server, "billing", "plain", b1_0=28, b2_0=0)
    server.faults.freeze_broker(2)
    rows = by_place(view("lag", tubemq_group="billing"))

    assert picked(rows[1, 0], "rows", "offset") == (2, 28)
    assert "within 1000 ms" in rows[2, 0]["error"]


def test_a_group_may_be_known_to_brokers_that_are_away(view, server):
    for broker_id in server.brokers:
        server.faults.stop_broker(broker_id)
    with pytest.raises(TubeMQError) as refused:
        view("lag", tubemq_group="billing")
    assert refused.value.condition == "TUBEMQ_ADMIN_NO_ANSWER"


def test_an_unknown_group_is_an_error(view):
    with pytest.raises(OptionError) as refused:
        view("lag", tubemq_group="typo")
    assert refused.value.condition == "TUBEMQ_GROUP_UNKNOWN"


def test_without_the_administration_api_a_group_s_lag_is_not_known(view):
    with pytest.raises(TubeMQError) as refused:
        view("lag", tubemq_group="billing", **{"tubemq.master.web": "127.0.0.1:1"})
    assert refused.value.condition == "TUBEMQ_BROKERS_NOT_LISTED"


def test_a_lag_is_that_of_something(view):
    with pytest.raises(OptionError) as refused:
        view("lag", subscribe="plain")
    assert refused.value.condition == "TUBEMQ_LAG_OF_WHAT"
