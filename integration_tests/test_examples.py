"""Examples run side by side; ``python -m integration_tests.wheel`` runs each of them with what users have."""

import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.rig.examples import WITH_SPARK, WITHOUT_SPARK, lines

EXAMPLES = Path(__file__).parents[1] / "tubemq_spark" / "examples"


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


def test_the_examples_that_are_run_are_all():
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"__init__"}
    assert programs == {*WITH_SPARK, *WITHOUT_SPARK, "tail"}
