"""Which ranges one task reads.

A task costs Spark about ten milliseconds, and a range of few rows costs three or four requests. So a task
reads several small ranges of one broker, one after another. A range of many rows is a task of its own.
"""

from collections.abc import Iterable
from typing import Final

from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.units import rows_between

SMALL_RANGE_ROWS: Final = 1_000
"""A range of at most so many rows, including those of other partitions of its store, may share a task."""
MOST_RANGES: Final = 32
"""The maximum of ranges per task."""
MOST_ROWS: Final = 8_000
"""The maximum of rows in all ranges of a shared task."""


def grouped(requests: Iterable[RangeRequest]) -> list[list[RangeRequest]]:
    """Return the ranges of each task, every range in exactly one task, in the given order."""
    tasks: list[list[RangeRequest]] = []
    filling: dict[int, tuple[list[RangeRequest], int]] = {}
    for request in requests:
        rows = rows_between(request.range.start, request.range.end)
        task, held = filling.get(request.range.partition.broker_id, ([], MOST_ROWS))
        if rows > SMALL_RANGE_ROWS:
            tasks.append([request])
            continue
        if held + rows > MOST_ROWS or len(task) >= MOST_RANGES:
            task, held = [], 0
            tasks.append(task)
        task.append(request)
        filling[request.range.partition.broker_id] = task, held + rows
    return tasks
