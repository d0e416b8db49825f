"""Each example does what it says, and says in one sentence what it lacks."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

WITHOUT_SPARK = {
    "service": """\
        {"customer": "anna", "item": "book", "price": 12}
        {"customer": "anna", "item": "lamp", "refused": "no such item"}
        {"customer": "ben", "item": "pen", "price": 2}
        """,
}
WITH_SPARK = {
    "backfill": "60 rows, from ('202601050900', '6000') to ('202601050959', '11900')",
    "dead_letters": """\
        written:
          1 book
          2 pens
          3 books
        dead letters:
          TUBEMQ_SINK_NULL_VALUE for orders
          TUBEMQ_TOPIC_UNKNOWN for ordres
        """,
    "files_to_parquet": """\
        messages in the topic: 200
        rows in Parquet: 100
        different rows: 100
        """,
    "join": """\
        {"id":"a1","euros":30}
        {"id":"a3","euros":7}
        """,
    "json_events": """\
        10:00 home 2
        10:00 prices 1
        10:30 home 1
        """,
    "word_count": """\
        end 1
        is 2
        kept 1
        log 2
        read 1
        the 3
        """,
}


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


@pytest.fixture
def shown(monkeypatch, capsys):
    """Run an example in this process, as a program, and return the lines that it prints."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        return lines(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", WITH_SPARK)
@pytest.mark.usefixtures("spark")
def test_examples_with_spark(shown, name):
    assert shown(name) == lines(WITH_SPARK[name])


@pytest.mark.nightly  # a group takes its time until its members have partitions
@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_examples_without_spark(shown, name):
    assert shown(name) == lines(WITHOUT_SPARK[name])


def test_the_tail_shows_what_is_new(shown):
    """Which partition a message goes to is chance, and so is the order of partitions."""
    assert sorted(line.split()[1] for line in shown("tail")) == ["cart", "home", "prices"]


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("name", WITH_SPARK)
def test_two_run_at_once_as_programs(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]

    for process in both:
        assert lines(process.communicate(timeout=200)[0]) == lines(WITH_SPARK[name])
        assert process.returncode == 0


@pytest.mark.parametrize("name", WITH_SPARK)
def test_without_java_an_example_says_so_in_one_sentence(name, tmp_path):
    without = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {
        "PATH": str(tmp_path)
    }

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env=without,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "This example needs Java 17 or newer, but no java was found on the PATH.\n"


def test_the_page_lists_the_examples_that_are_tested():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")

    listed = set(re.findall(r"^\| `(\w+)\.py`", page, re.MULTILINE))
    assert listed == {*WITH_SPARK, *WITHOUT_SPARK, "tail"}
    assert listed == {path.stem for path in EXAMPLES.glob("*.py")} - {"local"}
