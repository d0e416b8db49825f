"""The page of tested behaviour names tests that exist, and says where there are none."""

import re

import pytest

from testkit.git import ROOT
from testkit.node_ids import node_exists

PAGE = ROOT / "docs" / "guarantees" / "tested-behaviour.md"
SECTIONS = [
    *("Streaming", "Batch", "Planning", "Data loss", "Writing"),
    *("What no Kafka source needs", "Mistakes of other clients"),
]
HEADER = ["behaviour", "tests", "servers", "note"]
OPEN, NOT_HERE = "open", "does not apply"
NODE_ID = re.compile(r"`((?:integration_)?tests/[^`]+::[^`]+)`")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text):
    """Return the rows of the page's tables by their headings."""
    found, heading = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line.startswith("|"):
            found.setdefault(heading, []).append(cells(line))
    return found


def problems(row):
    """Return what is wrong with a row."""
    behaviour, tests, servers, note = row
    named = NODE_ID.findall(tests)
    found = [f"no such test: {test}" for test in named if not node_exists(test, ROOT)]
    if named and NODE_ID.sub("", tests).strip():
        found.append(f"more than tests: {tests}")
    if not named and tests not in (OPEN, NOT_HERE):
        found.append(f"neither tests nor '{OPEN}' nor '{NOT_HERE}': {tests}")
    if tests == NOT_HERE and not note:
        found.append("no reason")
    in_spark = any(test.startswith("integration_tests/") for test in named)
    if servers not in {True: {"embedded", "both", "real"}, False: {"none", "embedded"}}[in_spark] and named:
        found.append(f"these tests do not run on {servers!r}")
    if servers and not named:
        found.append("servers without tests")
    return [f"{behaviour}: {problem}" for problem in found]


@pytest.fixture(scope="module")
def page():
    return tables(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_its_tables(page):
    assert list(page) == SECTIONS
    for rows in page.values():
        assert rows[0] == HEADER
        assert {len(row) for row in rows} == {len(HEADER)}


def test_every_row_names_tests_or_says_why_not(page):
    assert [problem for rows in page.values() for row in rows[2:] for problem in problems(row)] == []


def test_tests_in_the_page_s_text_exist():
    missing = [test for test in NODE_ID.findall(PAGE.read_text()) if not node_exists(test, ROOT)]
    assert missing == [], "the page names tests that are not there"


def test_a_behaviour_is_listed_once(page):
    listed = [row[0] for rows in page.values() for row in rows[2:]]
    assert sorted(listed) == sorted(set(listed))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (["B", "`tests/test_parity.py::test_nothing`", "none", ""], "no such test"),
        (["B", "some day", "", ""], "neither tests nor"),
        (["B", NOT_HERE, "", ""], "no reason"),
        (["B", OPEN, "both", ""], "servers without tests"),
        (["B", "`tests/test_tested_behaviour.py::test_a_wrong_row_is_found`", "both", ""], "do not run on"),
        (
            ["B", "`tests/test_tested_behaviour.py::test_a_wrong_row_is_found` and more", "none", ""],
            "more than",
        ),
    ],
)
def test_a_wrong_row_is_found(row, problem):
    (found,) = problems(row)
    assert problem in found
