"""A streaming job that passes over losses and is killed within its micro-batch, in a process of its own.

usage: stream_over_losses.py MASTER TOPIC LEDGER CHECKPOINT

The first attempt of every task fails when it has read its rows. When the others have read theirs, the job
kills its process group: the micro-batch is not committed.
"""

import os
import signal
import sys
from collections.abc import Iterator

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession


def fail_once(rows: Iterator[Row]) -> Iterator[Row]:
    """Read everything, and then fail if this is a task's first attempt."""
    yield from list(rows)
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        raise RuntimeError("a first attempt, which fails on purpose")


def die(frame: DataFrame, _: int) -> None:
    """Read a micro-batch, and end like a machine that loses power."""
    frame.rdd.mapPartitions(fail_once).collect()
    os.killpg(0, signal.SIGKILL)


def main(master: str, topic: str, ledger: str, checkpoint: str) -> None:
    """Run until the end of the first micro-batch."""
    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.format("tubemq")
        .option("tubemq.master.servers", master)
        .option("tubemq.group", "it_group")
        .option("subscribe", topic)
        .option("failOnDataLoss", "false")
        .option("lossLedger", ledger)
        .load()
        .writeStream.foreachBatch(die)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
