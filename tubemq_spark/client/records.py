"""Fetched messages as records, one object each: for readers without Spark."""

import dataclasses
from collections.abc import Iterable, Iterator

from tubemq_spark.model import Message, TopicPartition
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.fetch_columns import FetchedBatch


@dataclasses.dataclass(frozen=True, slots=True)
class Record(Message):
    """A message, and where it was read."""

    partition: TopicPartition
    offset: int | None
    """In index bytes; None where several partitions share a store: the protocol does not tell it there."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic


def records(batches: Iterable[FetchedBatch], *, exact_offsets: bool) -> Iterator[Record]:
    """Yield the records of fetched batches.

    Args:
        batches: what was read, in offset order.
        exact_offsets: whether no other partition is in the store; otherwise no record gets an offset.
    """
    for batch in batches:
        columns = batch.columns
        for row in range(len(columns)):
            message = columns.message(row)
            known = exact_offsets and batch.dense
            offset = batch.start + INDEX_ENTRY_BYTES * int(columns.ordinals[row]) if known else None
            yield Record(message.value, message.attributes, message.message_id, batch.partition, offset)
