"""A value in a JSON file: what is read, what is written, and what a failure leaves."""

import errno
import json
import os

import pytest

from tubemq_spark.embedded.config.catalog import Catalog, TopicSpec
from tubemq_spark.embedded.files import DirectoryLock, JsonFile
from tubemq_spark.errors import DataLossError


def numbers(path, default=()):
    return JsonFile(
        path, default, lambda content: tuple(content["numbers"]), lambda value: {"numbers": value}
    )


def test_a_value_that_cannot_be_written_is_not_used(tmp_path):
    file = numbers(tmp_path / "missing" / "numbers.json", (7,))
    with pytest.raises(FileNotFoundError):
        file.replace((1,))
    assert file.value == (7,)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"version": 1}', json.dumps({"version": 2, "numbers": [1]}), '{"numbers": [1]}']
)
def test_a_file_that_cannot_be_understood_is_left_as_it_is(tmp_path, text):
    path = tmp_path / "numbers.json"
    path.write_text(text)
    with pytest.raises(DataLossError, match=r"^\[TUBEMQ_STORE_DAMAGED\] .*numbers\.json"):
        numbers(path)
    assert path.read_text() == text


def test_a_field_of_a_newer_release_is_told_as_such(tmp_path):
    path = tmp_path / "topics.json"
    Catalog(path).add("demo", TopicSpec())
    content = json.loads(path.read_text())
    content["topics"]["demo"]["colour"] = "red"
    path.write_text(json.dumps(content))
    with pytest.raises(DataLossError, match=r"only by a newer release.*colour"):
        Catalog(path)


def test_a_lock_on_a_full_disk_is_taken_and_released(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", full)
        DirectoryLock(tmp_path).close()
    DirectoryLock(tmp_path).close()
