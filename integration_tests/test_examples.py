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
        orders answered: 3
        """,
}
WITH_SPARK = {
    "backfill": """\
        from 202601050900 6000 to 202601050959 11900
        rows: 60
        """,
    "dead_letters": """\
        written:
          1 book
          2 pens
          3 books
        dead letters:
          TUBEMQ_SINK_NULL_VALUE for orders
          TUBEMQ_TOPIC_UNKNOWN for ordres
        rows written: 3
        dead letters: 2
        """,
    "files_to_parquet": """\
        messages in the topic: 200
        rows in Parquet: 100
        different rows: 100
        """,
    "join": """\
        {"id":"a1","euros":30}
        {"id":"a3","euros":7}
        orders paid: 2
        """,
    "json_events": """\
        10:00 home 2
        10:00 prices 1
        10:30 home 1
        visits in time: 4
        """,
    "word_count": """\
        end 1
        is 2
        kept 1
        log 2
        read 1
        the 3
        words: 10
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


@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_examples_without_spark(shown, name):
    assert shown(name) == lines(WITHOUT_SPARK[name])


def test_the_tail_shows_what_is_new(shown):
    """Which partition a message goes to is chance, and so is the order of partitions."""
    assert sorted(line.split()[1] for line in shown("tail")) == ["cart", "home", "prices"]


def two_at_once(name):
    """Return what each of two processes prints."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [lines(process.communicate(timeout=200)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    return printed


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.parametrize("name", WITH_SPARK)
def test_two_run_at_once_as_programs(name):
    assert two_at_once(name) == [lines(WITH_SPARK[name])] * 2


def test_two_run_at_once_without_spark():
    assert [len(shown) for shown in two_at_once("tail")] == [3, 3]


def fails(name, environment):
    """Run an example that cannot work, and return what it says."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize("name", WITH_SPARK)
def test_without_java_an_example_says_so_in_one_sentence(name, tmp_path):
    without = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}

    told = fails(name, without | {"PATH": str(tmp_path)})

    assert told == "This example needs Java 17 or newer, but no java was found on the PATH.\n"


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*WITH_SPARK, *WITHOUT_SPARK, "tail"])
def test_without_a_free_port_an_example_says_so_in_one_sentence(name, tmp_path):
    """All ports cannot be taken for a test, so its own interpreter gives the kernel's answer."""
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os, socket\n"
        "\n"
        "class NoPort(socket.socket):\n"
        "    def bind(self, address):\n"
        "        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))\n"
        "\n"
        "socket.socket = NoPort\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]

    told = fails(name, os.environ | {"PYTHONPATH": os.pathsep.join(paths)})

    assert re.fullmatch(r"\[TUBEMQ_LISTEN_FAILED\] Cannot listen on 127\.0\.0\.1:0: .*any free one\.\n", told)


def test_a_count_that_is_wrong_ends_an_example(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    check = runpy.run_path(str(EXAMPLES / "local.py"))["check"]

    check("rows", 2, 2)
    assert capsys.readouterr().out == "rows: 2\n"
    with pytest.raises(SystemExit, match=r"^rows: 1, but 2 were expected\.$"):
        check("rows", 1, 2)


def test_the_page_lists_the_examples_that_are_tested():
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")

    listed = set(re.findall(r"^\| `(\w+)\.py`", page, re.MULTILINE))
    assert listed == {*WITH_SPARK, *WITHOUT_SPARK, "tail"}
    assert listed == {path.stem for path in EXAMPLES.glob("*.py")} - {"local"}
