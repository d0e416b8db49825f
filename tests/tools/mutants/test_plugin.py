"""The tests of a list are run in its order, and no others."""

import json

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_first(): ...
def test_other(): ...
def test_had_parameters(): ...
@pytest.mark.parametrize("a", [1, 2])
def test_has_parameters(a): ...
@pytest.mark.parametrize("a", [1, 2])
def test_has_the_same(a): ...
"""


def test_a_test_is_run_though_it_got_or_lost_its_parameters(pytester: pytest.Pytester, monkeypatch):
    pytester.makepyfile(test_a=TESTS)
    listed = ["has_the_same[2]", "had_parameters[x]", "has_parameters", "first"]
    file = pytester.path / "listed.json"
    file.write_text(json.dumps([f"test_a.py::test_{name}" for name in listed]))
    monkeypatch.setenv("TUBEMQ_MUTANTS_TESTS", str(file))
    result = pytester.runpytest_inprocess("-v", "-p", "tools.mutants.plugin", "-p", "no:randomly")
    run = [line.split()[0].partition("test_a.py::test_")[2] for line in result.outlines if "PASSED" in line]
    assert run == ["has_the_same[2]", "had_parameters", "has_parameters[1]", "has_parameters[2]", "first"]
