"""The project of ``docs/spark/pipelines.md``, run by ``spark-pipelines`` as its readers run it."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

from integration_tests.rig.jobs import files_written
from integration_tests.rig.messages import Sample, client_config, produce
from integration_tests.rig.pages import DOCS, blocks, moved
from tubemq_spark.client import TubeMQClient

PAGE = "spark/pipelines.md"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.ecosystem,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None,
        reason="needs pyspark[pipelines], as .ci/nightly has it",
    ),
]


def write_project(folder, server, topics):
    """Write the page's two files, for other places."""
    (specification,), (flows,) = blocks(PAGE, "yaml"), blocks(PAGE)
    named = {'subscribe="clicks"': f'subscribe="{topics["clicks"]}"'}
    named |= {'"topic": "orders"': f'"topic": "{topics["orders"]}"'}
    (folder / "transformations").mkdir()
    (folder / "transformations" / "clicks.py").write_text(
        moved(flows, {"127.0.0.1:8715": server.master, **named})
    )
    (folder / "spark-pipeline.yml").write_text(moved(specification, {"/data/clicks": str(folder)}))


def spark_settings(folder):
    """Return the variables that lead to a few settings, since with more than ten Spark loses some."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 2\nspark.driver.extraJavaOptions -XX:TieredStopAtLevel=1\n"
    )
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def run(folder, variables):
    """Run the page's command."""
    (command,) = re.findall(r"```\n(spark-pipelines .*)\n```", (DOCS / PAGE).read_text())
    program, *arguments = shlex.split(command)
    script = Path(pyspark.__file__).parent / "bin" / program
    done = subprocess.run(
        ["bash", str(script), *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert "Run is COMPLETED" in log, log


def counted(folder):
    """Return the materialized view."""
    files = [str(path) for path in (folder / "spark-warehouse" / "pages").glob("*.parquet")]
    return {row["page"]: row["count"] for row in ds.dataset(files).to_table().to_pylist()}


def streamed(folder):
    """Return the streaming table."""
    files = [str(path) for path in files_written(folder / "spark-warehouse" / "clicks")]
    return Counter(ds.dataset(files).to_table()["page"].to_pylist())


def test_two_runs_read_and_write_each_row_once(server, tmp_path):
    topics = {"clicks": server.fresh_topic("3x1"), "orders": server.fresh_topic("2x3")}
    write_project(tmp_path, server, topics)
    variables = {**os.environ, **spark_settings(tmp_path), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    clicks = ["home", "cart", "home", "prices", "cart", "home"] * 50

    for number in (1, 2):
        produce(server.master, topics["clicks"], (Sample(page.encode()) for page in clicks))
        run(tmp_path, variables)

        expected = Counter(clicks * number)
        assert counted(tmp_path) == expected
        assert streamed(tmp_path) == expected
        with TubeMQClient(client_config(server.master)) as client:
            orders = Counter(record.value for record in client.read(topics["orders"]))
        assert orders == {b"cart": expected["cart"]}
