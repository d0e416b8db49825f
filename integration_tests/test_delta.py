"""The job of ``docs/spark/delta.md``, killed over and over: Delta Lake has each row once."""

import json

import pyarrow.parquet as pq
import pyspark
import pytest

from integration_tests.real.artifacts import required, spark_jars
from integration_tests.rig.jobs import finish_job, forget_last_commit, kill_and_finish
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.pages import spark_variables, write_job
from integration_tests.rig.runs import form

KILLS = form(short=2, long=6)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.ecosystem,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not pyspark.__version__.startswith("4.2."), reason="Delta Lake is there for PySpark 4.2 only"
    ),
]


def actions(table):
    """Return what the log of a Delta table says, in its order."""
    lines = [path.read_text().splitlines() for path in sorted((table / "_delta_log").glob("*.json"))]
    return [json.loads(line) for entry in lines for line in entry]


def rows_of(table):
    """Return the rows of a table to which rows were added only."""
    assert not [action for action in actions(table) if "remove" in action]
    files = [table / action["add"]["path"] for action in actions(table) if "add" in action]
    return [int(page) for file in files for page in pq.read_table(file)["page"].to_pylist()]


def test_kills_lose_and_repeat_nothing(server, tmp_path, record_property):
    topic = server.fresh_topic("3x1")
    count = 60_000
    produce_numbers(server.master, topic, range(count))
    program = write_job("spark/delta.md", tmp_path, server.master, topic, rows_per_trigger=count // 12)
    # A table of a test needs no 50 tasks to read its log.
    settings = {"spark.databricks.delta.snapshotPartitions": "2"}
    settings["spark.jars"] = required(lambda: spark_jars("delta"))
    job = {"program": program, "variables": spark_variables(tmp_path, settings)}

    within = kill_and_finish(tmp_path, {}, KILLS, **job)
    assert_same_rows(rows_of(tmp_path / "table"), range(count))
    log = actions(tmp_path / "table")
    # Delta has the micro-batch, and Spark does not know it.
    forget_last_commit(tmp_path)
    finish_job(tmp_path, {}, **job)

    assert actions(tmp_path / "table") == log
    record_property("rows", count)
    record_property("kills", f"{KILLS}, {within} of them within a micro-batch")
