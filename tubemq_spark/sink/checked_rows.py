"""The rows of a record batch as messages, and which of them cannot be messages."""

import dataclasses
from collections.abc import Mapping
from typing import cast

from tubemq_spark.errors import ProduceError
from tubemq_spark.protocol.send_batch import Bools, SendBatch
from tubemq_spark.sink.rows import row_name


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CheckedRows:
    """All rows of a record batch, one for one; only those that are not refused may be sent."""

    messages: SendBatch
    """A refused row may have a null value, a null topic or half a partition here."""
    refused: Bools
    untimely: Mapping[int, Exception]
    """Why timestamps cannot be written, by their rows; these are refused as well."""

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
        if row in self.untimely:
            why = self.untimely[row]
            what = f"the timestamp of row {name} does not fit into yyyyMMddHHmm ({why})"
            return ProduceError("TUBEMQ_BAD_MESSAGE", what=what)
        broker, partition = (messages.partitions and messages.partitions.value(row)) or (None, None)
        return ProduceError(
            "TUBEMQ_SINK_HALF_NULL_ROUTE", row=name, topic=topic, broker=broker, partition=partition
        )
