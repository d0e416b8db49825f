"""Tables that commands print: for people in columns, for programs as JSON."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tubemq_spark.cli.wording import in_words_of_commands


def print_json(data: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns, numbers to the right; what is None is blank."""
    sys.stdout.writelines(f"{line}\n" for line in table_lines(header, rows))


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of rows in columns, numbers to the right; what is None is blank."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    numbers = [
        bool(cells) and all(row[place].lstrip("-").isdigit() or not row[place] for row in cells)
        for place in range(len(header))
    ]
    widths = [
        max([len(_heading(name)), *(len(row[place]) for row in cells)]) for place, name in enumerate(header)
    ]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in [[_heading(name) for name in header], *cells]
    ]


def print_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows, at least one, in columns that their keys name."""
    print_table(list(rows[0]), [list(row.values()) for row in rows])


def _shown(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else str(cell)


def _heading(name: str) -> str:
    """Return the words of a name such as ``brokerId``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).upper()


def complain(text: object) -> None:
    """Print something that is wrong or worth knowing, in the words of the command line."""
    sys.stderr.write(f"tubemq-spark: {in_words_of_commands(text)}\n")


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known."""
    return {name: value for name, value in row.items() if value is not None}
