"""The examples that need no Spark: each runs by itself, twice at once, and shows what it says."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "tubemq_spark" / "examples"
ANSWERS = [
    '{"customer": "anna", "item": "book", "price": 12}',
    '{"customer": "anna", "item": "lamp", "refused": "no such item"}',
    '{"customer": "ben", "item": "pen", "price": 2}',
    "orders answered: 3",
]


@pytest.mark.nightly
def test_the_service_answers_each_order_once(tmp_path):
    with started("service", tmp_path) as first, started("service", tmp_path) as second:
        assert lines(first) == lines(second) == ANSWERS


def test_tail_shows_only_what_is_new(tmp_path):
    with started("tail", tmp_path) as first, started("tail", tmp_path) as second:
        for running in (first, second):
            pages = [line.split(" ")[1] for line in lines(running)]
            assert sorted(pages) == ["cart", "home", "prices"]


@contextlib.contextmanager
def started(name: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start it as a reader would, in another directory; it is gone afterwards."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=directory, stdout=pipe, stderr=pipe, encoding="utf-8") as running:
        try:
            yield running
        finally:
            running.kill()


def lines(running: subprocess.Popen[str]) -> list[str]:
    """Return what it printed, once it has ended well and without a warning."""
    output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, "")
    return output.splitlines()


def test_the_page_lists_the_examples():
    page = (EXAMPLES.parents[1] / "docs" / "testing" / "examples.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert listed == {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}} - {
        "__init__.py"
    }
