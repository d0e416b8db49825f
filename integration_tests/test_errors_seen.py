"""What a user sees after each of the commonest mistakes, from the first line to the last, was read and kept.

``python -m integration_tests.seen`` writes the files anew.
"""

import pyspark
import pytest

from integration_tests.seen.mistakes import MISTAKES
from integration_tests.seen.output import KEPT, run

MOST_LINES = 20
KEPT_WITH = "4.3"
"""Spark's own words around ours differ between its versions."""

each_mistake = pytest.mark.parametrize("name", MISTAKES)
each_of_ours = pytest.mark.parametrize("name", [name for name, each in MISTAKES.items() if each.condition])


def kept(name):
    return (KEPT / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.skipif(not pyspark.__version__.startswith(KEPT_WITH), reason="kept with another PySpark")
@each_mistake
def test_a_user_sees_what_was_kept(name, tmp_path):
    assert run(MISTAKES[name], tmp_path) == kept(name)


@each_of_ours
def test_the_sentence_is_at_the_end(name):
    lines = [line for line in kept(name).splitlines() if line.strip()]

    assert any(f"[{MISTAKES[name].condition}]" in line for line in lines[-3:])


@each_of_ours
def test_our_sentence_is_not_buried(name):
    """Our frames are for us, and twenty lines are enough."""
    ours = [line for line in kept(name).splitlines() if "tubemq" in line.lower()]

    assert len(ours) <= MOST_LINES
    assert not [line for line in ours if 'File "tubemq_spark/' in line]


def test_no_file_is_kept_in_vain():
    assert {path.stem for path in KEPT.glob("*.txt")} == set(MISTAKES)
