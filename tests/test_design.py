"""What the package promises as a whole."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_importing_the_package_loads_neither_spark_nor_arrow():
    """The client works without Spark, so importing it must not cost Spark's or Arrow's import."""
    code = (
        "import sys, tubemq_spark, tubemq_spark.client, tubemq_spark.client.aio, "
        "tubemq_spark.cluster.open, tubemq_spark.options, tubemq_spark.embedded.server; "
        "print(sorted(m for m in ('pyspark', 'pyarrow', 'grpc', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("tests", {"integration_tests"}),
        ("integration_tests", {"tests"}),
        ("testkit", {"tests", "integration_tests"}),
    ],
)
def test_unit_tests_and_integration_tests_share_only_the_testkit(package, others):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert others.isdisjoint(name.partition(".")[0] for name in imported_by(path)), path
