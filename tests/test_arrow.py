"""Messages as Arrow without Spark: the rows of Spark's source, each batch when it is asked for."""

import datetime
import gc
import json
import subprocess
import sys
import threading
import weakref

import pyarrow as pa
import pytest

from testkit.arrow_reads import NOON, ms, option_sets, read_without_spark, rows_of, send_messages
from tests.cases import in_one_test
from tests.memory_cluster import MemoryCluster
from tubemq_spark import arrow
from tubemq_spark.client import TubeMQClient
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, OptionError, TubeMQError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint, StoreId
from tubemq_spark.protocol.constants import Method
from tubemq_spark.source import arrow as building
from tubemq_spark.source.schema import schema_of
from tubemq_spark.spark.columns import UNPACKED

WAIT_SECONDS = 10
TOPICS = {"demo": (2, 1), "packed": (1, 1), "shared": (1, 2)}


@pytest.fixture
def server():
    with EmbeddedTubeMQ(topics=TOPICS) as server, TubeMQClient.connect(server.master) as client:
        send_messages(client, "demo", "packed")
        yield server


@pytest.fixture
def client(server):
    with TubeMQClient.connect(server.master, group="etl") as client:
        yield client


def sets_of(client):
    layout = client.layout("demo")
    bounds = client.bounds(layout).complete()
    latest = {f"{one.broker_id}:{one.partition_id}": bounds[one.store_id].latest for one in layout.partitions}
    return option_sets("demo", "packed", latest)


def read_as_spark(server, options, columns):
    """Read as Spark's processes do, without a JVM."""
    source = TubeMQDataSource({"tubemq.master.servers": server.master, "tubemq.group": "etl", **options})
    schema = source.schema() if columns is None else schema_of(UNPACKED[name] for name in columns)
    reader = source.reader(schema)
    return rows_of(batch for task in reader.partitions() for batch in reader.read(task))


def test_rows_are_those_of_the_source(server, client):
    counts = []
    for options, columns in sets_of(client):
        rows = read_without_spark(client, options, columns)
        assert rows == read_as_spark(server, options, columns), options
        counts.append(len(rows))
    assert counts == [60, 63, 56, 60, 20, *counts[5:6], 45, 0, *counts[8:9], 20, *counts[10:11], 5, 4]


def test_rows_through_a_gateway_are_the_same(server, client):
    settings = GatewaySettings(
        listen=Endpoint("127.0.0.1", 0),
        master_servers=(Endpoint.parse(server.master),),
        master_web=(Endpoint.parse(server.master_web),),
    )
    with (
        BackgroundGateway(settings.validate()) as gateway,
        TubeMQClient.from_url(f"gateway://{gateway.address}?group=etl") as remote,
    ):
        for options, columns in sets_of(client):
            assert read_without_spark(remote, options, columns) == read_without_spark(
                client, options, columns
            ), options
        assert len(read_without_spark(remote, {"subscribePattern": "de.*"}, ["value"])) == 60


def test_a_pattern_names_topics(server, client):
    options = {"subscribePattern": "pack..", "tubemq.master.web": server.master_web}
    assert len(read_without_spark(client, options, ["value"])) == 3


def test_values_of_python_do_instead_of_texts(client):
    def read(topics="demo", **options):
        with client.read_arrow(topics, columns="value", **options) as reader:
            return sorted(int(value.as_py()) for batch in reader for value in batch.column("value"))

    later = NOON + datetime.timedelta(minutes=50)
    assert read(startingTimestamp=later, timestampSearch="exact") == list(range(50, 60))
    assert read(startingTimestamp=int(ms(50)), timestampSearch="exact") == list(range(50, 60))
    assert read(minPartitions=3, includeAttributes=False, endingTimestamp=None) == list(range(60))
    assert read(None, assign={"demo": ["1:0", "1:10000"]}) == list(range(60))
    assert read(iter(["demo"])) == list(range(60))
    assert len(read(endingOffsets={"demo": {"1:0": 28, "1:10000": 0}})) == 1
    assert read(messageTypes=["view", "click"]) == [minute for minute in range(60) if minute % 3 < 2]


def test_pandas_and_python_get_a_reader_of_pyarrows(client):
    with client.read_arrow(["demo", "packed"]) as reader:
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.schema.names[:2] == ["value", "topic"]
        assert reader.read_all().num_rows == 63
    with client.read_arrow("demo") as reader, pa.RecordBatchReader.from_stream(reader) as other:
        assert other.read_all().num_rows == 60


REFUSED = (
    ({"startingOfsets": "latest"}, "TUBEMQ_OPTION_UNKNOWN", "did you mean 'startingOffsets'?"),
    ({"subscribe": "demo"}, "TUBEMQ_OPTIONS_EXCLUSIVE", "'topics' and 'subscribe'"),
    ({"subscribePattern": "d.*"}, "TUBEMQ_OPTIONS_EXCLUSIVE", "'subscribePattern'"),
    ({"tubemq.master.servers": "a:1"}, "TUBEMQ_OPTION_OF_CLIENT", "TubeMQClient.connect"),
    ({"tubemq.tls.enabled": True}, "TUBEMQ_OPTION_OF_CLIENT", "'tubemq.tls.enabled'"),
    ({"tubemq.connectTimeoutMs": 1}, "TUBEMQ_OPTION_OF_CLIENT", "'tubemq.connectTimeoutMs'"),
    ({"view": "lag"}, "TUBEMQ_OPTION_VALUE", "'lag', but must be messages"),
    ({"startingOffsets": "latest"}, "TUBEMQ_POSITION_IN_BATCH", "latest"),
    ({"startingTimestamp": datetime.datetime(2026, 1, 1)}, "TUBEMQ_OPTION_VALUE", "with its zone"),  # noqa: DTZ001
)


@in_one_test(("options", "condition", "told"), REFUSED)
def test_what_makes_no_sense_is_refused_at_once(options, condition, told):
    with TubeMQClient.connect("127.0.0.1:1") as client, pytest.raises(OptionError) as refused:
        client.read_arrow("demo", options=options)
    assert refused.value.condition == condition
    assert told in str(refused.value)


@in_one_test(
    ("topics", "columns", "condition", "told"),
    [
        ("demo", ["vlaue"], "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "did you mean 'value'?"),
        ("demo", ["inlongIndex"], "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "inlongIndex"),
        ("demo", [], "TUBEMQ_SCHEMA_EMPTY", "value, topic"),
        ([], None, "TUBEMQ_NO_TOPICS", "subscribe"),
        (None, None, "TUBEMQ_NOTHING_SUBSCRIBED", "subscribe=demo,orders."),
    ],
)
def test_columns_and_topics_that_are_none_are_refused_at_once(topics, columns, condition, told):
    with TubeMQClient.connect("127.0.0.1:1") as client, pytest.raises(OptionError) as refused:
        client.read_arrow(topics, columns=columns)
    assert refused.value.condition == condition
    assert told in str(refused.value)


def test_settings_of_the_client_hold_and_options_change_them(monkeypatch):
    seen = []
    monkeypatch.setattr(arrow, "TransportCluster", lambda transport: seen.append(transport.config) or memory)
    memory = MemoryCluster(demo=(1, 1))
    url = "tubemq://m:1?group=etl&reader_groups=one,two&lease_wait_ms=7&rpc_timeout_ms=8"
    with TubeMQClient.from_url(url) as client:
        client.read_arrow("demo")
        client.read_arrow("demo", options={"tubemq.rpcTimeoutMs": 9, "readerGroups": "three"})
        client.read_arrow("demo", options={"tubemq.group": "other"})
    plain, changed, other = seen
    assert (plain.group, plain.reader_groups, plain.lease_wait_ms) == ("etl", ("one", "two"), 7)
    assert (changed.rpc_timeout_ms, changed.reader_groups, changed.lease_wait_ms) == (9, ("three",), 7)
    assert (other.group, other.reader_groups[0], other.rpc_timeout_ms) == ("other", "other_r00", 8)


@pytest.fixture
def memory(monkeypatch):
    """A thousand messages in two stores, of which a fetch has ten and a record batch fifty."""
    made = MemoryCluster(demo=(2, 1))
    monkeypatch.setattr(arrow, "TransportCluster", lambda _: made)
    monkeypatch.setattr(building, "TARGET_ROWS", 50)
    made.per_fetch = 10
    with made.sender() as sender:
        for number in range(1000):
            sender.send("demo", b"%d" % number)
    return made


@pytest.fixture
def offline():
    with TubeMQClient.connect("nowhere:1") as client:
        yield client


def test_nothing_is_fetched_before_it_is_asked_for(memory, offline):
    reader = offline.read_arrow("demo")
    assert memory.fetches == 0
    for count in range(1, 11):
        assert reader.read_next_batch().num_rows == 50
        assert memory.fetches == 5 * count
    assert reader.read_all().num_rows == 500
    assert memory.fetches == 100


def test_the_end_is_where_the_topics_end_when_the_reader_is_made(memory, offline):
    reader = offline.read_arrow("demo")
    with memory.sender() as sender:
        sender.send("demo", b"late")
    assert reader.read_all().num_rows == 1000


def test_no_batch_is_kept_that_was_handed_over(memory, offline):
    """What a reader holds is one batch, however many it reads."""
    reader = offline.read_arrow("demo")
    batches = []
    for batch in reader:
        batches.append(weakref.ref(batch))
        del batch
    gc.collect()
    assert [one() for one in batches] == [None] * 20


def test_closing_ends_the_range_that_is_being_read(memory, offline, monkeypatch):
    ended, read_range = [], memory.read_range

    def noted(*of):
        try:
            yield from read_range(*of)
        finally:
            ended.append(of)

    monkeypatch.setattr(memory, "read_range", noted)
    with offline.read_arrow("demo") as reader:
        reader.read_next_batch()
        assert ended == []
    assert len(ended) == 1
    reader.close()
    with pytest.raises(TubeMQError) as refused:
        reader.read_next_batch()
    assert refused.value.condition == "TUBEMQ_ARROW_READER_CLOSED"
    assert memory.fetches == 5
    another = offline.read_arrow("demo")
    another.read_next_batch()
    del another
    assert len(ended) == 2, "a dropped reader is closed"


def test_a_lease_is_given_back_when_the_reader_is_closed(server, monkeypatch):
    """A partition can be read by one of a reader group at a time."""
    monkeypatch.setattr(building, "TARGET_ROWS", 1)
    url = f"tubemq://{server.master}?reader_groups=alone&lease_wait_ms=50"
    with TubeMQClient.from_url(url) as client:
        with client.read_arrow("packed") as reader:
            reader.read_next_batch()
            with pytest.raises(TubeMQError, match="alone"):
                client.read_arrow("packed", options={"fetchOffset.numRetries": 1})
        assert client.read_arrow("packed").read_all().num_rows == 3


def test_losses_are_errors_of_sparks_by_default(memory, offline):
    reader = offline.read_arrow("demo")
    memory.expired[StoreId("demo", 1, 1)] = 3
    with pytest.raises(DataLossError) as lost:
        reader.read_all()
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.EXPIRED"
    assert reader.losses == []


def test_losses_that_are_passed_over_are_told(memory, offline, caplog):
    with offline.read_arrow("demo", failOnDataLoss=False) as reader:
        memory.expired[StoreId("demo", 1, 1)] = 3
        assert reader.losses == []
        assert reader.read_all().num_rows == 997
        assert [(str(one.partition), one.start, one.end) for one in reader.losses] == [
            ("demo/1:10000", 0, 84)
        ]
    assert "data is lost" in caplog.text


def test_losses_are_written_to_the_ledger(memory, offline, tmp_path):
    options = {"failOnDataLoss": False, "lossLedger": str(tmp_path)}
    with offline.read_arrow("demo", options=options) as reader:
        memory.expired[StoreId("demo", 1, 1)] = 3
        reader.read_all()
    (text,) = [file.read_text() for file in tmp_path.rglob("*.jsonl")]
    assert [json.loads(line)["endOffset"] for line in text.splitlines()] == [84]


def test_a_client_that_is_closed_ends_its_reads(memory):
    with TubeMQClient.connect("nowhere:1") as client:
        reader = client.read_arrow("demo")
        reader.read_next_batch()
    with pytest.raises(TubeMQError) as refused:
        reader.read_all()
    assert refused.value.condition == "TUBEMQ_ARROW_READER_CLOSED"


def test_closing_ends_another_threads_wait_for_a_broker(server, client):
    """Of a reader that is closed while it is used, the thread that uses it gives the lease back."""
    told = []

    def read():
        with pytest.raises(TubeMQError) as refused:
            reader.read_all()
        told.append(refused.value.condition)

    reader = client.read_arrow("packed", options={"tubemq.rpcTimeoutMs": 600_000})
    with server.faults.hold(Method.GET_MESSAGE) as held:
        reading = threading.Thread(target=read)
        reading.start()
        assert held.wait_for_hits()
        reader.close()
        reading.join(WAIT_SECONDS)
        assert told == ["TUBEMQ_ARROW_READER_CLOSED"]
        held.release()


WITHOUT_SPARK = """
import sys

sys.modules["pyspark"] = None  # as if it were not installed
from tubemq_spark.client import TubeMQClient

assert "pyarrow" not in sys.modules
with TubeMQClient.connect(sys.argv[1]) as client, client.read_arrow("demo", includeAttributes=True) as reader:
    print(reader.read_all().num_rows)
with TubeMQClient.connect(sys.argv[1]) as client, client.read_arrow("packed", payload="inlong") as reader:
    print(reader.read_all().num_rows)
"""


def test_spark_is_not_needed(server):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, server.master], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["60", "5"]
