"""One writing task: every row is sent and acknowledged before the commit message goes back."""

from collections.abc import Iterator

import pyarrow as pa

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.options import WriteOptions
from tubemq_spark.sink.checked_rows import task_name, task_number
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.dead_letters import DeadLetters
from tubemq_spark.sink.receipts import TubeMQCommitMessage
from tubemq_spark.sink.row_sender import RowSender
from tubemq_spark.sink.uids import TaskUids, write_prefix
from tubemq_spark.spark.worker import micro_batch_of_task, spare_collector


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, run_id: str | None = None
) -> TubeMQCommitMessage:
    """Send every row, wait until brokers acknowledged all of them, and return the receipts.

    Delivery is at least once: a repeated task, or a send repeated after a lost answer, stores again.
    """
    spare_collector()
    task, number = task_name(), task_number()
    micro_batch = micro_batch_of_task()
    write = str(micro_batch or run_id)
    stamp = TaskUids(write, number) if options.stamp_message_uid else None
    with open_cluster(options.cluster).sender(task) as sender:
        dead_letters = None
        if options.dead_letter_topic is not None:
            dead_letters = DeadLetters(sender, options.dead_letter_topic, write, number)
        rows = RowSender(sender, columns, stamp, dead_letters)
        for batch in batches:
            rows.send(batch)
        sender.flush()
        return TubeMQCommitMessage(
            tuple(sender.receipts()),
            rows.count,
            micro_batch,
            dead_letters=rows.dead_letters,
            uid_prefix=write_prefix(write).decode() if stamp and columns.have_no_ids else None,
        )
