"""Kinds of option values: how a user's text becomes a value, and the words for what it must be."""

import dataclasses
import enum
import re
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from tubemq_spark.errors import OptionError
from tubemq_spark.files import folder_uri
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.offset_spec import (
    LATEST_MS,
    OffsetSpec,
    Specific,
    Timestamp,
    format_offset_spec,
    format_timestamps,
    parse_offset_spec,
    parse_timestamps,
)
from tubemq_spark.offsets.subscription import Assignment, format_assignment, parse_assignment
from tubemq_spark.protocol.constants import (
    DEFAULT_GATEWAY_PORT,
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
    OFFSET_HISTORY_TOPIC,
)
from tubemq_spark.protocol.names import (
    GROUP_NAME,
    GROUP_NAME_RULE,
    LONGEST_MESSAGE_TYPE,
    MOST_MESSAGE_TYPES,
    TOPIC_NAME,
    TOPIC_NAME_RULE,
)
from tubemq_spark.protocol.packed_strings import is_packable
from tubemq_spark.settings.suggest import did_you_mean

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

_ADDRESSES: Final = "host:port addresses separated by commas"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
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
_BOOLEANS: Final[dict[str, bool]] = {"true": True, "false": False}
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
_TOPIC: Final = re.compile(rf"{TOPIC_NAME.pattern}|{OFFSET_HISTORY_TOPIC}", TOPIC_NAME.flags)


@dataclasses.dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of value."""

    expected: str
    """What the text must be, as words that follow "must be"."""
    parse: Callable[[str], T | None]
    """Make a value of the text; None when the text is not what is expected."""
    show: Callable[[T], str] = str
    """Make the text that is parsed to a value."""
    shown: Callable[[str], str] = str
    """Make a text of the user's, right or wrong, safe to show."""
    words: tuple[str, ...] = ()
    """All texts that are expected, where these are a few words: a misspelt one is told the nearest."""

    def expected_instead_of(self, text: str) -> str:
        """Return what the text must be, with the word that a misspelt one most likely stands for."""
        closest = did_you_mean(text.strip(), self.words)
        return f"{self.expected} ({closest})" if closest else self.expected


def integer(lowest: int, highest: int) -> Kind[int]:
    """Return the kind of whole numbers from ``lowest`` to ``highest``."""

    def parse(text: str) -> int | None:
        if not _INTEGER.fullmatch(text.strip()):
            return None
        value = int(text)
        return value if lowest <= value <= highest else None

    return Kind(f"a whole number from {lowest} to {highest}", parse)


def choice(values: type[E]) -> Kind[E]:
    """Return the kind of one of some words, in any case."""

    def parse(text: str) -> E | None:
        return next((value for value in values if value.value.lower() == text.strip().lower()), None)

    *others, last = words = [value.value for value in values]
    return Kind(f"{', '.join(others)} or {last}", parse, lambda value: str(value.value), words=tuple(words))


def offset_spec(option: str) -> Kind[OffsetSpec]:
    """Return the kind of offset specs; wrong text raises an OffsetFormatError that names the option."""
    return Kind("earliest, latest or JSON", lambda text: parse_offset_spec(text, option), format_offset_spec)


def timestamps_of(option: str) -> Kind[Specific]:
    """Return the kind of times of partitions; wrong text raises an OffsetFormatError."""
    return Kind("JSON", lambda text: parse_timestamps(text, option), format_timestamps)


def _parse_timestamp(text: str) -> Timestamp | None:
    ms = integer(0, LATEST_MS).parse(text)
    return None if ms is None else Timestamp(ms)


def _parse_boolean(text: str) -> bool | None:
    return _BOOLEANS.get(text.strip().lower())


def _show_boolean(value: bool) -> str:
    return str(value).lower()


def _parse_verbatim(text: str) -> str | None:
    return text or None


def _parse_name(pattern: re.Pattern[str]) -> Callable[[str], str | None]:
    return lambda text: text.strip() if pattern.fullmatch(text.strip()) else None


def _parse_names(pattern: re.Pattern[str], fewest: int) -> Callable[[str], tuple[str, ...] | None]:
    def parse(text: str) -> tuple[str, ...] | None:
        names = _items(text)
        fit = len(names) >= fewest and all(pattern.fullmatch(name) for name in names)
        return names if fit else None

    return parse


def _parse_addresses(default_port: int) -> Callable[[str], tuple[Endpoint, ...] | None]:
    def parse(text: str) -> tuple[Endpoint, ...] | None:
        try:
            return tuple(Endpoint.parse(item, default_port) for item in _items(text)) or None
        except OptionError:
            return None

    return parse


def _parse_message_types(text: str) -> tuple[str, ...] | None:
    types = _items(text)
    fit = all(len(item) <= LONGEST_MESSAGE_TYPE and is_packable(item) for item in types)
    return types if types and fit and len(types) <= MOST_MESSAGE_TYPES else None


def _parse_assignment(text: str) -> Assignment | None:
    assignment = parse_assignment(text)
    return assignment if all(_TOPIC.fullmatch(topic) for topic in assignment.topics(tuple)) else None


def _parse_pattern(text: str) -> str | None:
    try:
        return re.compile(text.strip()).pattern or None
    except (re.error, RecursionError, OverflowError):
        return None


def _parse_duration(text: str) -> int | None:
    found = _DURATION.fullmatch(text.strip().lower())
    return int(found[1]) * _MS[found[2]] if found is not None and found[2] in _MS else None


def _show_duration(ms: int) -> str:
    fitting = [unit for unit in ("d", "h", "m", "s") if ms and ms % _MS[unit] == 0]
    unit = fitting[0] if fitting else "ms"
    return f"{ms // _MS[unit]}{unit}"


def size(highest: int) -> Kind[int]:
    """Return the kind of numbers of bytes from 1 to ``highest``, with or without a unit."""

    def parse(text: str) -> int | None:
        found = _SIZE.fullmatch(text.strip().lower())
        if found is None or found[2] not in _BYTES:
            return None
        value = int(found[1]) * _BYTES[found[2]]
        return value if 1 <= value <= highest else None

    return Kind("a positive number of bytes such as 64m, 1g or 1048576", parse, _show_size)


def _show_size(value: int) -> str:
    fitting = [unit for unit in ("p", "t", "g", "m", "k") if value and value % _BYTES[unit] == 0]
    return f"{value // _BYTES[fitting[0]]}{fitting[0]}" if fitting else str(value)


def _parse_time_zone(text: str) -> str | None:
    try:
        return zoneinfo.ZoneInfo(text.strip()).key
    except (KeyError, ValueError, OSError):  # not known, no key at all, a folder of the zone database
        return None


def _items(text: str) -> tuple[str, ...]:
    """Cut a comma list; blanks are dropped, and so is what was named before."""
    return tuple(dict.fromkeys(stripped for item in text.split(",") if (stripped := item.strip())))


def _show_list(values: Sequence[object]) -> str:
    return ",".join(str(value) for value in values)


BOOLEAN: Final = Kind("true or false", _parse_boolean, _show_boolean)
VERBATIM: Final = Kind("some text", _parse_verbatim)
"""Taken as it is, blanks included."""
PATH: Final = Kind("the path of a file", _parse_verbatim)
HOST: Final = Kind("the name or the address of a host", _parse_name(_HOST))
TOPIC: Final = Kind(f"a topic name: {TOPIC_NAME_RULE}", _parse_name(_TOPIC))
TOPICS: Final = Kind(
    f"topic names separated by commas, each {TOPIC_NAME_RULE}", _parse_names(_TOPIC, 0), _show_list
)
"""May come out empty: what that means is for the option to say."""
GROUP: Final = Kind(f"a group name: {GROUP_NAME_RULE}", _parse_name(GROUP_NAME))
GROUPS: Final = Kind(
    f"group names separated by commas, each {GROUP_NAME_RULE}", _parse_names(GROUP_NAME, 1), _show_list
)
SERVERS: Final = Kind(_ADDRESSES, _parse_addresses(DEFAULT_MASTER_PORT), _show_list)
SERVERS_TLS: Final = Kind(_ADDRESSES, _parse_addresses(DEFAULT_MASTER_TLS_PORT), _show_list)
DURATION: Final = Kind("a time such as 15m, 30s or 500ms", _parse_duration, _show_duration)
"""In milliseconds."""
MESSAGE_TYPES: Final = Kind(
    f"message types separated by commas, at most {MOST_MESSAGE_TYPES}, each of at most "
    f"{LONGEST_MESSAGE_TYPE} characters without : # @ or =",
    _parse_message_types,
    _show_list,
)
PATTERN: Final = Kind("a regular expression of Python", _parse_pattern)
ASSIGNMENT: Final = Kind(
    f"JSON with topic names, each {TOPIC_NAME_RULE}", _parse_assignment, format_assignment
)
"""Text that is not such JSON raises an OffsetFormatError."""
GATEWAY_SERVERS: Final = Kind(_ADDRESSES, _parse_addresses(DEFAULT_GATEWAY_PORT), _show_list)
WEB_SERVERS: Final = Kind(_ADDRESSES, _parse_addresses(DEFAULT_WEB_PORT), _show_list)
TIMESTAMP: Final = Kind(
    f"a time in milliseconds since 1970, from 0 to {LATEST_MS}",
    _parse_timestamp,
    lambda time: str(time.ms),
)
TIME_ZONE: Final = Kind("the name of a time zone, such as UTC or Asia/Shanghai", _parse_time_zone)
FOLDER: Final = Kind(folder_uri.EXPECTED, FolderUri.parse, str, shown=folder_uri.redacted)
