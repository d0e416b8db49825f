"""The table of columns: what reads have, what writes take."""

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, MapType, StringType, VarcharType

from tests.source.rows import fetched
from tubemq_spark.source import arrow
from tubemq_spark.source.arrow import BatchBuilder
from tubemq_spark.source.schema import arrow_schema, schema_of
from tubemq_spark.spark.columns import ORIGIN, READ, TABLE, UNPACKED, WRITTEN, suggestion


def test_every_column_is_read_or_written():
    for column in TABLE:
        assert column.read or column.unpacked or column.written
    assert {"offset", "messageId"} == ORIGIN & set(READ)
    assert set(UNPACKED) - set(READ) == ORIGIN - set(READ)


@pytest.mark.parametrize("name", READ)
def test_every_column_of_a_read_is_built(name):
    import zoneinfo

    schema = schema_of([READ[name]])
    builder = BatchBuilder(arrow_schema(schema), zoneinfo.ZoneInfo("UTC"))
    list(
        builder.add(
            fetched([(b"x", "$msgType$=red,$msgTime$=202401020304,messageUid=7")]), exact_offsets=True
        )
    )
    (batch,) = builder.finish()
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == [name]
    assert batch.column(0).null_count == 0


@pytest.mark.parametrize(
    ("name", "given", "taken"),
    [
        ("value", StringType("UTF8_LCASE"), True),
        ("value", VarcharType(3), True),
        ("value", IntegerType(), False),
        ("partition", LongType(), False),
        ("attributes", MapType(StringType(), StringType()), True),
        ("attributes", MapType(StringType(), IntegerType()), False),
    ],
)
def test_types_that_a_write_takes(name, given, taken):
    assert WRITTEN[name].accepts(given) is taken


def test_an_unknown_name_is_answered_with_the_closest_column():
    assert suggestion("vlaue", WRITTEN) == "; did you mean 'value'?"
    assert suggestion("zzz", READ) == "."


def test_columns_without_spark_have_the_types_of_sparks_own():
    for columns in (READ.values(), UNPACKED.values()):
        assert arrow.schema_of(columns).equals(arrow_schema(schema_of(columns)))
