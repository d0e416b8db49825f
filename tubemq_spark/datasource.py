"""The data source Spark sees: options in, readers and writers out."""

import pyspark

from tubemq_spark.errors import TubeMQError
from tubemq_spark.spark.edge import at_sparks_edge, check_spark_version, spare_collector_of_imports

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType
except ModuleNotFoundError:  # PySpark 3.5 has no data sources in Python
    check_spark_version(pyspark.__version__)
    raise

# Before the imports of all that follows.
spare_collector_of_imports()


@at_sparks_edge
class TubeMQDataSource(DataSource):
    """``format("tubemq")``: read and write TubeMQ topics, in batches and as streams.

    Options are refused here, at ``load()``, before anything runs; docs/reference/options.md lists them. The
    packages behind it are imported late, because Spark imports this class for every Python data source.
    """

    def __init__(self, options: dict[str, str]) -> None:
        check_spark_version(pyspark.__version__)
        super().__init__(options)
        from tubemq_spark.options import OptionSet

        self._options = OptionSet.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tubemq"

    def schema(self) -> StructType:
        """Return the columns of a frame whose user gave no schema."""
        if not self._options.of_messages:
            from tubemq_spark.source.views.reader import view_schema

            return view_schema(self._options.view)
        from tubemq_spark.source.schema import default_schema

        return default_schema(
            include_attributes=self._options.include_attributes, payload=self._options.payload
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader: of messages, or of a view."""
        if not self._options.of_messages:
            from tubemq_spark.source.views.reader import ViewReader

            return ViewReader(schema, self._options.view, self._options.for_view())
        from tubemq_spark.source.readers import TubeMQReader

        self._options.warn_of_schema(schema.names)
        return TubeMQReader(schema, self._options.for_batch_read())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream reader; what is wrong with it is told when it is asked something."""
        from tubemq_spark.source.readers import RefusedStreamReader, TubeMQStreamReader

        self._options.warn_of_schema(schema.names)
        try:
            return TubeMQStreamReader(schema, self._options.for_stream_read())
        except TubeMQError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer."""
        from tubemq_spark.sink.writers import TubeMQWriter

        return TubeMQWriter(schema, self._options.for_write(), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the stream writer."""
        from tubemq_spark.sink.writers import TubeMQStreamWriter

        return TubeMQStreamWriter(schema, self._options.for_write(), overwrite=overwrite)
