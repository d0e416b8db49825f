"""A value in a JSON file: what is read, what is written, and what a failure leaves."""

import json

import pytest

from tubemq_spark.embedded.config.files import JsonFile
from tubemq_spark.errors import DataLossError


def numbers(path, default=()):
    return JsonFile(
        path, default, lambda content: tuple(content["numbers"]), lambda value: {"numbers": value}
    )


def test_without_a_file_the_value_is_the_default(tmp_path):
    path = tmp_path / "numbers.json"
    assert numbers(path, (7,)).value == (7,)
    assert not path.exists()


def test_a_new_value_is_in_the_file(tmp_path):
    file = numbers(tmp_path / "numbers.json")
    with file.lock:
        file.replace((1, 2))
    assert file.value == (1, 2)
    assert numbers(file.path, (7,)).value == (1, 2)


def test_none_is_a_value_like_any_other(tmp_path):
    path = tmp_path / "none.json"
    JsonFile(path, 1, lambda content: content["value"], lambda value: {"value": value}).replace(None)
    assert JsonFile(path, 1, lambda content: content["value"], dict).value is None


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
