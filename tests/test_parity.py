"""Checks of docs/project/parity.csv: every id is there once, and every done row names real tests."""

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from testkit.git import ROOT
from testkit.node_ids import node_exists
from tests.cases import in_one_test
from tools.mutants.parity import can_be_broken

TABLE = ROOT / "docs" / "project" / "parity.csv"
HEADER = ["id", "capability", "status", "where", "tests", "note"]
STATUSES = {"done", "open", "n/a"}

# The ids of the table, without a gap, as (letter, last number). They never change.
EXPECTED_IDS = [
    f"{letter}-{number:02d}"
    for letter, last in (("S", 104), ("G", 84), ("C", 123), ("J", 65))
    for number in range(1, last + 1)
]

Row = dict[str, str]


def read_table(path: Path) -> tuple[list[str], list[Row]]:
    """Return the header and the rows; a line with too many or too few cells is refused."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file, strict=True)
    return header, [dict(zip(header, cells, strict=True)) for cells in lines]


def id_problems(ids: Iterable[str]) -> list[str]:
    """Return what is missing, unknown or repeated among the ids."""
    counts = Counter(ids)
    return [
        *(f"{id_}: missing" for id_ in EXPECTED_IDS if id_ not in counts),
        *(f"{id_}: unknown" for id_ in counts if id_ not in EXPECTED_IDS),
        *(f"{id_}: {count} times" for id_, count in counts.items() if count > 1),
    ]


def row_problems(row: Row, root: Path) -> list[str]:
    """Return what breaks the rules of docs/project/parity.md in one row."""
    status, tests, places = row["status"], row["tests"].split(), row["where"].split()
    problems = []
    if not row["capability"].strip():
        problems.append("capability is blank")
    if status not in STATUSES:
        problems.append(f"status {status!r} is none of {sorted(STATUSES)}")
    if status == "done":
        if not tests:
            problems.append("done without a test")
        problems += [f"nothing that can be broken: {p}" for p in places if not can_be_broken(p, root)]
    if status == "open" and tests:
        problems.append("open, yet it names tests")
    if status == "n/a" and not row["note"].strip():
        problems.append("n/a without a reason in note")
    if status != "n/a" and not places:
        problems.append("where is blank")
    problems += [f"no such test: {test}" for test in tests if not node_exists(test, root)]
    return [f"{row['id']}: {problem}" for problem in problems]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A little checkout with one package room and one test file, which cannot be imported."""
    (tmp_path / "tubemq_spark" / "client").mkdir(parents=True)
    (tmp_path / "tubemq_spark" / "client" / "urls.py").write_text("def parse(): pass\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "import no_such_module\n"
        "def test_plain(): pass\n"
        "async def test_async(): pass\n"
        "def helper(): pass\n"
        "class TestGroup:\n"
        "    def test_method(self): pass\n"
        "    class TestInner:\n"
        "        def test_deep(self): pass\n"
        "# def test_in_comment(): pass\n",
        encoding="utf-8",
    )
    return tmp_path


def make_row(**cells: str) -> Row:
    """A row that is done and right, with some cells replaced."""
    row = {
        "id": "S-01",
        "capability": "Something useful",
        "status": "done",
        "where": "client/urls.py::parse tests/test_a.py",
        "tests": "tests/test_a.py::test_plain tests/test_a.py::TestGroup::test_method",
        "note": "",
    }
    return row | cells


def test_header_and_line_ends() -> None:
    """The columns are the documented ones, and the file has Unix line ends."""
    header, _ = read_table(TABLE)
    assert header == HEADER
    assert b"\r" not in TABLE.read_bytes()


def test_every_id_once_and_in_order() -> None:
    """No id was lost, added, repeated or moved."""
    _, rows = read_table(TABLE)
    ids = [row["id"] for row in rows]
    assert id_problems(ids) == []
    assert ids == EXPECTED_IDS


def test_every_row_keeps_the_rules() -> None:
    """Status, tests, places and notes of every row agree."""
    _, rows = read_table(TABLE)
    broken = [problem for row in rows for problem in row_problems(row, ROOT)]
    assert broken == [], "docs/project/parity.md tells what the columns hold"


@pytest.mark.parametrize("lost", ["S-01", "S-104", "G-84", "C-100", "C-123", "J-65"])
def test_a_lost_id_is_noticed(lost: str) -> None:
    """Taking any row away is a problem, also the last of a letter."""
    ids = [id_ for id_ in EXPECTED_IDS if id_ != lost]
    assert id_problems(ids) == [f"{lost}: missing"]


def test_unknown_and_repeated_ids_are_noticed() -> None:
    """An id out of range and an id given twice are problems."""
    ids = [*EXPECTED_IDS, "S-105", "J-01"]
    assert id_problems(ids) == ["S-105: unknown", "J-01: 2 times"]


@pytest.mark.parametrize(
    "node_id",
    [
        "tests/test_a.py::test_plain",
        "tests/test_a.py::test_async",
        "tests/test_a.py::test_plain[a-b::c]",
        "tests/test_a.py::TestGroup::test_method",
        "tests/test_a.py::TestGroup::TestInner::test_deep",
    ],
)
def test_existing_tests_are_found(node_id: str, checkout: Path) -> None:
    """Functions and methods are found without importing their file."""
    assert node_exists(node_id, checkout)


@in_one_test(
    "node_id",
    [
        "tests/test_a.py::test_nonexistent",
        "tests/test_a.py::test_method",
        "tests/test_a.py::TestGroup::test_plain",
        "tests/test_a.py::TestNonexistent::test_method",
        "tests/test_a.py::TestGroup",
        "tests/test_a.py::helper",
        "tests/test_a.py::test_in_comment",
        "tests/test_a.py",
        "tests/test_nonexistent.py::test_plain",
        "tests::test_plain",
    ],
)
def test_nonexistent_tests_are_noticed(node_id: str, checkout: Path) -> None:
    """A name that no test has fails the row that names it."""
    assert not node_exists(node_id, checkout)
    assert row_problems(make_row(tests=node_id), checkout) == [f"S-01: no such test: {node_id}"]


def test_a_nonexistent_test_of_this_checkout_is_noticed() -> None:
    """The checker fails on the real checkout too, not only on a made-up one."""
    here = "tests/test_parity.py::"
    assert node_exists(f"{here}test_every_row_keeps_the_rules", ROOT)
    assert not node_exists(f"{here}test_that_nobody_wrote", ROOT)


@pytest.mark.parametrize(
    "row",
    [
        make_row(),
        make_row(status="open", tests=""),
        make_row(status="open", tests="", where="not_built_yet/"),
        make_row(status="n/a", tests="", where="", note="TubeMQ has none"),
    ],
    ids=lambda row: row["status"],
)
def test_a_good_row_has_no_problem(row: Row, checkout: Path) -> None:
    """Rows that keep the rules pass."""
    assert row_problems(row, checkout) == []


@in_one_test(
    ("cells", "problem"),
    [
        ({"capability": " "}, "capability is blank"),
        ({"status": "Done"}, "status 'Done' is none of ['done', 'n/a', 'open']"),
        ({"status": ""}, "status '' is none of ['done', 'n/a', 'open']"),
        ({"tests": ""}, "done without a test"),
        ({"where": "client/"}, "nothing that can be broken: client/"),
        ({"where": "client/urls.py::write"}, "nothing that can be broken: client/urls.py::write"),
        ({"where": ""}, "where is blank"),
        ({"status": "open"}, "open, yet it names tests"),
        ({"status": "n/a"}, "n/a without a reason in note"),
    ],
)
def test_a_broken_rule_is_noticed(cells: Row, problem: str, checkout: Path) -> None:
    """Each rule fails the row that breaks it."""
    assert row_problems(make_row(**cells), checkout) == [f"S-01: {problem}"]
