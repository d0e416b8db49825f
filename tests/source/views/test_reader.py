"""What all views have in common: their schemas, projections, and the ways to ask for them."""

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import OptionError
from tubemq_spark.options import ViewName
from tubemq_spark.source.views.reader import VIEWS, view_schema

BASE = {"tubemq.master.servers": "master:8715", "subscribe": "demo"}
VIEWS_BUT_MESSAGES = [view for view in ViewName if view is not ViewName.MESSAGES]


def schema(**fields):
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize("view", VIEWS_BUT_MESSAGES)
def test_every_view_has_its_schema_and_documents_each_column(view):
    assert view_schema(view).names == list(VIEWS[view].by_name)
    assert len(VIEWS[view].by_name) == len(VIEWS[view].columns)
    for column in VIEWS[view].columns:
        assert column.read.endswith(".")
        assert "|" not in column.read


def test_the_view_of_messages_is_the_usual_read():
    usual, named = (TubeMQDataSource(options) for options in (BASE, {**BASE, "view": "messages"}))
    assert usual.schema() == named.schema()
    assert type(usual.reader(usual.schema())) is type(named.reader(named.schema()))


def test_a_schema_may_name_some_columns_in_any_order(view, server, send):
    send("plain", 1, 0, "a")
    wanted = schema(rows=LongType(), topic=StringType())

    rows = view("partitions", wanted, assign='{"plain":["1:0"]}')
    assert [list(row.items()) for row in rows] == [[("rows", 1), ("topic", "plain")]]


@pytest.mark.parametrize(
    ("fields", "condition", "words"),
    [
        ({"earlyest": LongType()}, "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "did you mean 'earliest'?"),
        ({"value": StringType()}, "TUBEMQ_SCHEMA_UNKNOWN_COLUMN", "They have: topic string, brokerId int"),
        ({"rows": IntegerType()}, "TUBEMQ_SCHEMA_WRONG_TYPE", "'rows' is bigint, not int"),
        ({}, "TUBEMQ_SCHEMA_EMPTY", "topic"),
    ],
)
def test_other_schemas_are_refused(fields, condition, words):
    with pytest.raises(OptionError) as refused:
        TubeMQDataSource({**BASE, "view": "partitions"}).reader(schema(**fields))
    assert refused.value.condition == condition
    assert words in str(refused.value)


def test_a_misspelt_view_is_told_the_right_one():
    with pytest.raises(OptionError) as refused:
        TubeMQDataSource({**BASE, "view": "partition"})
    assert refused.value.condition == "TUBEMQ_OPTION_VALUE"
    assert "Option 'view' is 'partition', but must be messages" in str(refused.value)
    assert str(refused.value).endswith("(did you mean 'partitions'?).")


@pytest.mark.parametrize("view", VIEWS_BUT_MESSAGES)
def test_a_stream_has_only_messages(view):
    source = TubeMQDataSource({**BASE, "view": view.value})
    stream = source.streamReader(source.schema())
    with pytest.raises(OptionError) as refused:
        stream.initialOffset()
    assert refused.value.condition == "TUBEMQ_VIEW_IN_STREAM"
    assert f"Option 'view' is {view.value}" in str(refused.value)


def test_spark_s_bare_partition_has_no_rows():
    source = TubeMQDataSource({**BASE, "view": "partitions"})
    assert list(source.reader(source.schema()).read(None)) == []
