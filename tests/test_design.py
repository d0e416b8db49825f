"""The documents that describe the code stay true."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_map_of_design_is_up_to_date():
    """Run ``make docs`` when this fails."""
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    assert _tool("gen_file_map").with_map(text) == text


def test_importing_the_package_loads_neither_spark_nor_arrow():
    """The client works without Spark, so importing it must not cost Spark's or Arrow's import."""
    code = (
        "import sys, tubemq_spark, tubemq_spark.client.producer, tubemq_spark.client.range_reader, "
        "tubemq_spark.cluster.open, tubemq_spark.options, tubemq_spark.embedded.server; "
        "print(sorted(m for m in ('pyspark', 'pyarrow', 'grpc', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
