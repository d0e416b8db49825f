"""One writing task: every row is sent and acknowledged before the commit message goes back."""

from collections.abc import Iterator

import pyarrow as pa

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.options import WriteOptions
from tubemq_spark.sink.columns import SinkColumns, task_name, task_number
from tubemq_spark.sink.receipts import TubeMQCommitMessage
from tubemq_spark.sink.repairs import Repairs
from tubemq_spark.sink.uids import TaskUids
from tubemq_spark.spark_worker import micro_batch_of_task, spare_collector


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: WriteOptions, run_id: str | None = None
) -> TubeMQCommitMessage:
    """Send every row, wait until brokers acknowledged all of them, and return the receipts.

    Delivery is at least once: a repeated task, or a send repeated after a lost answer, stores again.

    Args:
        batches: the rows.
        columns: what their columns mean.
        options: where and how to write.
        run_id: names the run of a batch write; rows of a micro-batch have ids that name this instead.

    Raises:
        ProduceError: a row could not be sent; nothing is sent after the first error.
    """
    spare_collector()
    task = task_name()
    repairs = Repairs()
    micro_batch = micro_batch_of_task()
    stamp = TaskUids(str(micro_batch or run_id), task_number()) if options.stamp_message_uid else None
    rows = 0
    with open_cluster(options.cluster).sender(task) as sender:
        for batch in batches:
            for some in columns.batches(batch, repairs, rows + 1, stamp=stamp):
                sender.send_batch(some)
            rows += batch.num_rows
        sender.flush()
        repairs.tell(task)
        return TubeMQCommitMessage(tuple(sender.receipts()), rows, micro_batch)
