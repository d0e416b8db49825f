"""What is committed of pages and dashboards is what their tools make of the package."""

import re

import pytest

from testkit.git import ROOT
from testkit.monitoring import DASHBOARDS
from tools import gen_dashboards, gen_docs

PAGES = dict(gen_docs.written())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_up_to_date(page):
    """Run ``make docs`` when this fails."""
    assert page.read_text(encoding="utf-8") == PAGES[page]


def test_each_table_is_on_a_page_and_each_mark_has_a_table():
    marks = [mark for page in PAGES for mark in re.findall(r"<!-- table: (.*?) -->", page.read_text())]
    assert sorted(marks) == sorted(gen_docs.TABLES)


def test_dashboards_are_up_to_date():
    """Run ``make docs`` when this fails."""
    made = dict(gen_dashboards.written())
    assert sorted(made) == list(DASHBOARDS)
    for file, text in made.items():
        assert file.read_text(encoding="utf-8") == text, file.relative_to(ROOT)
