"""A Spark session of its own, for tests: small, quiet, and not reachable from other machines."""

import contextlib
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubemq_spark.spark.edge import OLDEST, too_old

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Queries of tests are short: without the second stage of the JIT compiler they take a quarter less CPU.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A busy machine may need more than the default of 15 s to start a Python worker.
    "spark.python.authenticate.socketTimeout": "120s",
    # Over TCP, every task that runs Python waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
}


def why_not() -> str | None:
    """Return why Spark cannot run here; None if it can."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return "needs PySpark: pip install 'tubemq_spark[spark]'"
    if too_old(version):
        return f"needs PySpark {OLDEST} or newer, but {version} is installed"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=Path(home) / "bin" if home else None) is None:
        place = f"in JAVA_HOME={home}" if home else "on the PATH"
        return f"needs Java 17 or newer, but no java was found {place}"
    return None


@contextlib.contextmanager
def local_session(directory: Path) -> Iterator["SparkSession"]:
    """Yield a session on two cores that keeps its files in a directory.

    If there already is a session, it is yielded and left running, because a process can have only one.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    # By default Spark starts its Python workers with `python3`, which may be another installation.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.config("spark.sql.warehouse.dir", (directory / "warehouse").as_uri()).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
