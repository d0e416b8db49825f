"""Tests that failed run again, and no others do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "tools" / "failed_again.py"
TESTS = """
import os
import pathlib

import pytest


@pytest.mark.xdist_group("a group, of two@words")
@pytest.mark.parametrize("name", ["good", "an@odd [one]"])
def test_of_a_group(name):
    with pathlib.Path("runs").open("a") as file:
        file.write(f"{name}\\n")
    assert name == "good" or "MENDED" in os.environ


def test_of_none():
    test_of_a_group("none")
"""


def run(command, folder, **variables):
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | variables, capture_output=True, check=False
    )
    unstable = [line for line in done.stdout.decode().splitlines() if line.startswith("UNSTABLE ")]
    return done.returncode, (folder / "runs").read_text().split("\n"), unstable


@pytest.mark.process
def test_what_failed_in_groups_runs_again_and_nothing_else(tmp_path):
    (tmp_path / "of_two").mkdir()
    (tmp_path / "of_two" / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    in_groups = "-m", "pytest", "of_two", "--numprocesses=2", "--dist=loadgroup"

    code, names, _ = run(in_groups, tmp_path)
    assert (code, sorted(names)) == (1, ["", "an@odd [one]", "good", "none"])

    (tmp_path / "runs").unlink()
    code, names, unstable = run((TOOL, "of_two"), tmp_path)
    assert (code, sorted(names), unstable) == (1, ["", "an@odd [one]", "none"], [])

    (tmp_path / "runs").unlink()
    code, names, unstable = run((TOOL, "of_two"), tmp_path, MENDED="1")
    assert (code, sorted(names)) == (0, ["", "an@odd [one]", "none"])
    assert unstable == [
        f"UNSTABLE of_two/test_it.py::test_of_{name}" for name in ("a_group[an@odd [one]]", "none")
    ]

    code, names, unstable = run((TOOL, "of_two"), tmp_path)
    assert (code, sorted(names), unstable) == (0, ["", "an@odd [one]", "none"], []), "none failed last time"
