"""The job of ``docs/spark/iceberg.md``, killed over and over; and why it is not Iceberg's own sink."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from integration_tests.real.artifacts import PACKAGES, required, spark_jars
from integration_tests.rig.jobs import finish_job, forget_last_commit, kill_and_finish
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.pages import DOCS, spark_variables, write_job
from integration_tests.rig.runs import form

PAGE = "spark/iceberg.md"
KILLS = form(short=2, long=6)
CREATE = """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", "lake")
    .getOrCreate()
)
spark.sql("create table lake.web.clicks (page string) using iceberg")
"""

pytestmark = [pytest.mark.spark, pytest.mark.ecosystem, pytest.mark.timeout(1800)]


def rows_of(folder):
    """Return the rows of the page's table."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{folder}/catalog.db")
    pages = catalog.load_table("web.clicks").scan().to_arrow()["page"]
    return [int(page) for page in pages.to_pylist()]


@pytest.mark.skipif(
    importlib.util.find_spec("pyiceberg") is None, reason="needs PyIceberg, as .ci/nightly has it"
)
def test_kills_lose_and_repeat_nothing(server, tmp_path, record_property):
    topic = server.fresh_topic("3x1")
    count = 60_000
    produce_numbers(server.master, topic, range(count))
    program = write_job(PAGE, tmp_path, server.master, topic, rows_per_trigger=count // 12)
    job = {"program": program, "variables": spark_variables(tmp_path)}

    within = kill_and_finish(tmp_path, {}, KILLS, **job)
    assert_same_rows(rows_of(tmp_path), range(count))
    # The table has the micro-batch, and Spark does not know it.
    forget_last_commit(tmp_path)
    finish_job(tmp_path, {}, **job)

    assert_same_rows(rows_of(tmp_path), range(count))
    record_property("rows", count)
    record_property("kills", f"{KILLS}, {within} of them within a micro-batch")


def test_icebergs_own_catalog_fails_as_the_page_says(tmp_path):
    page = (DOCS / PAGE).read_text()
    assert PACKAGES["iceberg"] in page
    (error,) = re.findall(r"```\n(java\.lang\..*?)\n```", page, re.DOTALL)
    jars = {"spark.jars": required(lambda: spark_jars("iceberg"))}
    variables = {**os.environ, **spark_variables(tmp_path, jars)}

    run = subprocess.run(
        [sys.executable, "-c", CREATE],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 1
    assert re.sub(r"\s+", " ", error) in run.stderr
