"""What is done once in a Spark worker process, which serves one task after the other."""

import functools
import gc
import os
from typing import Final

REUSED_VARIABLE: Final = "SPARK_REUSE_WORKER"
"""PySpark sets it in worker processes that serve more than one task (``spark.python.worker.reuse``)."""


@functools.cache
def spare_collector() -> None:
    """Let the garbage collector pass over what is there when the first task begins.

    PySpark collects all garbage after each task of a reused worker (pyspark/daemon.py). Most of what it walks
    through are the modules that its and our imports have made: about 25 ms of CPU per task, and next to
    nothing with this. What is garbage by now stays until the process ends, but that is little: PySpark has
    just collected what earlier tasks have left.
    """
    if os.environ.get(REUSED_VARIABLE):
        gc.freeze()
