"""TubeMQ from SQL: what `docs/spark/sql.md` says, in statements."""

import pytest

from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import numbers, read, refusal, run

pytestmark = pytest.mark.any_server

NUMBERS = "SELECT cast(id AS string) AS value FROM range(50)"


def listed(server, **options):
    """Return options as SQL writes them."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in server.options(**options).items())


@pytest.fixture
def topic(server):
    """A topic with the numbers below 100."""
    name = server.fresh_topic()
    produce_numbers(server.master, name, range(100))
    return name


@pytest.fixture
def table(spark):
    """Create a table of the format; it is gone after the test."""
    made = []

    def create(definition):
        made.append(f"table_{len(made)}")
        spark.sql(f"CREATE TABLE {made[-1]} {definition}")
        return made[-1]

    yield create
    for name in made:
        spark.sql(f"DROP TABLE {name}")


@pytest.fixture
def view(spark):
    """Create a temporary view of the format; it is gone after the test."""
    made = []

    def create(columns, options):
        made.append(f"view_{len(made)}")
        spark.sql(f"CREATE TEMPORARY VIEW {made[-1]} {columns} USING tubemq OPTIONS ({options})")
        return made[-1]

    yield create
    for name in made:
        spark.catalog.dropTempView(name)


def test_a_view_is_read_and_joined_with_itself(spark, server, topic, view):
    name = view("", listed(server, subscribe=topic))

    assert_same_rows(numbers(spark.table(name)), range(100))
    joined = spark.sql(f"SELECT * FROM {name} one JOIN {name} other ON one.value = other.value")
    assert joined.count() == 100
    of_columns = view("(value binary, offset long)", listed(server, subscribe=topic))
    assert spark.table(of_columns).columns == ["value", "offset"]
    assert_same_rows(numbers(spark.table(of_columns)), range(100))


def test_a_view_keeps_its_end_until_it_is_made_again(spark, server, topic, table, view):
    """Spark plans the read of a Python source once. ``WITH`` makes another one for each statement."""
    options = listed(server, subscribe=topic)
    name, beside = view("", options), table("USING tubemq")
    with_options = f"SELECT * FROM {beside} WITH ({options})"
    assert numbers(spark.table(name)) == numbers(spark.sql(with_options)) == [*range(100)]

    produce_numbers(server.master, topic, [100])

    assert numbers(spark.sql(f"SELECT * FROM {name}")) == [*range(100)]
    assert numbers(spark.sql(with_options)) == [*range(101)]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING tubemq OPTIONS ({options})")
    assert numbers(spark.sql(f"SELECT * FROM {name}")) == [*range(101)]


def test_rows_are_inserted_into_views(spark, server, view):
    """The columns are those of a read, or those that the view names."""
    topic = server.fresh_topic()
    few = view("(value string, topic string)", listed(server))
    usual = view("", listed(server, topic=topic))

    spark.sql(f"INSERT INTO {few} SELECT cast(id AS string), '{topic}' FROM range(50)")
    spark.sql(f"INSERT INTO {usual} (value) SELECT cast(cast(id + 50 AS string) AS binary) FROM range(50)")

    assert_same_rows(numbers(read(spark, server, topic)), range(100))


def test_options_beside_a_table(spark, server, topic, table):
    """``WITH`` passes options where those of the table do not reach the source."""
    name = table("USING tubemq")
    options = listed(server, subscribe=topic)

    assert_same_rows(numbers(spark.sql(f"SELECT * FROM {name} WITH ({options})")), range(100))
    both = "SELECT count(*) FROM t one JOIN t other ON one.offset = other.offset"
    assert spark.sql(f"WITH t AS (SELECT * FROM {name} WITH ({options})) {both}").head()[0] == 100

    target = server.fresh_topic()
    options = listed(server, topic=target)
    spark.sql(f"INSERT INTO {name} WITH ({options}) BY NAME SELECT cast(value AS binary) FROM ({NUMBERS})")
    own_columns = table("(value string) USING tubemq")
    spark.sql(f"INSERT INTO {own_columns} WITH ({options}) {NUMBERS}")
    spark.sql(NUMBERS).writeTo(own_columns).options(**server.options(topic=target)).append()
    assert_same_rows(numbers(read(spark, server, target)), [*range(50)] * 3)


def test_a_stream_from_a_table(spark, server, topic, table, tmp_path):
    name = table("USING tubemq")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.sql(f"SELECT value FROM STREAM {name} WITH ({listed(server, **options)})")
    found = []

    run(stream, lambda frame, _: found.extend(numbers(frame)), tmp_path)

    assert_same_rows(found, range(100))


@pytest.mark.parametrize("clause", ["OPTIONS", "TBLPROPERTIES"])
def test_the_options_of_a_table_do_not_reach_the_source(spark, server, topic, table, clause):
    """Should this fail with a new Spark: docs/spark/sql.md can say that they do."""
    name = table(f"(value string) USING tubemq {clause} ({listed(server, subscribe=topic, topic=topic)})")

    condition, sentence = refusal(spark.table(name).collect)
    assert condition == "TUBEMQ_OPTION_MISSING"
    assert "CREATE TEMPORARY VIEW, or SELECT ... FROM the_table WITH ('tubemq.master.servers'=" in sentence

    condition, sentence = refusal(lambda: spark.sql(f"INSERT INTO {name} {NUMBERS}"))
    assert condition == "TUBEMQ_OPTION_MISSING"
    assert "CREATE TEMPORARY VIEW, or INSERT INTO the_table WITH ('tubemq.master.servers'=" in sentence


def test_a_topic_is_not_overwritten(spark, server, view):
    name = view("(value string)", listed(server, topic=server.fresh_topic()))
    condition, _ = refusal(lambda: spark.sql(f"INSERT OVERWRITE {name} {NUMBERS}"))
    assert condition == "TUBEMQ_SINK_OVERWRITE"
