"""What both kinds of writers refuse at once."""

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.mark.parametrize("writer", ["writer", "streamWriter"])
def test_what_is_stored_cannot_be_replaced(writer):
    """No master is asked before: there is none."""
    source = TubeMQDataSource({"tubemq.master.servers": "127.0.0.1:1", "topic": "demo"})
    with pytest.raises(OptionError, match="TUBEMQ_SINK_OVERWRITE"):
        getattr(source, writer)(SCHEMA, True)
