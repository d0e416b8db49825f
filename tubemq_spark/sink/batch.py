"""The batch sink: ``df.write.format("tubemq").mode("append").save()``."""

import logging
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tubemq_spark.errors import OptionError
from tubemq_spark.options import WriteOptions
from tubemq_spark.sink.columns import SinkColumns
from tubemq_spark.sink.manifests import Manifests
from tubemq_spark.sink.receipts import level, summary
from tubemq_spark.sink.task import write_rows
from tubemq_spark.sink.topic_check import check_topics
from tubemq_spark.spark.edge import at_sparks_edge

logger = logging.getLogger(__name__)


@at_sparks_edge
class TubeMQWriter(DataSourceArrowWriter):
    """Holds values only: Spark pickles it to every task."""

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
