"""The job of ``stream_to_files.py``, in which tasks are slow or fail: for tests on a cluster.

usage: stream_with_troubles.py FOLDER PLAN

The plan has two parts more, which both name a micro-batch by its number. ``slow``: the first attempt of its
first task takes minutes. ``failing``: the first three attempts of its first task fail. In the folder
``attempts`` there is a file for each attempt, ``batch-task-attempt``, with the process that made it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.functions import udf
from stream_to_files import finish, numbers, session, start

SLOW_SECONDS = 300
FAILURES = 3


def with_troubles(folder: str, slow: int | None, failing: int | None) -> Callable[[str], str]:
    """Return a function that passes a row on, after the troubles of its task."""
    begun = set()

    def begin(batch: int, task: int, attempt: int) -> None:
        mark = Path(folder) / f"{batch}-{task}-{attempt}"
        mark.with_suffix(".part").write_text(str(os.getpid()))
        mark.with_suffix(".part").rename(mark)
        if (batch, task, attempt) == (slow, 0, 0):
            time.sleep(SLOW_SECONDS)
        if (batch, task) == (failing, 0) and attempt < FAILURES:
            raise RuntimeError(f"attempt {attempt} fails on purpose")

    def pass_on(number: str) -> str:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        where = batch, context.partitionId(), context.attemptNumber()
        if where not in begun:
            begun.add(where)
            begin(*where)
        return number

    return pass_on


def main(folder: Path, plan: Mapping[str, Any]) -> None:
    """Run the job."""
    attempts = folder / "attempts"
    attempts.mkdir(exist_ok=True)
    spark = session(folder, plan["settings"])
    rows = numbers(spark, plan["options"])
    pass_on = udf(with_troubles(str(attempts), plan.get("slow"), plan.get("failing")))
    passed_on = rows.select(pass_on("number").alias("number"))
    finish(lambda: start(passed_on, folder, endless=plan["endless"]), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
