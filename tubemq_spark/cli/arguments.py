"""Types of arguments that more than one command takes, made of the kinds of settings."""

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tubemq_spark.files.folder_uri import EXPECTED, FolderUri, redacted
from tubemq_spark.settings.kinds import MAX_LONG, TIME_ZONE, Kind, integer

T = TypeVar("T")

_LONGEST_S: Final = 86_400


def of_kind(kind: Kind[T], expected: str = "") -> Callable[[str], T]:
    """Return what reads an argument; its error says that the text is not ``expected``, or not of the kind."""

    def read(text: str) -> T:
        value = kind.parse(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{kind.shown(text)!r} is not {expected or kind.expected}")
        return value

    return read


def add_time_zone_argument(parser: argparse.ArgumentParser) -> None:
    """Describe in which zone messages carry their times."""
    parser.add_argument(
        "--message-time-zone",
        type=of_kind(TIME_ZONE),
        default="UTC",
        metavar="ZONE",
        help="time zone of message times, which TubeMQ stores as text without one, such as Asia/Shanghai "
        "(default: %(default)s)",
    )


def whole_number(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    """Return what reads a number, which is called ``what``."""
    return of_kind(integer(lowest, highest), f"{what}; use {lowest} to {highest}")


def _parse_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0 < seconds <= _LONGEST_S else None


def _parse_pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except re.error:
        return None


def _parse_folder(text: str) -> FolderUri | None:
    # A shell has a current directory, as a cluster has not.
    is_relative = text.strip() and ":" not in text
    return FolderUri.parse(str(Path(text).absolute()) if is_relative else text)


COUNT: Final = of_kind(integer(1, MAX_LONG), "a positive whole number")
SECONDS: Final = of_kind(Kind(f"a number of seconds from above 0 to {_LONGEST_S}", _parse_seconds))
PATTERN: Final = of_kind(Kind("a regular expression", _parse_pattern))
FOLDER: Final = of_kind(Kind(EXPECTED, _parse_folder, shown=redacted))
