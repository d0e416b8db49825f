"""What Spark asks of a sink: its batch writer and its stream writer."""

import logging
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.options import WriteOptions
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.manifests import Manifests, level, skip_rows, summary
from tubemq_spark.sink.task import write_rows
from tubemq_spark.spark.edge import at_sparks_edge, micro_batch_of_task

logger = logging.getLogger(__name__)


@at_sparks_edge
class TubeMQWriter(DataSourceArrowWriter):
    """The batch sink. Holds values only: Spark pickles it to every task."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        refuse_overwrite(overwrite=overwrite)
        self._options = options
        self._columns = SinkColumns.bind(schema, options)
        self._run_id = str(uuid.uuid4())
        check_topics(options, patient=True)
        Manifests(options).prepare()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send a task's rows (executor)."""
        return write_rows(iterator, self._columns, self._options, self._run_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written (driver), and write its manifest; the messages are in TubeMQ already."""
        Manifests(self._options).commit(messages, self._run_id)
        logger.log(level(messages), "wrote %s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what stays in TubeMQ although the job failed (driver): a log cannot take messages back."""
        logger.warning("the write failed; what was sent stays in TubeMQ, at least: %s", summary(messages))
        Manifests(self._options).abort(messages, self._run_id)


def refuse_overwrite(*, overwrite: bool) -> None:
    """Refuse the mode ``overwrite``."""
    if overwrite:
        raise OptionError("TUBEMQ_SINK_OVERWRITE")


@at_sparks_edge
class TubeMQStreamWriter(DataSourceStreamArrowWriter):
    """Holds values only: Spark makes a new one for every micro-batch, and another for its commit.

    For the output mode ``append``: Spark itself keeps ``update`` from Python sinks, and ``complete`` asks
    to overwrite. Aggregates go through ``foreachBatch`` and the batch sink.
    """

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        refuse_overwrite(overwrite=overwrite)
        self._options = options
        self._columns = SinkColumns.bind(schema, options)
        try:
            check_topics(options, patient=False)
        except TubeMQConnectionError as error:
            if not error.retriable:
                raise
            # This may be any micro-batch of a query that runs well: its tasks wait for the masters.
            logger.warning("could not check before the micro-batch whether the topic exists: %s", error)
        Manifests(options).prepare()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send a task's rows (executor), unless the micro-batch was written before."""
        micro_batch = micro_batch_of_task()
        if micro_batch is not None and Manifests(self._options).has(micro_batch):
            return skip_rows(iterator, micro_batch)
        return write_rows(iterator, self._columns, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what a micro-batch wrote (driver), and write its manifest."""
        if not Manifests(self._options).commit(messages):
            logger.log(level(messages), "micro-batch %d wrote %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log what stays in TubeMQ although the micro-batch failed (driver); its replay sends it again."""
        logger.warning(
            "micro-batch %d failed; what was sent stays in TubeMQ, at least: %s", batchId, summary(messages)
        )
        Manifests(self._options).abort(messages)


def check_topics(options: WriteOptions, *, patient: bool) -> None:
    """Refuse topics of options that do not exist, or wait until they can be published to, if ``patient``.

    The topics of a column are looked at by the tasks.
    """
    cluster = open_cluster(options.cluster)
    for topic in (options.topic, options.dead_letter_topic):
        if topic is not None and patient:
            cluster.await_publishable(topic)
        elif topic is not None:
            cluster.refuse_unknown_topic(topic)
