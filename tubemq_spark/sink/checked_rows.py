"""The rows of a record batch as messages, and which of them cannot be messages."""

import dataclasses
from collections.abc import Mapping
from typing import cast

from pyspark import TaskContext

from tubemq_spark.errors import ProduceError
from tubemq_spark.model import excerpt
from tubemq_spark.protocol.send_batch import Bools, SendBatch


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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """All rows of a record batch, one for one; only those that are not refused may be sent."""

    messages: SendBatch
    """A refused row may have a null value, a null topic or half a partition here."""
    refused: Bools
    unwritable: Mapping[int, str]
    """What else is wrong with rows, by their places; these are refused as well."""

    def refusal(self, row: int) -> ProduceError:
        """Return why a refused row cannot be a message."""
        messages = self.messages
        number, value = messages.first_row + row, messages.values.value(row)
        topic = cast("str | None", messages.topics.value(row))
        if value is None:
            return ProduceError("TUBEMQ_SINK_NULL_VALUE", row=row_name(number), topic=topic)
        name = row_name(number, value)
        if topic is None:
            return ProduceError("TUBEMQ_SINK_NULL_TOPIC", row=name)
        if row in self.unwritable:
            return ProduceError("TUBEMQ_BAD_MESSAGE", what=f"row {name}: {self.unwritable[row]}")
        broker, partition = (messages.partitions and messages.partitions.value(row)) or (None, None)
        return ProduceError(
            "TUBEMQ_SINK_HALF_NULL_ROUTE", row=name, topic=topic, broker=broker, partition=partition
        )
