"""How rows and tasks are called, so that a user finds them."""

from pyspark import TaskContext

from tubemq_spark.model import excerpt


def row_name(number: int, value: bytes | None = None) -> str:
    """Return words that let the user find a row: its number, its task and how its value begins."""
    shown = "" if value is None else f" ({excerpt(value)})"
    return f"{number} of {task_name()}{shown}"


def task_number() -> int:
    """Return the number of the task that runs here, which its repetitions have as well."""
    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())


def task_name() -> str:
    """Return the name of the task that runs here, as Spark's own messages number it."""
    return "this task" if TaskContext.get() is None else f"task {task_number()}"
