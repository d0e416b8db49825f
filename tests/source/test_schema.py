"""Which columns a user may ask for."""

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from tests.cases import in_one_test
from tubemq_spark.errors import OptionError
from tubemq_spark.source.schema import check_schema, default_schema
from tubemq_spark.spark.columns import READ


def test_attributes_are_only_there_when_asked_for():
    usual = [name for name in READ if name not in {"attributes", "messageUid"}]
    assert default_schema(include_attributes=True).names == [*usual, "attributes"]
    assert default_schema(include_attributes=False).names == usual


@given(st.permutations(list(READ)), st.integers(1, len(READ)))
def test_any_columns_in_any_order(names, count):
    check_schema(StructType([StructField(name, READ[name].type) for name in names[:count]]))


def test_a_column_that_is_never_null_may_be_declared_not_null():
    check_schema(StructType([StructField("value", BinaryType(), nullable=False)]))


@pytest.mark.parametrize("contains_null", [True, False])
def test_a_map_s_flag_is_not_a_type(contains_null):
    """A schema in DDL cannot say whether a map's values may be null."""
    attributes = MapType(StringType(), StringType(), valueContainsNull=contains_null)

    check_schema(StructType([StructField("attributes", attributes)]))


@in_one_test(
    ("field", "condition", "told"),
    [
        (None, "TUBEMQ_SCHEMA_EMPTY", "value"),
        (StructField("values", BinaryType()), "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "did you mean 'value'?"),
        (StructField("MessageID", LongType()), "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "did you mean 'messageId'?"),
        (StructField("xyzzy", LongType()), "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "offset bigint"),
        (StructField("value", StringType()), "TUBEMQ_SCHEMA_WRONG_TYPE", "binary, not string"),
        (StructField("offset", StringType()), "TUBEMQ_SCHEMA_WRONG_TYPE", "bigint"),
        (
            StructField("timestamp", TimestampNTZType()),
            "TUBEMQ_SCHEMA_WRONG_TYPE",
            "is timestamp_ltz, not timestamp_ntz; read it as timestamp_ltz and",
        ),
        (StructField("offset", LongType(), nullable=False), "TUBEMQ_SCHEMA_NOT_NULL", "'offset'"),
        (
            StructField("attributes", MapType(StringType(), LongType())),
            "TUBEMQ_SCHEMA_WRONG_TYPE",
            "map<string,string>",
        ),
    ],
)
def test_a_schema_that_no_row_fits_is_refused(field, condition, told):
    with pytest.raises(OptionError) as refused:
        check_schema(StructType([] if field is None else [field]))

    assert refused.value.condition == condition
    assert told in str(refused.value)
