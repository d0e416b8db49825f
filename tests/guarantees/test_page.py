"""The page names every trouble that the tests can make, and its numbers are those of the options."""

import pytest

from testkit import guarantees
from testkit.guarantees import PAGE, cells
from testkit.troubles import TROUBLES
from tests.guarantees import test_reads, test_writes
from tubemq_spark.errors import CONDITIONS
from tubemq_spark.options.table import NAMED


def test_the_page_has_a_row_for_every_trouble():
    assert list(dict.fromkeys(cell.trouble for cell in cells())) == list(TROUBLES)


def test_every_error_of_the_page_is_one():
    outcomes = [outcome for cell in cells() for outcome in (cell.first, cell.second) if outcome]
    assert frozenset().union(*(outcome.conditions for outcome in outcomes)) <= CONDITIONS.keys()


def test_every_column_has_its_tests():
    assert {cell.use for cell in cells()} == {*test_reads.COLUMNS, *test_writes.COLUMNS}


def test_a_cell_without_meaning_is_refused(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"{guarantees.HEADING}\n\n| A | stream |\n|---|---|\n| x | goes on, mostly |\n")
    monkeypatch.setattr(guarantees, "PAGE", page)
    with pytest.raises(ValueError, match="goes on, mostly"):
        cells()


@pytest.mark.parametrize(
    "name",
    [
        "tubemq.fetchTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "tubemq.rpcTimeoutMs",
    ],
)
def test_the_page_tells_an_option_s_default(name):
    assert f"`{name}` ({NAMED[name].default})" in PAGE.read_text()
