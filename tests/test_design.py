"""What the package promises as a whole."""

import subprocess
import sys


def test_importing_the_package_loads_neither_spark_nor_arrow():
    """The client works without Spark, so importing it must not cost Spark's or Arrow's import."""
    code = (
        "import sys, tubemq_spark, tubemq_spark.client.producer, tubemq_spark.client.range_reader, "
        "tubemq_spark.cluster.open, tubemq_spark.options, tubemq_spark.embedded.server; "
        "print(sorted(m for m in ('pyspark', 'pyarrow', 'grpc', 'rich') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
