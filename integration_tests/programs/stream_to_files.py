"""A streaming job in a process of its own, for tests that kill it: topics to a checkpointed file sink.

usage: stream_to_files.py FOLDER PLAN

The plan is JSON: ``options`` of the source, ``settings`` of Spark, and whether the job is ``endless``, until
there is a file ``stop`` in the folder, instead of ending with what is there now.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Most of these processes are killed before the second stage of the JIT compiler pays.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}

TOO_LATE = "Python worker failed to connect back"
STARTS = 5


def session(folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """Start Spark."""
    builder = SparkSession.builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    for name, value in (SETTINGS | dict(settings)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def numbers(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the stream; the values are numbers, with blanks in front of some."""
    stream = spark.readStream.format("tubemq").options(**options).load()
    return stream.selectExpr("trim(cast(value as string)) as number")


def start(rows: DataFrame, folder: Path, *, endless: bool) -> StreamingQuery:
    """Start the query."""
    trigger: dict[str, Any] = {"processingTime": "0 seconds"} if endless else {"availableNow": True}
    return (
        rows.writeStream.format("text")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def finish(begin: Callable[[], StreamingQuery], folder: Path) -> None:
    """Start the query and wait until it has ended, or end it where it is when that is wanted.

    A busy machine may not start a Python process within the 10 s that Spark gives it, and no setting changes
    them. Then the query is started again: that is not what these jobs are to show.
    """
    for number in range(1, STARTS + 1):
        try:
            wait_for(begin(), folder)
        except StreamingQueryException as error:
            if TOO_LATE not in str(error) or number == STARTS:
                raise
            print(f"start {number} of {STARTS}: {TOO_LATE}", flush=True)
        else:
            return


def wait_for(query: StreamingQuery, folder: Path) -> None:
    """Wait until a query has ended; end it when there is a file that says so."""
    while not query.awaitTermination(0.2):
        if (folder / "stop").exists():
            query.stop()


def main(folder: Path, plan: Mapping[str, Any]) -> None:
    """Run the job."""
    spark = session(folder, plan["settings"])
    rows = numbers(spark, plan["options"])
    finish(lambda: start(rows, folder, endless=plan["endless"]), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
