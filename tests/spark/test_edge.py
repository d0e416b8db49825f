"""What is left of a traceback where Spark takes over an error."""

import importlib.util
import io
import logging
import os
import pickle
import sys
import traceback

import pytest
from pyspark.util import handle_worker_exception

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import LocalProtocolError, OptionError, TubeMQConnectionError, TubeMQError
from tubemq_spark.sink.writers import TubeMQStreamWriter, TubeMQWriter
from tubemq_spark.source.readers import RefusedStreamReader, TubeMQReader, TubeMQStreamReader
from tubemq_spark.source.schema import default_schema
from tubemq_spark.spark.edge import at_sparks_edge

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


def test_rows_that_nobody_wants_any_more_are_closed():
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
