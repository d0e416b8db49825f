"""What a user sees after each of the commonest mistakes, from the first line to the last, was read and kept.

``python -m integration_tests.seen`` writes the files anew.
"""

import re
from pathlib import Path

import pyspark
import pytest

from integration_tests.seen.mistakes import KEPT, MISTAKES, run

TROUBLESHOOTING = Path(__file__).parents[1] / "docs" / "reference" / "troubleshooting.md"
SHOWN_ON_THE_PAGE = "wrong_port"
MOST_LINES = 20
KEPT_WITH = "4.3"
"""Spark's own words around ours differ between its versions."""
EVERY_CHANGE = ("no_java",)
"""The others are run by night: each starts a Spark of its own."""
STATE_OF_THE_QUERY = "=== Streaming Query ==="
"""What Spark appends to the error of a stream begins with this line."""
LOGGED = "terminated with error"
"""Spark logs the error of a stream, and raises it too."""

each_of_ours = pytest.mark.parametrize(
    "name", [name for name, each in MISTAKES.items() if not each.is_told_by_spark]
)
each_of_sparks = pytest.mark.parametrize(
    "name", [name for name, each in MISTAKES.items() if each.is_told_by_spark]
)


def kept(name):
    return (KEPT / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.skipif(not pyspark.__version__.startswith(KEPT_WITH), reason="kept with another PySpark")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in EVERY_CHANGE else pytest.mark.nightly) for name in MISTAKES],
)
def test_a_user_sees_what_was_kept(name, tmp_path):
    assert run(MISTAKES[name], tmp_path) == kept(name)


@each_of_ours
def test_the_sentence_is_at_the_end(name):
    lines = [line for line in kept(name).partition(STATE_OF_THE_QUERY)[0].splitlines() if line.strip()]

    assert any(f"[{MISTAKES[name].condition}]" in line for line in lines[-3:])


@each_of_ours
def test_nothing_of_ours_is_printed_twice(name):
    text = kept(name)
    sentences = [line for line in text.splitlines() if f"[{MISTAKES[name].condition}]" in line]

    assert len(sentences) == 1 + text.count(LOGGED)
    assert 'File "tubemq_spark/' not in text


@each_of_ours
def test_few_lines_are_ours(name):
    ours = [line for line in kept(name).splitlines() if "tubemq" in line.lower()]

    assert len(ours) <= MOST_LINES


@each_of_sparks
def test_what_spark_says_is_explained(name):
    assert f"[{MISTAKES[name].condition}]" in kept(name)
    headings = re.findall(r"^## (.*)", TROUBLESHOOTING.read_text(encoding="utf-8"), re.MULTILINE)
    assert any(f"[{MISTAKES[name].condition}]" in heading for heading in headings)


def test_the_page_shows_what_was_kept():
    blocks = re.findall(r"```\n(.*?)```", TROUBLESHOOTING.read_text(encoding="utf-8"), re.DOTALL)

    assert kept(SHOWN_ON_THE_PAGE) in blocks


def test_no_file_is_kept_in_vain():
    assert {path.stem for path in KEPT.glob("*.txt")} == set(MISTAKES)
