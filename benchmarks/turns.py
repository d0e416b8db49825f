"""Measuring several ways in turns, so that what changes on the machine meanwhile changes all of them."""

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Figures = Mapping[str, float]
"""What one measurement found, by name."""
Key = tuple[str, ...]
"""Names what is measured."""

screen = Console(stderr=True)
if not screen.is_terminal:
    screen.width = 140


def in_turns(
    ways: Mapping[Key, Callable[[], Figures]], *, warm_ups: int, rounds: int, title: str
) -> dict[Key, list[Figures]]:
    """Measure all ways once per round; return the figures of the counted rounds.

    Every other round goes backwards, so that no way always follows the same one.
    """
    found: dict[Key, list[Figures]] = {key: [] for key in ways}
    with _progress() as progress:
        task = progress.add_task(title, total=len(ways) * (warm_ups + rounds))
        for number in range(warm_ups + rounds):
            stage = f"warm-up {number + 1}" if number < warm_ups else f"round {number - warm_ups + 1}"
            if not screen.is_terminal:
                screen.print(f"{title}, {stage}")
            for key in ways if number % 2 == 0 else reversed(list(ways)):
                progress.update(task, description=f"{title}, {stage}: {', '.join(key)}")
                figures = ways[key]()
                if number >= warm_ups:
                    found[key].append(figures)
                progress.advance(task)
    return found


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=screen)
