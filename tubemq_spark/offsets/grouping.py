"""Which ranges one task reads.

A task costs Spark about ten milliseconds, and a range of few rows costs three or four requests. So a task
reads several small ranges of one broker, one after another. A range of many rows is a task of its own.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tubemq_spark.model import RangeRequest
from tubemq_spark.offsets.units import rows_between

SMALL_RANGE_ROWS: Final = 1_000
"""A range of at most so many rows, including those of other partitions of its store, may share a task."""
MOST_RANGES: Final = 32
"""The maximum of ranges per task."""
MOST_ROWS: Final = 8_000
"""The maximum of rows in all ranges of a shared task."""


def grouped(
    requests: Sequence[RangeRequest],
    *,
    most_ranges: int | None = None,
    most_rows: int | None = None,
    fewest_tasks: int | None = None,
) -> list[list[RangeRequest]]:
    """Return the ranges of each task, every range in exactly one task, in the given order.

    Where there would be fewer tasks than ``fewest_tasks``, so few ranges share one that there are as many.
    """
    most_rows = min(most_rows or MOST_ROWS, MOST_ROWS)
    tasks = _shared(requests, most_ranges or MOST_RANGES, most_rows)
    if fewest_tasks is not None and len(tasks) < fewest_tasks:
        return _shared(requests, max(1, len(requests) // fewest_tasks), most_rows)
    return tasks


def _shared(requests: Iterable[RangeRequest], most_ranges: int, most_rows: int) -> list[list[RangeRequest]]:
    tasks: list[list[RangeRequest]] = []
    filling: dict[int, tuple[list[RangeRequest], int]] = {}
    for request in requests:
        rows = rows_between(request.range.start, request.range.end)
        task, rows_in_task = filling.get(request.range.partition.broker_id, ([], most_rows))
        if rows > SMALL_RANGE_ROWS:
            tasks.append([request])
            continue
        if rows_in_task + rows > most_rows or len(task) >= most_ranges:
            task, rows_in_task = [], 0
            tasks.append(task)
        task.append(request)
        filling[request.range.partition.broker_id] = task, rows_in_task + rows
    return tasks
