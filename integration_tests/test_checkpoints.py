"""Checkpoints of a query that was stopped at once, and of other releases."""

import json
import shutil
from pathlib import Path

import pytest

from integration_tests.rig.messages import assert_same_rows, client_config, produce_numbers
from integration_tests.rig.queries import Collected, read_stream, refusal, run, start
from tubemq_spark.client import TubeMQClient

# The first test of a process also starts its servers and its Spark. The Java server has its turn by night.
pytestmark = [pytest.mark.timeout(300), pytest.mark.any_server]

CHECKPOINTS = Path(__file__).parents[1] / "tests" / "checkpoints"
"""Those that earlier releases have written."""


def test_a_query_can_be_stopped_right_after_its_start(spark, server, tmp_path):
    """Nothing of it is lost, whatever it has done until then."""
    topic = server.fresh_topic("3x1")
    produce_numbers(server.master, topic, range(30))
    stream = read_stream(spark, server, topic)
    stopped, sink = Collected(), Collected()

    query = start(stream, stopped, tmp_path, processingTime="0 seconds")
    query.stop()
    assert query.exception() is None
    run(stream, sink, tmp_path)

    batches = dict(stopped.batches + sink.batches)
    assert_same_rows([row for rows in batches.values() for row in rows], range(30))


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_a_checkpoint_of_the_first_version_goes_on(spark, server, tmp_path):
    """It repeats the micro-batch that was planned and not committed, and then reads what is new."""
    server.add_topic("kept", 3, 1)
    stores = [(1, 10_000 * store) for store in range(3)]
    produce_to(
        server, "kept", {store: range(100 * number, 100 * number + 10) for number, store in enumerate(stores)}
    )
    checkpoint = shutil.copytree(CHECKPOINTS / "first", tmp_path / "checkpoint")
    planned_from = json.loads((checkpoint / "offsets" / "1").read_text().splitlines()[-1])["topics"]["kept"]
    left = [
        100 * number + row
        for number in range(3)
        for row in range(planned_from[f"1:{10_000 * number}"] // 28, 10)
    ]
    assert 0 < len(left) < 12
    produce_to(server, "kept", {store: [100 * number + 10] for number, store in enumerate(stores)})
    sink = Collected()

    run(read_stream(spark, server, "kept", maxOffsetsPerTrigger="12"), sink, checkpoint)

    number, repeated = sink.batches[0]
    assert number == 2
    assert_same_rows(repeated, left)
    assert_same_rows(sink.rows, [*left, 10, 110, 210])


@pytest.mark.parametrize("server", ["embedded"], indirect=True)
def test_a_checkpoint_of_an_assignment_goes_on_as_a_subscription(spark, server, tmp_path):
    """The planned micro-batch is repeated as it was; then comes all of the partition that was left out."""
    server.add_topic("kept_shared", 1, 2)
    for number in range(10):
        produce_to(server, "kept_shared", {(1, 0): [number], (1, 1): [100 + number]})
    checkpoint = shutil.copytree(CHECKPOINTS / "assigned", tmp_path / "checkpoint")
    sink = Collected()

    run(read_stream(spark, server, "kept_shared"), sink, checkpoint)

    number, repeated = sink.batches[0]
    assert number == 1
    assert_same_rows(repeated, range(6, 10))
    assert_same_rows(sink.rows, [*range(6, 10), *range(100, 110)])


def produce_to(server, topic, values):
    """Store numbers in certain partitions."""
    with TubeMQClient(client_config(server.master)) as client, client.producer() as producer:
        for partition, chosen in values.items():
            for value in chosen:
                producer.send(topic, b"%d" % value, partition=partition)


def set_version(checkpoint, version):
    """Give the last offset of a checkpoint another format version."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    *before, offset = last.read_text().splitlines()
    last.write_text("\n".join([*before, json.dumps(json.loads(offset) | {"v": version})]))
    # Hadoop's checksum of the file.
    (last.parent / f".{last.name}.crc").unlink()


def test_a_checkpoint_of_a_newer_release_is_refused_with_both_versions(spark, server, tmp_path):
    topic = server.fresh_topic()
    produce_numbers(server.master, topic, range(3))
    stream = read_stream(spark, server, topic)
    run(stream, Collected(), tmp_path)
    set_version(tmp_path, 7)

    condition, sentence = refusal(lambda: run(stream, Collected(), tmp_path))

    assert condition == "TUBEMQ_OFFSETS_VERSION"
    assert "has format version 7, but this release only reads up to version 2" in sentence
