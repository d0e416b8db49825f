"""With a checkpoint of ``tubemq-spark checkpoint rewind``, a stream goes on exactly where it was asked to."""

import json

import pytest
from pyspark.sql import functions as sf

from integration_tests.rig.messages import assert_same_rows, client_config
from integration_tests.rig.queries import Collected, collected, read_stream, run, start, to_files
from tubemq_spark.cli import main as cli
from tubemq_spark.client import TubeMQClient

pytestmark = pytest.mark.timeout(300)

STORES = 3
AT_FIRST, LATER = 20, 4
"""How many messages each store has when the stream stops, and how many come then."""
PER_MINUTE = 5
SOURCE_EVOLUTION = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""With these Spark finds sources by their names: PySpark 4.2 needs both, 4.3 only the first."""


def number(store, place):
    return 1000 * store + place


def numbers(first, end=AT_FIRST + LATER):
    """Return the messages of all stores from one place to another."""
    return [number(store, place) for store in range(STORES) for place in range(first, end)]


def produce_places(server, topic, places):
    """Store messages one behind the other in each store, each minute a few."""
    with TubeMQClient(client_config(server.master)) as client, client.producer() as producer:
        for store in range(STORES):
            for place in places:
                producer.send(
                    topic,
                    b"%d" % number(store, place),
                    partition=(1, 10_000 * store),
                    message_time=f"2026010100{place // PER_MINUTE:02}",
                )


def content(folder):
    """Return what is in a folder, byte for byte."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def rewind(server, capfd):
    """Write a new checkpoint; return what the command tells programs."""

    def command(old, new, *arguments, code=0):
        capfd.readouterr()
        given = ["checkpoint", "rewind", str(old), str(new), *arguments, "--master", server.master, "--json"]
        assert cli.main(given) == code
        written = capfd.readouterr()
        return written.err if code else json.loads(written.out)

    return command


@pytest.fixture
def stopped(spark, server, tmp_path):
    """A stream that has read the first messages and stopped, with its checkpoint; more have come since."""
    topic = server.fresh_topic("3x1")
    produce_places(server, topic, range(AT_FIRST))
    stream = read_stream(spark, server, topic, maxOffsetsPerTrigger="15")
    sink, old = Collected(), tmp_path / "old"
    run(stream, sink, old)
    assert_same_rows(sink.rows, numbers(0, AT_FIRST))
    assert [(batch, len(rows)) for batch, rows in sink.batches] == [(0, 15), (1, 15), (2, 15), (3, 15)]
    produce_places(server, topic, range(AT_FIRST, AT_FIRST + LATER))
    return topic, stream, old


def goes_on(stream, checkpoint, told):
    """Start the stream with a new checkpoint; return what it reads."""
    again = collected(stream, checkpoint)
    assert again.batches[0] == (told["nextBatch"], [])
    assert again.batches[0][0] > 3
    return again.rows


def test_a_stream_goes_on_where_it_was_rewound_to(stopped, tmp_path, rewind):
    _, stream, old = stopped
    before = content(old)
    end = 28 * AT_FIRST

    for name, place, first in (
        ("offset", ("--to", str(28 * 3)), 3),
        ("time", ("--to", "2026-01-01T00:02"), 2 * PER_MINUTE),
        ("batch", ("--batch", "2"), 15),
    ):
        told = rewind(old, tmp_path / name, *place)
        assert {(one["now"], one["then"]) for one in told["partitions"]} == {(end, 28 * first)}, name
        assert {one["messages"] for one in told["partitions"]} == {first - AT_FIRST}, name
        assert_same_rows(goes_on(stream, tmp_path / name, told), numbers(first))

    assert content(old) == before
    assert_same_rows(collected(stream, old).rows, numbers(AT_FIRST))


@pytest.mark.nightly
def test_a_stream_goes_on_at_an_end_of_its_topic_or_elsewhere_in_single_partitions(stopped, tmp_path, rewind):
    topic, stream, old = stopped
    for name, first in (("earliest", 0), ("latest", AT_FIRST + LATER)):
        told = rewind(old, tmp_path / name, "--to", name)
        assert_same_rows(goes_on(stream, tmp_path / name, told), numbers(first))

    told = rewind(old, tmp_path / "offsets", "--offsets", json.dumps({topic: {"1:10000": 28 * 7}}))
    assert_same_rows(
        goes_on(stream, tmp_path / "offsets", told),
        [*numbers(AT_FIRST), *(number(1, place) for place in range(7, AT_FIRST))],
    )


@pytest.mark.any_server
def test_a_query_with_state_begins_without_it(spark, server, tmp_path, rewind):
    """Micro-batches are counted from 0 again: the state store cannot begin with another version."""
    topic = server.fresh_topic("3x1")
    produce_places(server, topic, range(AT_FIRST))
    stream = read_stream(spark, server, topic).dropDuplicates(["value"])
    sink, old = Collected(), tmp_path / "old"
    run(stream, sink, old)
    produce_places(server, topic, range(AT_FIRST + LATER))

    refused = rewind(old, tmp_path / "new", "--to", "0", code=2)
    assert "[TUBEMQ_CHECKPOINT_STATE]" in refused
    assert not (tmp_path / "new").exists()
    assert rewind(old, tmp_path / "new", "--to", "280", "--drop-state")["nextBatch"] == 0

    again = collected(stream, tmp_path / "new")
    assert again.batches[0] == (0, [])
    assert_same_rows(again.rows, numbers(0))


@pytest.mark.any_server
def test_the_other_source_of_a_query_stays_where_it_is(spark, server, tmp_path, rewind):
    topics = [server.fresh_topic("3x1") for _ in range(2)]
    for topic in topics:
        produce_places(server, topic, range(AT_FIRST))
    first, second = (read_stream(spark, server, topic) for topic in topics)
    stream = first.select("value").union(second.select(sf.concat(sf.lit("9"), "value").alias("value")))
    sink, old = Collected(), tmp_path / "old"
    run(stream, sink, old)
    assert "must be the source that is meant of this query's 2; these read from TubeMQ: 0, 1" in rewind(
        old, tmp_path / "new", "--to", "280", code=2
    )
    for topic in topics:
        produce_places(server, topic, range(AT_FIRST, AT_FIRST + LATER))

    told = rewind(old, tmp_path / "new", "--to", "280", "--source", "1")
    assert told["source"] == "1"
    again = collected(stream, tmp_path / "new")

    assert_same_rows(again.rows, [*numbers(AT_FIRST), *(int(f"9{one}") for one in numbers(10))])


@pytest.fixture
def evolving(spark):
    """The session, in which each source of a stream has a name."""
    for name, value in SOURCE_EVOLUTION.items():
        spark.conf.set(name, value)
    yield spark
    for name in SOURCE_EVOLUTION:
        spark.conf.unset(name)


@pytest.mark.any_server
def test_sources_with_names_go_on_in_any_order(evolving, server, tmp_path, rewind):
    topics = {name: server.fresh_topic("3x1") for name in ("clicks", "orders")}
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "first").write_text("77")
    sources = {"lines": evolving.readStream.name("lines").text(str(lines))}
    for name, topic in topics.items():
        produce_places(server, topic, range(AT_FIRST))
        options = server.options(subscribe=topic, startingOffsets="earliest")
        stream = evolving.readStream.name(name).format("tubemq").options(**options).load()
        sources[name] = stream.select(stream.value.cast("string"))
    orders = sources["orders"].select(sf.concat(sf.lit("9"), "value").alias("value"))

    begun, old = Collected(), tmp_path / "old"
    run(sources["lines"].union(sources["clicks"]).union(orders), begun, old)
    refused = rewind(old, tmp_path / "new", "--to", "280", code=2)
    assert "of this query's 3; these read from TubeMQ: clicks, orders" in refused
    for topic in topics.values():
        produce_places(server, topic, range(AT_FIRST, AT_FIRST + LATER))
    (lines / "second").write_text("78")

    told = rewind(old, tmp_path / "new", "--to", "280", "--source", "orders")
    assert told["source"] == "orders"
    again = collected(orders.union(sources["lines"]).union(sources["clicks"]), tmp_path / "new")

    ordered = [int(f"9{one}") for one in numbers(10)]
    assert again.batches[0] == (told["nextBatch"], [])
    assert_same_rows(again.rows, [78, *numbers(AT_FIRST), *ordered])


@pytest.mark.any_server
def test_a_file_sink_takes_what_comes_again(spark, server, tmp_path, rewind):
    """It passes over micro-batches whose numbers it knows."""
    topic = server.fresh_topic("3x1")
    produce_places(server, topic, range(AT_FIRST))
    stream, old, files = read_stream(spark, server, topic), tmp_path / "old", tmp_path / "files"

    def write(checkpoint):
        to_files(stream.select(stream.value.cast("string")), files, checkpoint)

    write(old)
    rewind(old, tmp_path / "new", "--to", "280")
    write(tmp_path / "new")

    stored = [int(row.value) for row in spark.read.parquet(str(files)).collect()]
    assert_same_rows(stored, [*numbers(0, AT_FIRST), *numbers(10, AT_FIRST)])


@pytest.mark.any_server
def test_what_was_planned_and_not_finished_comes_again(spark, server, tmp_path, rewind):
    topic = server.fresh_topic("3x1")
    produce_places(server, topic, range(AT_FIRST))
    stream = read_stream(spark, server, topic, maxOffsetsPerTrigger="15")
    old, done = tmp_path / "old", Collected()

    def fail_at_last(frame, batch):
        if batch == 3:
            raise RuntimeError("the sink is full")
        done(frame, batch)

    query = start(stream, fail_at_last, old, availableNow=True)
    with pytest.raises(Exception, match="the sink is full"):
        query.awaitTermination()

    told = rewind(old, tmp_path / "new", "--batch", "2")
    assert {one["messages"] for one in told["partitions"]} == {0}
    assert "must be a finished micro-batch of source 0 that the checkpoint still has: 0 to 2" in rewind(
        old, tmp_path / "other", "--batch", "3", code=2
    )
    assert_same_rows(done.rows + collected(stream, tmp_path / "new").rows, numbers(0, AT_FIRST))
