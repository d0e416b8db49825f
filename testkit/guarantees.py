"""The table of ``docs/guarantees/guarantees.md`` as data: what must happen when something goes wrong."""

import dataclasses
import re
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "guarantees" / "guarantees.md"
HEADING: Final = "## What happens when something goes wrong"

GOES_ON: Final = "goes on"
WAITS: Final = "waits"
MAY_REPEAT: Final = "may repeat"
WAITS_AND_MAY_REPEAT: Final = "waits, may repeat"
SKIPS: Final = "skips"
LOSES: Final = "loses"
_WORDS: Final = frozenset({GOES_ON, WAITS, MAY_REPEAT, WAITS_AND_MAY_REPEAT, SKIPS, LOSES})
_ENDS: Final = re.compile(r"ends: (`TUBEMQ_[A-Z_.]+`(?: or `TUBEMQ_[A-Z_.]+`)*)")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What must happen: one of the words above, or an error."""

    word: str = ""
    conditions: frozenset[str] = frozenset()
    """The possible conditions of the error."""

    @property
    def is_error(self) -> bool:
        """Whether the query or the write ends with an error."""
        return bool(self.conditions)

    @property
    def waits(self) -> bool:
        """Whether the query or write waits until the trouble is over."""
        return self.word in {WAITS, WAITS_AND_MAY_REPEAT}


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the table."""

    trouble: str
    use: str
    first: Outcome
    second: Outcome | None
    """With ``failOnDataLoss=false``, or for rows that name a partition; None if that makes no difference."""


def cells() -> list[Cell]:
    """Return the cells of the page's table, row by row."""
    header, _, *rows = table(HEADING)
    uses = header[1:]
    return [
        Cell(row[0], use, *_outcomes(text)) for row in rows for use, text in zip(uses, row[1:], strict=True)
    ]


def table(heading: str) -> list[list[str]]:
    """Return the rows of the only table of a section of the page; the second row are dashes."""
    _, found, section = PAGE.read_text().partition(heading)
    if not found:
        raise ValueError(f"{PAGE} has no section {heading!r}")
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def _outcomes(text: str) -> tuple[Outcome, Outcome | None]:
    first, _, second = text.partition(" / ")
    return _outcome(first), _outcome(second) if second else None


def _outcome(text: str) -> Outcome:
    if text in _WORDS:
        return Outcome(text)
    ends = _ENDS.fullmatch(text)
    if ends is None:
        raise ValueError(f"the table says {text!r}, which no legend explains")
    return Outcome(conditions=frozenset(name.strip("`") for name in ends[1].split(" or ")))
