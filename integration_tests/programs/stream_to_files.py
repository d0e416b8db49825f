"""A streaming job in a process of its own, for tests that kill it: a topic to a checkpointed file sink.

usage: stream_to_files.py MASTER TOPIC FOLDER ROWS_PER_TRIGGER
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(master: str, topic: str, folder: Path, rows_per_trigger: str) -> None:
    """Run until all that is there now has been written."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        # Most of these processes are killed before the second stage of the JIT compiler pays.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    query = (
        spark.readStream.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("tubemq.group", "it_kill")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_per_trigger)
        .load()
        .selectExpr("cast(value as string) as number")
        .writeStream.format("text")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
