"""What the demo must produce, computed without TubeMQ and Spark, and how the results differ from it."""

import array
import dataclasses
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

WORD_PATTERN: Final = "[A-Za-z]{3,}"
"""A word: ASCII letters only, so that Java's and Python's regular expressions find the same words."""
_WORD: Final = re.compile(WORD_PATTERN.encode())

_EXAMPLES: Final = 3

WordKey = tuple[str, str]
"""A file extension and a lower-case word."""


class Truth:
    """Everything that was published."""

    def __init__(self) -> None:
        self._checksums: dict[str, array.array[int]] = {}
        self._words: dict[str, Counter[bytes]] = {}
        self._lines: Counter[str] = Counter()

    def add(self, name: str, extension: str, lines: list[bytes]) -> int:
        """Record the next lines of a file and return the number (from 1) of the first of them."""
        checksums = self._checksums.setdefault(name, array.array("I"))
        first = len(checksums) + 1
        checksums.extend(map(zlib.crc32, lines))
        # A line ending is not a letter, so no word can span two lines.
        words = _WORD.findall(b"".join(lines).lower())
        self._words.setdefault(extension, Counter()).update(words)
        self._lines[extension] += len(lines)
        return first

    @property
    def line_count(self) -> int:
        """Lines of all files."""
        return self._lines.total()

    @property
    def lines_by_extension(self) -> Mapping[str, int]:
        """Lines of each extension."""
        return self._lines

    def word_counts(self) -> dict[WordKey, int]:
        """Return how often each word occurs in the files of each extension."""
        return {
            (extension, word.decode()): count
            for extension, words in self._words.items()
            for word, count in words.items()
        }

    def checksums(self) -> Mapping[str, "array.array[int]"]:
        """Return the CRC-32 of each line of each file, line 1 first."""
        return self._checksums


@dataclasses.dataclass(slots=True)
class LineReport:
    """Published lines against lines read back."""

    read: int = 0
    lost: int = 0
    repeated: int = 0
    altered: int = 0
    foreign: int = 0
    """Rows that do not belong to a published line."""
    examples: list[str] = dataclasses.field(default_factory=list)

    def faults(self) -> list[str]:
        """Return what is wrong, as sentences; none if every line was read exactly once."""
        counted = (
            (self.lost, "lines were published but not read back"),
            (self.repeated, "rows repeat a line"),
            (self.altered, "lines came back with different bytes"),
            (self.foreign, "rows are not lines of this run"),
        )
        faults = [f"{count:,} {what}" for count, what in counted if count]
        return [*faults, f"for example {', '.join(self.examples)}"] if faults else []


def compare_lines(truth: Truth, rows: Iterable[tuple[str | None, str | None, int]]) -> LineReport:
    """Compare rows (file, line number, CRC-32 of the value) with what was published."""
    report = LineReport()
    published = truth.checksums()
    read_lines = {name: bytearray(len(checksums)) for name, checksums in published.items()}
    for name, number, checksum in rows:
        report.read += 1
        index = _line_index(number)
        if name is None or name not in read_lines or not 0 <= index < len(read_lines[name]):
            report.foreign += 1
        elif read_lines[name][index]:
            report.repeated += 1
        else:
            read_lines[name][index] = 1
            if published[name][index] == checksum:
                continue
            report.altered += 1
        _add_example(report.examples, f"{name}:{number}")
    for name, flags in read_lines.items():
        missing = flags.count(0)
        report.lost += missing
        if missing:
            _add_example(report.examples, f"{name}:{flags.index(0) + 1}")
    return report


def compare_counts(expected: Mapping[WordKey, int], counts: Mapping[WordKey, int]) -> list[str]:
    """Return what is wrong with Spark's counts, as sentences; none if they are as expected."""
    wrong = [key for key in expected.keys() | counts.keys() if expected.get(key) != counts.get(key)]
    if not wrong:
        return []
    examples = [
        f"{'/'.join(key)}: {counts.get(key, 0):,} instead of {expected.get(key, 0):,}"
        for key in sorted(wrong)[:_EXAMPLES]
    ]
    return [f"{len(wrong):,} of {len(expected):,} word counts are wrong, for example {', '.join(examples)}"]


def _line_index(number: str | None) -> int:
    return int(number) - 1 if number is not None and number.isascii() and number.isdigit() else -1


def _add_example(examples: list[str], example: str) -> None:
    if len(examples) < _EXAMPLES:
        examples.append(example)
