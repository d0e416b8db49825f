"""The log of a gateway process: its format, and files that are replaced when they are large."""

import json
import logging
import re
import sys

import pytest

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.loading import load_settings
from tubemq_spark.gateway.operate.log import log_handler


def settings(**flags):
    return load_settings(None, {}, {"master_servers": "m", **flags})


def record(message, *, failed=False):
    try:
        if failed:
            raise ValueError("a cause")
    except ValueError:
        failure = sys.exc_info()
    else:
        failure = None
    found = logging.LogRecord("tubemq_spark.gateway", logging.INFO, __file__, 1, message, (), failure)
    found.created, found.msecs = 1_767_225_600.25, 250.0
    return found


def written(path, *records, **flags):
    handler = log_handler(settings(log_file=str(path), **flags))
    for one in records:
        handler.emit(one)
    handler.close()
    return path.read_text(encoding="utf-8")


def test_an_entry_is_a_line_with_its_time_in_utc(tmp_path):
    text = written(tmp_path / "log", record("hello"))
    assert text == "2026-01-01T00:00:00Z INFO tubemq_spark.gateway: hello\n"


def test_in_json_an_entry_with_a_traceback_is_one_line_too(tmp_path):
    text = written(tmp_path / "log", record('a "b"\nc'), record("d", failed=True), log_json="true")
    first, second = map(json.loads, text.splitlines())
    assert first == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "INFO",
        "logger": "tubemq_spark.gateway",
        "message": 'a "b"\nc',
    }
    assert "ValueError: a cause" in second["traceback"]


def test_a_large_file_gives_way_to_a_new_one_and_only_so_many_are_kept(tmp_path):
    limits = {"log_file_bytes": "65536", "log_files": "2"}
    written(tmp_path / "log", *[record("x" * 10_000)] * 40, **limits)
    found = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert found.keys() == {"log", "log.1", "log.2"}
    assert max(found.values()) <= 65_536


def test_a_log_without_a_file_goes_to_stderr(capsys):
    log_handler(settings()).emit(record("hello"))
    assert re.search("INFO tubemq_spark.gateway: hello", capsys.readouterr().err)


def test_a_file_that_cannot_be_written_is_refused_before_the_start(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere" / "log"):
        with pytest.raises(GatewayError, match=r"log_file .* a file that this process may write"):
            settings(log_file=str(path))
