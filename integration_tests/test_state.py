"""The job of ``docs/spark/state.md``, killed over and over: its state counts each row once."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from integration_tests.rig.jobs import files_written, finish_job, forget_last_commit, kill_and_finish
from integration_tests.rig.messages import Sample, assert_same_rows, produce
from integration_tests.rig.pages import spark_variables, write_job
from integration_tests.rig.runs import form

KILLS = form(short=2, long=4)
PAGES = 7

pytestmark = [pytest.mark.spark, pytest.mark.ecosystem, pytest.mark.timeout(1800)]


def test_a_state_counts_each_row_once(server, tmp_path, record_property):
    topic = server.fresh_topic("3x1")
    count = 7_000
    clicks = [f"page{number % PAGES} {number}" for number in range(count)]
    produce(server.master, topic, (Sample(click.encode()) for click in clicks))
    program = write_job("spark/state.md", tmp_path, server.master, topic, rows_per_trigger=count // 10)
    job = {"program": program, "variables": spark_variables(tmp_path)}

    within = kill_and_finish(tmp_path, {}, KILLS, **job)
    # The files and the state have the micro-batch, and Spark's log does not.
    forget_last_commit(tmp_path)
    finish_job(tmp_path, {}, **job)

    rows = [row for file in files_written(tmp_path / "rows") for row in pq.read_table(file).to_pylist()]
    assert_same_rows([row["click"] for row in rows], clicks)
    numbered = Counter((row["page"], row["visits"]) for row in rows)
    assert numbered == Counter((f"page{page}", visit + 1) for page in range(PAGES) for visit in range(1000))
    record_property("rows", count)
    record_property("kills", f"{KILLS}, {within} of them within a micro-batch")
