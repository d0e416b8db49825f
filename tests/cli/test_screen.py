"""What is printed without a terminal: one line per phase, and whole tables."""

import io
import threading

import pytest
from rich.console import Console

from tests.waiting import wait_until
from tubemq_spark.cli.screen import Screen


@pytest.fixture
def shown():
    return io.StringIO()


@pytest.fixture
def screen(shown):
    ticks = iter(range(0, 1000, 2))
    return Screen(Console(file=shown, width=100), clock=lambda: next(ticks))


def test_a_phase_is_one_line_with_its_rate(screen, shown):
    with screen.phase("publish lines", "lines", 3_000) as phase:
        phase.advance(1_000)
        phase.advance(2_000)
        phase.note = "done"
    (line,) = shown.getvalue().splitlines()
    assert " ".join(line.split()) == "publish lines 3,000 lines 6.0 s 500 lines/s done"


def test_who_has_no_terminal_is_told_every_few_seconds_what_goes_on(shown):
    screen = Screen(Console(file=shown, width=100), report_seconds=0.01)
    with screen.step("start Spark"):
        wait_until(lambda: shown.getvalue().startswith("start Spark ...\n"))
    with screen.phase("publish lines", "lines", 3_000) as phase:
        phase.advance(1_000)
        wait_until(lambda: "\npublish lines ... 1,000 of 3,000 lines\n" in shown.getvalue())


def test_a_terminal_gets_no_such_lines(shown):
    screen = Screen(Console(file=shown, width=100, force_terminal=True), report_seconds=0.001)
    with screen.phase("publish lines", "lines", 3_000) as phase:
        phase.advance(1_000)
        assert not [thread for thread in threading.enumerate() if thread.name == "tubemq-screen"]
    assert " ... " not in shown.getvalue()


def test_a_failed_phase_writes_no_line_of_success(screen, shown):
    with pytest.raises(ValueError, match="boom"), screen.phase("publish", "lines", 1):
        raise ValueError("boom")
    assert shown.getvalue() == ""


def test_brackets_are_text_and_not_markup(screen, shown):
    screen.say("[bold] is text")
    screen.table("[t]", ["[h]", "n"], [["[c]", 1_000]])
    for text in ("[bold] is text", "[h]", "[c]", "1,000"):
        assert text in shown.getvalue()
