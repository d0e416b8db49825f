"""The example of ``docs/spark/repeats.md`` is run as it stands there."""

import ast

import pytest

from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.pages import blocks
from integration_tests.rig.queries import numbers, read


@pytest.mark.any_server
def test_the_example_of_the_page(spark, server, tmp_path):
    """Files to TubeMQ, in a micro-batch that is repeated, to Spark; rows without ids are kept as well."""
    settings, writing, reading = blocks("spark/repeats.md")
    topic = server.fresh_topic()
    names = {"tubemq": server.options(), "topic": topic, "folder": str(tmp_path)}
    assert {target.id for line in ast.parse(settings).body for target in line.targets} == names.keys()
    names["spark"] = spark
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "first.txt").write_text("".join(f"{number // 2}\n" for number in range(100)))

    exec(writing, names)
    names["writing"].processAllAvailable()
    names["writing"].stop()
    # As after a crash when all rows were stored and the manifest was not there yet.
    for file in (tmp_path / "writing" / "commits").glob("*0*"):
        file.unlink()
    for file in (tmp_path / "receipts").iterdir():
        file.unlink()
    exec(writing, names)
    names["writing"].processAllAvailable()
    names["writing"].stop()
    produce_numbers(server.master, topic, [7, 7])
    assert len(numbers(read(spark, server, topic))) == 202

    exec(reading, names)
    names["reading"].processAllAvailable()
    names["reading"].stop()
    found = [int(row.text) for row in spark.read.parquet(str(tmp_path / "orders")).collect()]
    assert_same_rows(found, [number // 2 for number in range(100)] + [7, 7])
