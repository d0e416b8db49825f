"""docs/project/parity.csv keeps the rules of docs/project/parity.md."""

import csv

import pytest

from testkit.git import ROOT
from testkit.node_ids import node_exists
from tests.cases import in_one_test
from tools.mutants.parity import can_be_broken

TABLE = ROOT / "docs" / "project" / "parity.csv"
# The ids, without a gap, as (letter, last number). They never change.
IDS = [
    f"{letter}-{number:02d}"
    for letter, last in (("S", 104), ("G", 84), ("C", 123), ("J", 65))
    for number in range(1, last + 1)
]


def problems(row, root=ROOT):
    """Return the rules that a row breaks."""
    tests, places, reason = row["tests"].split(), row["where"].split(), row["note"].strip()
    rules = {
        "has a capability": row["capability"].strip(),
        "is done, open or n/a": row["status"] in {"done", "open", "n/a"},
        "is done with a test": tests or row["status"] != "done",
        "is open without a test": not tests or row["status"] != "open",
        "is n/a with a reason": reason or row["status"] != "n/a",
        "says where, unless it is n/a": places or row["status"] == "n/a",
        "names tests that there are": all(node_exists(test, root) for test in tests),
        "names what can be broken": row["status"] != "done"
        or all(can_be_broken(place, root) for place in places),
    }
    return [rule for rule, kept in rules.items() if not kept]


def test_every_id_is_there_once_and_every_row_keeps_the_rules():
    with TABLE.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file, strict=True)
    assert header == ["id", "capability", "status", "where", "tests", "note"]
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    assert [row["id"] for row in rows] == IDS
    broken = {row["id"]: found for row in rows if (found := problems(row))}
    assert broken == {}, "docs/project/parity.md tells what the columns hold"


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one module, and a file of tests which cannot be imported."""
    (tmp_path / "tubemq_spark").mkdir()
    (tmp_path / "tubemq_spark" / "urls.py").write_text("def parse(): pass\n")
    (tmp_path / "test_a.py").write_text(
        "import no_such_module\n"
        "async def test_plain(): pass\n"
        "def helper(): pass\n"
        "class TestGroup:\n"
        "    def test_method(self): pass\n"
    )
    return tmp_path


GOOD = {
    "capability": "Something useful",
    "status": "done",
    "where": "urls.py::parse test_a.py",
    "tests": "test_a.py::test_plain[a-b::c] test_a.py::TestGroup::test_method",
    "note": "",
}


@in_one_test(
    ("cells", "broken"),
    [
        ({}, []),
        ({"status": "open", "tests": "", "where": "not_built/"}, []),
        ({"status": "n/a", "tests": "", "where": "", "note": "TubeMQ has none"}, []),
        ({"capability": " "}, ["has a capability"]),
        ({"status": "Done"}, ["is done, open or n/a"]),
        ({"tests": ""}, ["is done with a test"]),
        ({"status": "open"}, ["is open without a test"]),
        ({"status": "n/a"}, ["is n/a with a reason"]),
        ({"where": ""}, ["says where, unless it is n/a"]),
        ({"where": "urls.py::write"}, ["names what can be broken"]),
        *(
            ({"tests": f"test_{name}"}, ["names tests that there are"])
            for name in (
                "a.py",
                "a.py::test_none",
                "a.py::test_method",
                "a.py::TestGroup",
                "a.py::helper",
                "b.py::test_a",
            )
        ),
    ],
)
def test_a_broken_rule_is_noticed(cells, broken, checkout):
    assert problems(GOOD | cells, checkout) == broken
