"""The examples that need no Spark: each runs by itself, twice at once, and shows what it says."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[1] / "examples"
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


def test_what_examples_share_needs_no_package_of_developers():
    code = (
        "import sys; sys.modules['pytest'] = None; import local; "
        "print([name for name in sys.modules if name.startswith('tubemq_spark.testing')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


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
