"""One option of ``format("tubemq")``: a setting with Spark's name for it, and where it has an effect.

Below are the kinds of values that only options of Spark have.
"""

import dataclasses
import re
from collections.abc import Callable, Collection
from typing import Any, Final

from tubemq_spark.errors import OptionError
from tubemq_spark.files import folder_uri
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.offsets.offset_spec import (
    TIME,
    OffsetSpec,
    Specific,
    Timestamp,
    format_offset_spec,
    format_timestamps,
    parse_offset_spec,
    parse_timestamp,
    parse_timestamps,
)
from tubemq_spark.offsets.subscription import Assignment, format_assignment, parse_assignment
from tubemq_spark.options.values import Mode
from tubemq_spark.protocol.constants import TOPIC_NAME_RULE
from tubemq_spark.settings.fields import Setting, Value, field_of, settings_of
from tubemq_spark.settings.kinds import TOPIC_PATTERN, Kind

_HIDDEN: Final = "***"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option(Setting):
    """What is declared of an option; ``doc`` has sentences, for the reference page."""

    name: str
    """As users write it; Spark does not keep the case."""
    modes: frozenset[Mode]
    """Where it has an effect."""
    default_doc: str = ""
    """The default in words, where it is not just ``default``."""
    example: str = ""
    """For the error when it is missing; such an option is required wherever it has an effect."""
    sparks_own: bool = False
    """Whether Spark passes it on to a sink too, where it has no effect and that is no mistake."""

    def read(self, text: str) -> Value:
        """Make a value of the user's text."""
        value = self.kind.parse(text)
        if value is None:
            shown = _HIDDEN if self.secret else self.kind.shown(text)
            expected = self.kind.expected_instead_of(text)
            raise OptionError("TUBEMQ_OPTION_VALUE", option=self.name, value=shown, expected=expected)
        return value

    def show(self, value: Value) -> str:
        """Return a value as text that is safe to log."""
        return _HIDDEN if self.secret else self.kind.show(value)


def option(
    name: str, modes: Collection[Mode], kind: Kind[Any], *, sparks_own: bool = False
) -> Callable[..., Value]:
    """Return a function that declares a field as an option: its text, its default, the default in words."""

    def field(doc: str, default: object = None, *, default_doc: str = "") -> Value:
        declared = Option(
            kind=kind,
            doc=doc,
            default=default,
            secret=False,
            name=name,
            modes=frozenset(modes),
            default_doc=default_doc,
            sparks_own=sparks_own,
        )
        return field_of(declared, default)

    return field


def named(
    name: str,
    modes: Collection[Mode],
    more: str = "",
    *,
    kind: Kind[Any] | None = None,
    default_doc: str = "",
    example: str = "",
) -> Callable[[Setting], Option]:
    """Return a function that declares a client's setting as an option, with its kind, text and default."""
    return lambda declared: Option(
        kind=kind or declared.kind,
        doc=f"{declared.doc[0].upper()}{declared.doc[1:]}. {more}".strip(),
        default=declared.default,
        secret=declared.secret,
        name=name,
        modes=frozenset(modes),
        default_doc=default_doc,
        example=example,
    )


def options_for(config: type, **by_field: Callable[[Setting], Option]) -> dict[str, Option]:
    """Return the options that set fields of a dataclass, by field."""
    settings = settings_of(config)
    return {field: option_of(settings[field]) for field, option_of in by_field.items()}


_DURATION: Final = re.compile(r"([0-9]{1,12})\s*([a-z]*)")
_MS: Final[dict[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Milliseconds per unit, by Spark's names of units (``JavaUtils.timeStringAs``)."""
_SIZE: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_BYTES: Final[dict[str, int]] = {
    unit: 1024**power
    for power, units in enumerate(
        [("", "b"), ("k", "kb"), ("m", "mb"), ("g", "gb"), ("t", "tb"), ("p", "pb")]
    )
    for unit in units
}
"""Bytes per unit, by Spark's names of units (``JavaUtils.byteStringAs``): powers of 1024."""


def offset_spec(option: str) -> Kind[OffsetSpec]:
    """Return the kind of offset specs; wrong text raises an OffsetFormatError that names the option."""
    return Kind("earliest, latest or JSON", lambda text: parse_offset_spec(text, option), format_offset_spec)


def until(option: str) -> Kind[OffsetSpec]:
    """Return the kind of ends of a run: a time or an offset spec; wrong JSON raises as in ``offset_spec``."""

    def parse(text: str) -> OffsetSpec | None:
        is_time = text.strip()[:1].isdecimal()
        return timestamp(option).parse(text) if is_time else parse_offset_spec(text, option)

    return Kind(f"{TIME}, or JSON with offsets, or -1 for latest", parse, format_offset_spec)


def timestamp(option: str) -> Kind[Timestamp]:
    """Return the kind of times; one before the year 2000 raises an OptionError that names the option."""
    return Kind(TIME, lambda text: parse_timestamp(text, f"Option '{option}'"), lambda time: str(time.ms))


def timestamps_of(option: str) -> Kind[Specific]:
    """Return the kind of times of partitions; wrong text raises an OffsetFormatError."""
    return Kind("JSON", lambda text: parse_timestamps(text, option), format_timestamps)


def _parse_assignment(text: str) -> Assignment | None:
    assignment = parse_assignment(text)
    return assignment if all(TOPIC_PATTERN.fullmatch(topic) for topic in assignment.topics(tuple)) else None


def _parse_pattern(text: str) -> str | None:
    try:
        return re.compile(text.strip()).pattern or None
    except (re.error, RecursionError, OverflowError):
        return None


def _parse_duration(text: str) -> int | None:
    match = _DURATION.fullmatch(text.strip().lower())
    return int(match[1]) * _MS[match[2]] if match is not None and match[2] in _MS else None


def _show_duration(ms: int) -> str:
    fitting = [unit for unit in ("d", "h", "m", "s") if ms and ms % _MS[unit] == 0]
    unit = fitting[0] if fitting else "ms"
    return f"{ms // _MS[unit]}{unit}"


def size(highest: int) -> Kind[int]:
    """Return the kind of numbers of bytes from 1 to ``highest``, with or without a unit."""

    def parse(text: str) -> int | None:
        match = _SIZE.fullmatch(text.strip().lower())
        if match is None or match[2] not in _BYTES:
            return None
        value = int(match[1]) * _BYTES[match[2]]
        return value if 1 <= value <= highest else None

    return Kind("a positive number of bytes such as 64m, 1g or 1048576", parse, _show_size)


def _show_size(value: int) -> str:
    fitting = [unit for unit in ("p", "t", "g", "m", "k") if value and value % _BYTES[unit] == 0]
    return f"{value // _BYTES[fitting[0]]}{fitting[0]}" if fitting else str(value)


DURATION: Final = Kind("a time such as 15m, 30s or 500ms", _parse_duration, _show_duration)
"""In milliseconds."""
PATTERN: Final = Kind("a regular expression of Python", _parse_pattern)
ASSIGNMENT: Final = Kind(
    f"JSON with topic names, each {TOPIC_NAME_RULE}", _parse_assignment, format_assignment
)
"""Text that is not such JSON raises an OffsetFormatError."""
FOLDER: Final = Kind(folder_uri.EXPECTED, FolderUri.parse, str, shown=folder_uri.redacted)
