"""What is required is not skipped, and a run can be repeated."""

import os
import subprocess
import sys

import pytest

from integration_tests.rig import runs
from testkit.git import ROOT


@pytest.mark.parametrize(
    ("required", "outcome", "exit_code"),
    [("required", "1 error", 1), ("", "1 skipped", 0)],
    ids=["yes", "no"],
)
def test_spark_that_cannot_run_is_a_failure_where_it_is_required(tmp_path, required, outcome, exit_code):
    test = "integration_tests/test_batch_read.py::test_an_empty_topic_has_no_rows[embedded]"
    environment = {**os.environ, "PATH": str(tmp_path), "TUBEMQ_REAL": required}
    for name in ("JAVA_HOME", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert (outcome in done.stdout, done.returncode) == (True, exit_code), done.stdout
    assert "needs Java 17 or newer, but no java was found on the PATH" in done.stdout


def test_the_same_seed_gives_the_same_chance(monkeypatch):
    monkeypatch.setenv(runs.SEED_VARIABLE, "7")
    first, other = runs.chance_of("a").random(), runs.chance_of("b").random()
    assert first == runs.chance_of("a").random() != other

    monkeypatch.setenv(runs.SEED_VARIABLE, "8")
    assert runs.chance_of("a").random() != first


def test_without_a_seed_each_state_of_the_embedded_server_has_its_own(monkeypatch):
    monkeypatch.setenv(runs.SEED_VARIABLE, "to be restored")
    heads = iter([["00000010" + "0" * 32], ["00000011" + "0" * 32]])
    monkeypatch.setattr(runs, "git", lambda *_: next(heads))
    for expected in (16, 17):
        monkeypatch.delenv(runs.SEED_VARIABLE)
        assert runs.choose_seed() == runs.choose_seed() == expected
