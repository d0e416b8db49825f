"""The Spark session of the benchmarks."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).resolve().parent.parent


@contextmanager
def session(folder: Path, master: str = "local[2]", **settings: str) -> Iterator[SparkSession]:
    """Run Spark with the Python of this process; a dot in a setting's name is written as two underscores.

    Its Python workers can import this package.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
