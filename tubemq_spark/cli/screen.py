"""What long commands show: live tables, bars and results on a terminal, lines of plain text elsewhere."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_NARROWEST: Final = 100
"""Width of the output if there is no terminal, so that tables and paths are not truncated."""
_REPORT_SECONDS: Final = 10.0
"""How often it is said what goes on, if there is no terminal to show it all the time."""


@contextmanager
def live(console: Console | None = None) -> Iterator[Callable[[RenderableType], None]]:
    """Yield a function that replaces what it showed before."""
    # Without its refresh thread: the screen is redrawn when there is something new.
    with Live(console=console, auto_refresh=False) as screen:
        yield lambda shown: screen.update(shown, refresh=True)


class Phase:
    """A running phase of known size."""

    def __init__(self, on_advance: Callable[[int], None]) -> None:
        self._on_advance = on_advance
        self.done = 0
        self.note = ""
        """Printed at the end of the phase's line."""

    def advance(self, count: int) -> None:
        """Count what was done since the last call."""
        self.done += count
        self._on_advance(count)


class Screen:
    """Writes what goes on and how long it took: with colour and bars on a terminal, otherwise plain text."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.perf_counter,
        report_seconds: float = _REPORT_SECONDS,
    ) -> None:
        self._console = console if console is not None else _standard_output()
        self._clock = clock
        self._report_seconds = report_seconds

    def say(self, text: str, style: str | None = None) -> None:
        """Write a line as it is."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def conclude(self, text: str, *, good: bool) -> None:
        """Write the result of the run."""
        self.say(f"\n{text}", f"bold {'green' if good else 'red'}")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Time something of unknown size: ``start Spark                        4.1 s``."""
        began = self._clock()
        with self._console.status(what), self._reporting(lambda: f"{what} ..."):
            yield
        self.say(f"{what:<52}{self._clock() - began:>7.1f} s")

    @contextmanager
    def phase(self, what: str, unit: str, total: int) -> Iterator[Phase]:
        """Time something of ``total`` units and show the rate per second."""
        began = self._clock()
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{unit}, {{task.fields[rate]:,.0f}} per second"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with bar:
            task = bar.add_task(what, total=total, rate=0.0)

            def on_advance(count: int) -> None:
                bar.update(task, advance=count, rate=_rate(phase.done, self._clock() - began))

            phase = Phase(on_advance)
            with self._reporting(lambda: f"{what} ... {phase.done:,} of {total:,} {unit}"):
                yield phase
        seconds = self._clock() - began
        speed = f"{_rate(phase.done, seconds):,.0f} {unit}/s"
        self.say(f"{what:<34}{phase.done:>9,} {unit:<8}{seconds:>7.1f} s{speed:>18}  {phase.note}".rstrip())

    @contextmanager
    def _reporting(self, report: Callable[[], str]) -> Iterator[None]:
        """Write every few seconds what goes on, unless a terminal shows it."""
        if self._console.is_terminal:
            yield
            return
        ended = threading.Event()

        def write() -> None:
            while not ended.wait(self._report_seconds):
                self.say(report())

        writer = threading.Thread(target=write, name="tubemq-screen", daemon=True)
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Show rows; numbers are right-aligned, with thousands separators."""
        listed = [list(row) for row in rows]
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, name in enumerate(header):
            numbers = bool(listed) and all(isinstance(row[index], int) for row in listed)
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in listed:
            table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row))
        self._console.print()
        self._console.print(table, highlight=False, markup=False)


def _standard_output() -> Console:
    """Return the console of standard output, which has a fixed width where that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_NARROWEST)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
