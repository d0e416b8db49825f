import logging
import pickle

import pytest

from testkit.certificates import Authority
from tests.offsets.strategies import tp
from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.errors import OffsetFormatError, OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.offset_spec import Edge, Specific, Stored, Timestamp
from tubemq_spark.offsets.subscription import Assignment, TopicPattern, Topics
from tubemq_spark.options import (
    LossesOptions,
    MessageTime,
    NoMatch,
    OnReplayDiffers,
    OptionSet,
    ParseMode,
    PayloadFormat,
    ReadOptions,
    TimestampSearch,
    ViewOptions,
    Visibility,
    WriteOptions,
)

BASE = {"tubemq.master.servers": "m1:8000,m2"}
READ = {**BASE, "subscribe": "demo"}
NOON = 1_769_860_800_000  # 2026-01-31T12:00 in UTC
MASTERS = (Endpoint("m1", 8000), Endpoint("m2", 8715))


def batch(**options):
    return OptionSet.parse({**READ, **options}).for_batch_read()


def group(**options):
    return batch(**options).cluster.client.group


def stream(**options):
    return OptionSet.parse({**READ, **options}).for_stream_read()


def write(**options):
    return OptionSet.parse({**BASE, **options}).for_write()


def refused(condition, make, **options):
    with pytest.raises(OptionError) as caught:
        make(**options)
    assert caught.value.condition == condition
    return str(caught.value)


def test_defaults_of_a_batch_read():
    client = ClientConfig(masters=MASTERS, group="tubemq_spark-demo")
    assert batch() == ReadOptions(
        ClusterConfig(client), Topics(("demo",)), starting=Edge.EARLIEST, ending=Edge.LATEST
    )


def test_defaults_of_a_stream():
    client = ClientConfig(masters=MASTERS, group="tubemq_spark-demo")
    assert stream() == ReadOptions(ClusterConfig(client), Topics(("demo",)), starting=Edge.LATEST)


def test_defaults_of_a_write():
    assert write() == WriteOptions(ClusterConfig(ClientConfig(masters=MASTERS, group="tubemq_spark")))


THROUGH_GATEWAYS = {"tubemq.gateway.servers": "g1,g2:5"}
GATEWAYS = (Endpoint("g1", 11911), Endpoint("g2", 5))


def test_gateways_stand_for_masters():
    read = OptionSet.parse({**THROUGH_GATEWAYS, "subscribe": "demo"})
    write = OptionSet.parse({**THROUGH_GATEWAYS, "topic": "demo"}).for_write()
    for cluster in (read.for_batch_read().cluster, read.for_stream_read().cluster, write.cluster):
        assert (cluster.gateways, cluster.client.masters) == (GATEWAYS, ())
    assert dict(write.shown)["tubemq.gateway.servers"] == "g1:11911,g2:5"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tubemq.master.web": "m1"}, "tubemq.master.web"),
        ({"tubemq.username": "a", "tubemq.password": "hush"}, "tubemq.tls.enabled"),
        ({"tubemq.gateway.token": "hush"}, "tubemq.tls.enabled"),
    ],
    ids=str,
)
def test_options_without_meaning_through_gateways_are_refused(options, named):
    with pytest.raises(OptionError) as caught:
        OptionSet.parse({**THROUGH_GATEWAYS, "subscribe": "demo", **options}).for_batch_read()
    assert named in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_token_is_for_gateways_only_and_is_not_shown():
    options = {"subscribe": "demo", "tubemq.gateway.token": "hush", "tubemq.tls.enabled": "true"}
    with pytest.raises(OptionError, match=r"tubemq\.gateway\.servers") as caught:
        OptionSet.parse({"tubemq.master.servers": "m1", **options}).for_batch_read()
    assert "hush" not in str(caught.value)
    given = OptionSet.parse({**THROUGH_GATEWAYS, **options})
    read = given.for_batch_read()
    assert read.cluster.gateway_token == "hush"
    assert "hush" not in repr(read) + repr(given)
    write = OptionSet.parse({**THROUGH_GATEWAYS, **options, "topic": "demo"}).for_write()
    assert write.cluster.gateway_token == "hush"
    assert "hush" not in repr(write) + str(write.shown)


def test_a_key_with_a_password_cannot_be_used_with_gateways(tmp_path):
    pair = Authority(tmp_path).issue("client")
    tls = {
        "tubemq.tls.enabled": "true",
        "tubemq.tls.certFile": str(pair.cert),
        "tubemq.tls.keyFile": str(pair.encrypted_key("hush")),
        "tubemq.tls.keyPassword": "hush",
    }
    with pytest.raises(OptionError, match=r"tubemq\.tls\.keyPassword"):
        OptionSet.parse({**THROUGH_GATEWAYS, "subscribe": "demo", **tls}).for_batch_read()


def test_every_option_of_a_stream_arrives():
    options = stream(
        **{
            "subscribe": "demo, orders",
            "waitForTopics": "true",
            "tubemq.master.web": "w1,w2:9090",
            "startingOffsets": '{"demo":{"1:0":280},"orders":"earliest"}',
            "maxOffsetsPerTrigger": "1000",
            "maxBytesPerTrigger": "64m",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "1m",
            "minPartitions": "7",
            "maxRecordsPerPartition": "8",
            "maxRangesPerTask": "9",
            "failOnDataLoss": "false",
            "visibility": "Flushed",
            "lossLedger": "s3a://bucket/losses",
            "includeAttributes": "true",
            "messageTimeZone": "Asia/Shanghai",
            "tubemq.group": "my-group",
            "tubemq.username": "alice",
            "tubemq.password": " pass word ",
            "tubemq.rpcTimeoutMs": "1",
            "tubemq.connectTimeoutMs": "2",
            "tubemq.fetchTimeoutMs": "3",
            "fetchOffset.numRetries": "4",
            "fetchOffset.retryIntervalMs": "5",
            "fetchOffset.maxIdleIntervalMs": "60",
            "readerGroups.size": "2",
        }
    )
    assert options == ReadOptions(
        ClusterConfig(
            ClientConfig(
                MASTERS,
                "my-group",
                username="alice",
                password=" pass word ",
                rpc_timeout_ms=1,
                connect_timeout_ms=2,
                fetch_timeout_ms=3,
                reader_groups=("my-group_r00", "my-group_r01"),
            ),
            web=(Endpoint("w1", 8080), Endpoint("w2", 9090)),
        ),
        Topics(("demo", "orders")),
        wait_for_topics=True,
        starting=Specific({"demo": {tp("demo/1:0"): 280}, "orders": Edge.EARLIEST}),
        max_offsets_per_trigger=1000,
        max_bytes_per_trigger=67_108_864,
        min_offsets_per_trigger=10,
        max_trigger_delay_ms=60_000,
        min_partitions=7,
        max_records_per_partition=8,
        max_ranges_per_task=9,
        fail_on_data_loss=False,
        visibility=Visibility.FLUSHED,
        loss_ledger=FolderUri("s3://bucket/losses"),
        include_attributes=True,
        message_time_zone="Asia/Shanghai",
        offset_fetch_attempts=4,
        offset_fetch_retry_ms=5,
        max_idle_interval_ms=60,
    )


def test_positions_of_a_batch_read_arrive():
    options = batch(startingOffsets='{"demo":{"1:0":0}}', endingOffsets='{"demo":{"1:0":-1}}')
    assert options.starting == Specific({"demo": {tp("demo/1:0"): 0}})
    assert options.ending == Specific({"demo": {tp("demo/1:0"): Edge.LATEST}})


def test_times_take_precedence_over_offsets():
    """And a time for all over times for some, as in Spark's Kafka source."""
    by_partition = '{"demo":{"1:0":"2026-01-31T12:00"}}'
    for read in (batch, stream):
        offsets = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": by_partition}
        assert read(**offsets).starting == Specific({"demo": {tp("demo/1:0"): Timestamp(NOON)}})
        assert read(**offsets, startingTimestamp="0").starting == Timestamp(0)
    offsets = {"endingOffsets": "latest", "endingOffsetsByTimestamp": by_partition}
    assert batch(**offsets).ending == Specific({"demo": {tp("demo/1:0"): Timestamp(NOON)}})
    assert batch(**offsets, endingTimestamp="2026-01-31T13:00+01:00").ending == Timestamp(NOON)
    assert batch(startingOffsetsByTimestampStrategy="Latest").no_match is NoMatch.LATEST
    for option in ("endingTimestamp", "endingOffsetsByTimestamp"):
        text = {"endingTimestamp": "2026-01-31", "endingOffsetsByTimestamp": by_partition}[option]
        assert option in refused("TUBEMQ_ENDING_IN_STREAM", stream, **{option: text})


def test_an_exact_read_by_times_is_a_batch_read(caplog):
    assert batch(startingTimestamp="2026-01-31T12:00").timestamp_search is TimestampSearch.PROBE
    assert (
        batch(startingTimestamp="2026-01-31T12:00", timestampSearch="Exact").timestamp_search
        is TimestampSearch.EXACT
    )
    assert (
        stream(startingTimestamp="2026-01-31T12:00", timestampSearch="probe").timestamp_search
        is TimestampSearch.PROBE
    )
    assert "'timestampSearch' is 'exact'" in refused(
        "TUBEMQ_EXACT_IN_STREAM", stream, startingTimestamp="2026-01-31T12:00", timestampSearch="exact"
    )
    assert not caplog.messages
    batch(timestampSearch="exact")
    assert caplog.messages == ["option 'timestampSearch' has no effect without 'startingTimestamp'"]


def test_message_types_reach_the_client():
    assert batch(messageTypes=" page_view, click,page_view").cluster.client.message_types == (
        "page_view",
        "click",
    )
    assert stream().cluster.client.message_types == ()


def test_options_about_the_group_need_its_name():
    group = {"tubemq.group": "mine"}
    assert stream(startingOffsets=" Group ", **group).starting is Stored.GROUP
    assert batch(startingOffsets="group", **group).starting is Stored.GROUP
    assert stream(commitOffsetsToGroup="true", **group).commit_to_group
    for option in ({"startingOffsets": "group"}, {"commitOffsetsToGroup": "true"}):
        assert "'tubemq.group' must be specified" in refused("TUBEMQ_OPTION_NEEDED", stream, **option)
    assert not stream(commitOffsetsToGroup="false").commit_to_group
    text = refused("TUBEMQ_OPTION_VALUE", batch, endingOffsets="group", **group)
    assert "'endingOffsets' is 'group', but must be latest or JSON" in text


def test_every_option_of_a_write_arrives():
    options = write(
        **{
            "topic": "demo",
            "messageTimeZone": "Asia/Shanghai",
            "tubemq.username": "alice",
            "tubemq.password": "secret",
            "tubemq.rpcTimeoutMs": "1",
            "tubemq.connectTimeoutMs": "2",
            "tubemq.sendWindowMessages": "3",
            "tubemq.sendWindowBytes": "4",
            "deliveryTimeoutMs": "5",
            "retryAmbiguous": "false",
            "keepOrder": "true",
            "partitioner": "Sticky",
            "messageTime": "Column",
        }
    )
    client = ClientConfig(
        MASTERS,
        "tubemq_spark",
        username="alice",
        password="secret",
        rpc_timeout_ms=1,
        connect_timeout_ms=2,
        max_in_flight=3,
        max_in_flight_bytes=4,
        delivery_timeout_ms=5,
        retry_ambiguous=False,
        keep_order=True,
        partitioner=BuiltInPartitioner.STICKY,
    )
    assert options == WriteOptions(ClusterConfig(client), "demo", MessageTime.COLUMN, "Asia/Shanghai")


def test_manifests_need_checksums_and_show_the_options_without_those_of_the_connection():
    assert write(topic="demo").receipts_path is None
    assert not write(topic="demo").cluster.client.checksums
    secrets = {"tubemq.username": "alice", "tubemq.password": "secret"}
    options = write(topic="demo", receiptsPath="s3://k:s@bucket/x", messageTime="none", **secrets)
    assert options.receipts_path == FolderUri("s3://k:s@bucket/x")
    assert options.cluster.client.checksums
    assert options.on_replay_differs is OnReplayDiffers.FAIL
    keep = write(topic="demo", receiptsPath="s3://bucket/x", onReplayDiffers="Keep")
    assert keep.on_replay_differs is OnReplayDiffers.KEEP
    alone = refused("TUBEMQ_OPTION_NEEDED", write, topic="demo", onReplayDiffers="keep")
    assert "'receiptsPath' must be specified" in alone
    assert dict(options.shown) == {
        "topic": "demo",
        "messageTime": "none",
        "receiptsPath": "s3://***@bucket/x",
        "tubemq.master.servers": "m1:8000,m2:8715",
    }


def test_keys_come_in_lower_case():
    options = {key.lower(): value for key, value in {**READ, "maxOffsetsPerTrigger": "7"}.items()}
    assert OptionSet.parse(options).for_stream_read().max_offsets_per_trigger == 7


def test_reader_groups_may_be_named():
    assert batch(readerGroups="r1, r2").cluster.client.reader_groups == ("r1", "r2")


@pytest.mark.parametrize("read", [batch, stream])
def test_a_group_whose_position_counts_is_none_of_the_reader_groups(read):
    """Tasks would move it while they read."""
    options = {"tubemq.group": "etl", "readerGroups": "one,etl"}
    assert read(**options).cluster.client.reader_groups == ("one", "etl")
    with pytest.raises(
        OptionError, match=r"'etl' is one of the reader groups \(etl, one\) too.*readerGroups"
    ):
        read(**options, startingOffsets="group")


def test_a_stream_does_not_commit_to_one_of_its_reader_groups(caplog):
    options = {"tubemq.group": "etl", "readerGroups": "one,etl", "commitOffsetsToGroup": "true"}
    with pytest.raises(OptionError, match="is one of the reader groups"):
        stream(**options)
    assert batch(**options).starting is Edge.EARLIEST
    assert "'commitOffsetsToGroup' has no effect" in caplog.text


@pytest.mark.parametrize("options", [{"commitOffsetsToGroup": "true"}, {"startingOffsets": "group"}])
def test_a_group_whose_position_counts_and_that_is_named_like_a_reader_group_is_warned_of(options, caplog):
    caplog.clear()
    group = f"{next(iter(options))}_probe"
    stream(**{"tubemq.group": group})
    assert not caplog.records
    stream(**{"tubemq.group": group}, **options)
    assert f"'{group}' is named like a reader group of '{next(iter(options))}'" in caplog.text


def test_the_default_group_is_made_of_the_topics():
    """Two queries of one group must read the same topics, else the master refuses the second."""
    assert group(subscribe="orders,demo") == batch(subscribe="demo,orders").cluster.client.group
    assert group(subscribe="orders,demo") == "tubemq_spark-demo-orders"
    assert group(subscribe="x" * 64) == f"tubemq_spark-{'x' * 64}"
    fitting = ["a" * 64, "b" * 64, "c" * 64, "d" * 5]
    assert group(subscribe=",".join(fitting)) == f"tubemq_spark-{'-'.join(fitting)}"
    assert group(subscribe=",".join([*fitting[:3], "d" * 6])).startswith("tubemq_spark-4topics-")
    long = {group(subscribe=",".join(f"{head}{'x' * 60}" for head in heads)) for heads in ("abcd", "abce")}
    assert len(long) == 2
    assert all(group.startswith("tubemq_spark-4topics-") and len(group) == 29 for group in long)


def test_a_table_without_its_options_is_hinted_at():
    with pytest.raises(OptionError, match=r"CREATE TEMPORARY VIEW, or SELECT \.\.\. FROM the_table WITH \('"):
        OptionSet.parse({"path": "file:/warehouse/clicks"}).for_batch_read()
    with pytest.raises(OptionError) as caught:
        OptionSet.parse({"subscribe": "demo"}).for_batch_read()
    assert "CREATE TABLE" not in str(caught.value)
    with pytest.raises(
        OptionError, match=r"INSERT INTO the_table WITH \('tubemq.master.servers'='.+', \.\.\.\) SELECT"
    ):
        OptionSet.parse({"path": "file:/warehouse/clicks"}).for_write()


def test_no_option_is_demanded_before_the_mode_is_known():
    """Spark makes a data source with no option at all to ask for the schema of a table."""
    options = OptionSet.parse({})
    assert options.include_attributes is False
    assert OptionSet.parse({"includeAttributes": "true"}).include_attributes is True


def test_a_read_may_subscribe_by_a_pattern_or_by_partitions():
    base = {name: text for name, text in READ.items() if name != "subscribe"}
    by_pattern = OptionSet.parse({**base, "subscribePattern": " orders_.* "}).for_stream_read()
    assert by_pattern.subscription == TopicPattern("orders_.*")
    assert by_pattern.cluster.client.group.startswith("tubemq_spark-pattern-")
    assigned = OptionSet.parse({**base, "assign": '{"demo":["1:0","2:10000"]}'}).for_batch_read()
    assert assigned.subscription == Assignment(frozenset({tp("demo/1:0"), tp("demo/2:10000")}))
    assert assigned.cluster.client.group == "tubemq_spark-demo"


def test_the_administration_api_is_at_the_masters_unless_it_is_named():
    usual = [str(server) for server in batch().cluster.web_servers]
    assert usual == ["m1:8080", "m2:8080", "m1:8780", "m2:8780"]  # the embedded server's is 8780
    named = batch(**{"tubemq.master.web": "w1,w2:9090"}).cluster
    assert [str(server) for server in named.web_servers] == ["w1:8080", "w2:9090"]


def test_a_minimum_may_equal_the_maximum():
    assert stream(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="10").min_offsets_per_trigger == 10


def test_a_delay_for_nothing_is_named(caplog):
    stream(maxTriggerDelay="1m")
    assert "option 'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger'" in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [("maxOffsetsPerTrigger", "0"), ("messageTypes", "a#b"), ("messageTypes", "x" * 257), ("topic", "")],
)
def test_wrong_values_are_refused_before_the_mode_is_known(name, text):
    with pytest.raises(OptionError) as caught:
        OptionSet.parse({name: text})
    assert caught.value.condition == "TUBEMQ_OPTION_VALUE"
    assert f"Option '{name}' is '{text}', but must be " in str(caught.value)


def test_wrong_offsets_and_unknown_options_are_refused_before_the_mode_is_known():
    with pytest.raises(OffsetFormatError):
        OptionSet.parse({"startingoffsets": '{"demo":{"1:0":5}}'})
    with pytest.raises(OptionError):
        OptionSet.parse({"startingoffset": "latest"})


def test_a_group_too_long_for_its_reader_groups_is_refused():
    assert (
        "reader" in batch(readerGroups="reader", **{"tubemq.group": "g" * 1024}).cluster.client.reader_groups
    )
    refused("TUBEMQ_BAD_SETTING", batch, **{"tubemq.group": "g" * 1024})


def test_options_without_effect_are_named(caplog):
    every = {
        **READ,
        "topic": "demo",
        "maxOffsetsPerTrigger": "1",
        "tubemq.sendWindowBytes": "1",
        "path": "demo",
        "checkpointLocation": "/tmp/x",
    }
    options = OptionSet.parse(every)
    with caplog.at_level(logging.WARNING):
        options.for_batch_read()
    path = "'path' has no effect in a batch read; topics are named by options"
    assert caplog.messages == [
        "option 'maxOffsetsPerTrigger' has no effect in a batch read",
        "option 'topic' has no effect in a batch read",
        "option 'tubemq.sendWindowBytes' has no effect in a batch read",
        path,
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        options.for_write()
    assert caplog.messages == [
        "option 'subscribe' has no effect in a write",
        "option 'maxOffsetsPerTrigger' has no effect in a write",
        path.replace("batch read", "write"),
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert options.for_stream_read().max_offsets_per_trigger == 1
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "'startingOffsetsByTimestampStrategy' has no effect without 'startingTimestamp'",
        ),
        ({"startingOffsetsByTimestampStrategy": "latest", "startingTimestamp": "2026-01-31"}, None),
        (
            {
                "startingOffsetsByTimestampStrategy": "latest",
                "startingOffsets": '{"demo":{"1:0":{"time":7}}}',
            },
            None,
        ),
        (
            {"subscribe": None, "subscribePattern": "d.*", "waitForTopics": "true"},
            "'waitForTopics' has no effect with 'subscribePattern'",
        ),
        ({"subscribe": None, "subscribePattern": "d.*", "waitForTopics": "false"}, None),
        ({"waitForTopics": "true"}, None),
    ],
)
def test_what_has_no_effect_is_named(caplog, options, told):
    given = {name: value for name, value in {**READ, **options}.items() if value is not None}
    OptionSet.parse(given).for_stream_read()
    assert caplog.messages == ([f"option {told}"] if told else [])


def test_a_column_that_the_schema_leaves_out_is_named(caplog):
    parsed = OptionSet.parse({**READ, "includeAttributes": "true"})
    parsed.warn_of_schema(["value", "attributes"])
    OptionSet.parse(READ).warn_of_schema(["value"])
    assert caplog.messages == []
    parsed.warn_of_schema(["value"])
    assert caplog.messages == ["option 'includeAttributes' has no effect with a schema without 'attributes'"]


def test_a_parse_mode_needs_bodies_to_parse(caplog):
    with caplog.at_level(logging.WARNING):
        assert batch(payload="inlong", mode="failfast").parse_mode is ParseMode.FAILFAST
        assert stream(payload="InLong").payload is PayloadFormat.INLONG
        assert batch().payload is PayloadFormat.RAW
    assert caplog.records == []
    batch(mode="FAILFAST")
    assert caplog.messages == ["option 'mode' has no effect without 'payload=inlong'"]


@pytest.mark.parametrize("make", [batch, stream])
def test_a_ledger_without_losses_is_named(make, caplog):
    """By default a query ends at the first loss: there is none to write down."""
    assert make(lossLedger="/losses").loss_ledger is None
    assert caplog.messages == [
        "option 'lossLedger' has no effect, since nothing is passed over unless 'failOnDataLoss' is false"
    ]


def test_the_view_of_losses_needs_only_the_ledger(caplog):
    options = OptionSet.parse({"view": "losses", "lossLedger": "/losses", "tubemq.group": "me"}).for_view()
    assert options == LossesOptions(FolderUri("/losses"))
    with pytest.raises(OptionError, match="'lossLedger' must be specified for the view 'losses'"):
        OptionSet.parse({"view": "losses"}).for_view()
    with pytest.raises(OptionError, match="'failOnDataLoss' has no effect in the view 'losses'"):
        OptionSet.parse({"view": "losses", "lossLedger": "/x", "failOnDataLoss": "false"}).for_view()


def test_no_warning_without_reason(caplog):
    with caplog.at_level(logging.WARNING):
        batch(), stream(), write()
    assert caplog.records == []


def view(**options):
    return OptionSet.parse({**READ, "view": "partitions", **options}).for_view()


def test_options_of_a_view_arrive():
    given = {
        "tubemq.master.web": "m1:80",
        "tubemq.group": "me",
        "tubemq.rpctimeoutms": "7",
        "readergroups": "r1,r2",
    }
    client = ClientConfig(
        MASTERS, "me", rpc_timeout_ms=7, reader_groups=("r1", "r2"), fetch_timeout_ms=7, lease_wait_ms=7
    )
    cluster = ClusterConfig(client, web=(Endpoint("m1", 80),))
    assert view(**given) == ViewOptions(cluster, Topics(("demo",)), group="me")
    assert view().cluster.client.group == "tubemq_spark-demo"


def lag(**options):
    return OptionSet.parse({**BASE, "view": "lag", **options}).for_view()


def test_a_lag_is_that_of_a_checkpoint_or_of_a_group():
    stands = lag(checkpointLocation="/some/where", messageTimeZone="Asia/Shanghai")
    assert (str(stands.checkpoint), stands.subscription) == ("/some/where", None)
    assert stands.message_time_zone == "Asia/Shanghai"
    assert stands.cluster.client.group == "tubemq_spark-view"
    assert lag(**{"tubemq.group": "me"}).group == "me"
    refused("TUBEMQ_LAG_OF_WHAT", lag)


def test_the_checkpoint_of_a_sink_is_no_mistake(caplog):
    """Spark hands over what is meant for itself."""
    assert write(checkpointLocation="/some/where") == write()
    assert stream(checkpointLocation="/some/where") == stream()
    assert caplog.text == ""
    refused("TUBEMQ_OPTION_IN_VIEW", view, checkpointLocation="/some/where")


@pytest.mark.parametrize(
    ("option", "value"),
    [("startingOffsets", "earliest"), ("failOnDataLoss", "false"), ("topic", "demo"), ("minPartitions", "2")],
)
def test_a_view_refuses_options_without_effect(option, value):
    text = refused("TUBEMQ_OPTION_IN_VIEW", view, **{option: value})
    assert f"Option '{option}' has no effect in the view 'partitions'; leave it out." in text


def test_a_view_takes_all_settings_of_the_connection(caplog):
    """Users keep them together, whatever they read."""
    assert view(**{"tubemq.fetchTimeoutMs": "100"}) == view()
    assert "'tubemq.fetchTimeoutMs' has no effect in the view 'partitions'" in caplog.text


def test_a_stream_refuses_a_view():
    text = refused("TUBEMQ_VIEW_IN_STREAM", stream, view="partitions")
    assert "Option 'view' is partitions" in text
    assert stream(view="messages") == stream()


def test_a_write_warns_of_a_view(caplog):
    assert write(view="partitions") == write()
    assert "'view' has no effect in a write" in caplog.text


def test_values_survive_pickling():
    options = OptionSet.parse({**READ, "startingOffsets": '{"demo":{"1:0":0}}', "path": "x"})
    assert pickle.loads(pickle.dumps(options)) == options
    for value in (options.for_batch_read(), options.for_stream_read(), options.for_write()):
        assert pickle.loads(pickle.dumps(value)) == value


def test_secrets_stay_out_of_text():
    options = OptionSet.parse({**READ, "tubemq.username": "alice", "tubemq.password": "hidden"})
    assert repr(options) == (
        "OptionSet(subscribe='demo', tubemq.master.servers='m1:8000,m2:8715', tubemq.username='alice', "
        "tubemq.password='***')"
    )
    for value in (options, options.for_batch_read(), options.for_stream_read(), options.for_write()):
        assert "hidden" not in repr(value)
        assert "hidden" not in str(value)
        assert "hidden" not in f"{value}"
