"""What is left of a traceback where Spark takes over an error."""

import gc
import importlib.util
import io
import logging
import os
import pickle
import subprocess
import sys
import traceback

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark.util import handle_worker_exception

from tests.memory_cluster import MemoryCluster
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import LocalProtocolError, OptionError, TubeMQConnectionError, TubeMQError
from tubemq_spark.sink import task as writing, writers
from tubemq_spark.sink.writers import TubeMQStreamWriter, TubeMQWriter
from tubemq_spark.source import planner, task as reading
from tubemq_spark.source.readers import RefusedStreamReader, TubeMQReader, TubeMQStreamReader
from tubemq_spark.source.schema import default_schema
from tubemq_spark.spark.edge import (
    REUSED_VARIABLE,
    at_sparks_edge,
    spare_collector,
    spare_collector_of_imports,
    too_old,
)

MISSING = {"tubemq.master.servers": "master:8715"}


def fail(error):
    try:
        raise OSError("the socket's words")
    except OSError as cause:
        raise error from cause


@at_sparks_edge
class Edge:
    closed = False

    def answer(self, error):
        fail(error)

    def read(self, error=None):
        try:
            yield 1
            yield 2
            if error is not None:
                fail(error)
        finally:
            self.closed = True

    def values(self):
        return [1, 2]


def frames(error):
    """Return the functions between this module and where the error was raised."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


def lost():
    return TubeMQConnectionError("TUBEMQ_CONNECTION_LOST", endpoint="h:1", during="reading", cause="x")


def test_an_expected_error_comes_alone():
    with pytest.raises(TubeMQConnectionError) as caught:
        Edge().answer(lost())
    assert frames(caught.value) == ["called_by_spark"]
    assert "the socket's words" not in "".join(traceback.format_exception(caught.value))


def test_an_error_behind_some_rows_comes_alone():
    rows = Edge().read(lost())
    assert [next(rows), next(rows)] == [1, 2]
    with pytest.raises(TubeMQConnectionError) as caught:
        next(rows)
    assert frames(caught.value) == ["_rows_without_frames"]


def told_to_spark(error):
    """Return what Spark's JVM is told of an error."""
    told = io.BytesIO()
    try:
        Edge().answer(error)
    except (TubeMQError, ValueError) as raised:
        handle_worker_exception(raised, told)
    return told.getvalue()[8:].decode()


@pytest.fixture
def process_of_spark(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", importlib.util.find_spec("pyspark.daemon"))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


@pytest.mark.usefixtures("process_of_spark")
def test_spark_is_told_the_sentence_and_no_frame():
    assert told_to_spark(lost()) == f"tubemq_spark.errors.TubeMQConnectionError: {lost()}\n"


@pytest.mark.usefixtures("process_of_spark")
def test_spark_is_told_the_frames_of_a_bug():
    assert "in fail" in told_to_spark(ValueError("a bug"))


def test_in_a_process_of_the_user_nothing_is_hidden():
    assert "in called_by_spark" in told_to_spark(lost())
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_the_whole_story_is_logged_for_who_debugs(caplog):
    caplog.set_level(logging.DEBUG, "tubemq_spark")
    with pytest.raises(TubeMQConnectionError):
        Edge().answer(lost())
    assert "the socket's words" in caplog.text
    assert "in fail" in caplog.text


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what="a bug")]
)
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)) as caught:
        Edge().answer(error)
    assert "fail" in frames(caught.value)


def test_rows_of_an_abandoned_read_are_closed():
    edge = Edge()
    rows = edge.read()
    next(rows)
    rows.close()
    assert edge.closed


def test_what_is_no_iterator_is_left_alone():
    assert Edge().values() == [1, 2]


def test_options_that_are_wrong_show_no_frame_of_ours():
    with pytest.raises(OptionError) as caught:
        TubeMQDataSource(MISSING | {"subscrib": "demo"})
    assert frames(caught.value) == ["called_by_spark"]
    with pytest.raises(OptionError) as caught:
        TubeMQDataSource(MISSING).reader(default_schema(include_attributes=False))
    assert frames(caught.value) == ["called_by_spark"]


@pytest.mark.parametrize(
    "cls",
    [
        TubeMQDataSource,
        TubeMQReader,
        TubeMQStreamReader,
        RefusedStreamReader,
        TubeMQWriter,
        TubeMQStreamWriter,
    ],
)
def test_everything_spark_calls_is_covered(cls):
    asked = [name for name in vars(cls) if not name.startswith("_") and callable(getattr(cls, name))]
    plain = [name for name in asked if not hasattr(getattr(cls, name), "__wrapped__")]
    assert [name for name in plain if name != "name"] == []


def test_a_decorated_reader_pickles():
    reader = TubeMQDataSource(MISSING | {"subscribe": "demo"}).reader(
        default_schema(include_attributes=False)
    )
    assert type(pickle.loads(pickle.dumps(reader))) is TubeMQReader


def test_an_error_of_a_refused_reader_is_the_same_at_every_question():
    error = TubeMQError("TUBEMQ_SINK_NO_TOPIC")
    reader = RefusedStreamReader(error)
    for _ in range(2):
        with pytest.raises(TubeMQError) as caught:
            reader.initialOffset()
        assert frames(caught.value) == ["called_by_spark"]


@pytest.fixture
def fresh_process():
    """Whatever the collector passes over was moved there by the test."""
    gc.unfreeze()
    spare_collector.cache_clear()
    yield
    spare_collector.cache_clear()
    gc.freeze()  # as at the beginning of the run


@pytest.mark.usefixtures("fresh_process")
def test_the_collector_passes_over_what_a_reused_worker_has_imported(monkeypatch):
    monkeypatch.setenv(REUSED_VARIABLE, "1")
    spare_collector()
    spared = gc.get_freeze_count()
    assert spared > 1000
    kept = [[] for _ in range(1000)]
    spare_collector()
    assert gc.get_freeze_count() == spared, f"only the first task does that; {len(kept)} lists came later"


@pytest.mark.usefixtures("fresh_process")
def test_tasks_that_write_and_tasks_that_read_do_that(monkeypatch):
    cluster, schema = MemoryCluster(demo=(1, 1)), StructType([StructField("value", BinaryType())])
    for module in (planner, reading, writers, writing):
        monkeypatch.setattr(module, "open_cluster", lambda *_, **__: cluster)
    monkeypatch.setenv(REUSED_VARIABLE, "1")
    servers = {"tubemq.master.servers": "master:8715"}

    writer = TubeMQDataSource({**servers, "topic": "demo"}).writer(schema, False)
    writer.write(iter([pa.RecordBatch.from_pydict({"value": [b"a"]})]))
    assert gc.get_freeze_count() > 1000

    gc.unfreeze()
    spare_collector.cache_clear()
    reader = TubeMQDataSource({**servers, "subscribe": "demo"}).reader(schema)
    assert [batch.num_rows for batch in reader.read(*reader.partitions())] == [1]
    assert gc.get_freeze_count() > 1000


@pytest.mark.usefixtures("fresh_process")
def test_other_processes_are_left_alone(monkeypatch):
    monkeypatch.delenv(REUSED_VARIABLE, raising=False)
    spare_collector()
    spare_collector_of_imports()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("version", ["3.5.9", "4.0.0", "4.1.4", "4.1.0.dev0"])
def test_an_old_spark_is_refused_with_both_versions(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(TubeMQError) as caught:
        TubeMQDataSource({"subscribe": "demo"})
    assert str(caught.value) == (
        f"[TUBEMQ_SPARK_TOO_OLD] PySpark {version} is installed, but tubemq_spark needs 4.2 or newer; "
        "run: pip install 'pyspark>=4.2' (on a cluster: a newer Spark)."
    )


@pytest.mark.parametrize("version", ["4.2.0", "4.2.0rc1", "4.3.0.dev1", "4.10.0", "5.0.0"])
def test_newer_ones_are_taken(version):
    assert not too_old(version)


def test_a_spark_without_python_data_sources_is_refused_where_ours_is_imported(tmp_path):
    """PySpark 3.5 has no ``pyspark.sql.datasource``."""
    (tmp_path / "pyspark" / "sql").mkdir(parents=True)
    (tmp_path / "pyspark" / "__init__.py").write_text('__version__ = "3.5.7"\n')
    (tmp_path / "pyspark" / "sql" / "__init__.py").touch()
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tubemq_spark.datasource"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        "tubemq_spark.errors.TubeMQError: [TUBEMQ_SPARK_TOO_OLD] PySpark 3.5.7 is installed"
    )
