"""What Spark's worker processes do once, for one task after the other, and what a task knows of itself."""

import functools
import gc
import os
from typing import Final

from tubemq_spark.model import MicroBatch

REUSED_VARIABLE: Final = "SPARK_REUSE_WORKER"
"""PySpark sets it in worker processes that serve more than one task (``spark.python.worker.reuse``)."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@functools.cache
def spare_collector() -> None:
    """Make the garbage collector pass over what is there when the first task begins.

    PySpark collects all garbage after each task of a reused worker (pyspark/daemon.py). Most of what it walks
    through are the modules that its and our imports have made: about 25 ms of CPU per task, and next to
    nothing with this. What is garbage by now stays until the process ends, but that is little: PySpark has
    just collected what earlier tasks have left.
    """
    if os.environ.get(REUSED_VARIABLE):
        gc.freeze()


def micro_batch_of_task() -> MicroBatch | None:
    """Return the micro-batch that this task is a part of, also by ``foreachBatch``; None if it is of none.

    To be asked in the task's own thread.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty(_QUERY_ID) if context else None
    batch_id = context.getLocalProperty(_BATCH_ID) if context else None
    return MicroBatch(query_id, int(batch_id)) if query_id and batch_id and batch_id.isdigit() else None
