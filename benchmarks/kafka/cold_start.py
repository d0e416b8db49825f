"""One query in a Spark of its own: reads the order from stdin, writes the figures to stdout, both as JSON.

``starting.cold`` runs it.
"""

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.kafka import any_source, starting
from benchmarks.kafka.systems import System
from benchmarks.meter import SparkMeter
from benchmarks.spark import session


def main() -> None:
    """Start Spark without any Python data source, then measure."""
    order = json.load(sys.stdin)
    system = System(**order["system"])
    with (
        tempfile.TemporaryDirectory() as folder,
        session(Path(folder), "local[1]", spark__jars=order["jars"]) as spark,
    ):
        if system.format == any_source.FORMAT:
            any_source.register(spark)
        # Spark's own start and its first job are not what is asked for.
        spark.range(10).collect()
        batch = order["way"] == starting.COLD_BATCH
        measure = starting.load_and_action if batch else starting.load_and_start
        figures = measure(spark, SparkMeter(), system)
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    main()
