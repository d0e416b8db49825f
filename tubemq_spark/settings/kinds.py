"""Kinds of values: how a text becomes a value, the words for what it must be, and the nearest known name."""

import dataclasses
import difflib
import enum
import re
import zoneinfo
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import (
    DEFAULT_MASTER_PORT,
    GROUP_NAME,
    GROUP_NAME_RULE,
    LONGEST_MESSAGE_TYPE,
    MOST_MESSAGE_TYPES,
    OFFSET_HISTORY_TOPIC,
    TOPIC_NAME,
    TOPIC_NAME_RULE,
    is_encodable,
)
from tubemq_spark.protocol.packed_strings import is_packable

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

DAY_MS: Final = 86_400_000
"""No wait is longer: a longer one is most likely a mistaken unit."""
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
HIDDEN: Final = "********"
"""Shown in the place of a secret."""

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_BOOLEANS: Final[dict[str, bool]] = {"true": True, "false": False}
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
TOPIC_PATTERN: Final = re.compile(rf"{TOPIC_NAME.pattern}|{OFFSET_HISTORY_TOPIC}", TOPIC_NAME.flags)


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

    def fits(self, value: T) -> bool:
        """Tell whether a value is of this kind: the text that shows it is then parsed to the same value."""
        try:
            parsed = self.parse(self.show(value))
        except (AttributeError, TypeError, ValueError):
            return False
        return parsed is not None and type(parsed) is type(value) and parsed == value


def integer(lowest: int, highest: int) -> Kind[int]:
    """Return the kind of whole numbers from ``lowest`` to ``highest``."""

    def parse(text: str) -> int | None:
        text = text.strip()
        if not _INTEGER.fullmatch(text):
            return None
        value = int(text)
        return value if lowest <= value <= highest else None

    return Kind(f"a whole number from {lowest} to {highest}", parse)


def enumerated(names: Sequence[str], conjunction: str) -> str:
    """Return names with commas between them, and a word before the last."""
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def choice(values: type[E]) -> Kind[E]:
    """Return the kind of one of an enum's values, in any case."""
    return _choice({value.value: value for value in values}, lambda value: str(value.value))


def one_of(*words: str) -> Kind[str]:
    """Return the kind of one of some words, in any case."""
    return _choice({word: word for word in words}, str)


def _choice(values: Mapping[str, T], show: Callable[[T], str]) -> Kind[T]:
    by_lower_case = {word.lower(): value for word, value in values.items()}
    return Kind(
        enumerated(tuple(values), "or"),
        lambda text: by_lower_case.get(text.strip().lower()),
        show,
        words=tuple(values),
    )


def addresses(default_port: int) -> Kind[tuple[Endpoint, ...]]:
    """Return the kind of one or more servers, each with the default port unless it names another."""

    def parse(text: str) -> tuple[Endpoint, ...] | None:
        try:
            return tuple(Endpoint.parse(item, default_port) for item in items(text)) or None
        except OptionError:
            return None

    return Kind("host:port addresses separated by commas", parse, show_list)


def listener(default_port: int) -> Kind[Endpoint]:
    """Return the kind of addresses to listen at; their port may be 0, for any free one."""

    def parse(text: str) -> Endpoint | None:
        host, colon, port = text.strip().rpartition(":")
        if not colon:
            host, port = port, str(default_port)
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
        return Endpoint(host, int(port)) if host and is_port and (":" in host) == bracketed else None

    return Kind(f"host:port, the port from 0 (any free one) to 65535, by default {default_port}", parse)


def name(pattern: re.Pattern[str], expected: str) -> Kind[str]:
    """Return the kind of names of one pattern."""
    return Kind(expected, lambda text: text.strip() if pattern.fullmatch(text.strip()) else None)


def names(pattern: re.Pattern[str], expected: str, *, fewest: int = 1) -> Kind[tuple[str, ...]]:
    """Return the kind of lists of such names, separated by commas."""

    def parse(text: str) -> tuple[str, ...] | None:
        listed = items(text)
        fit = len(listed) >= fewest and all(pattern.fullmatch(item) for item in listed)
        return listed if fit else None

    return Kind(expected, parse, show_list)


def _parse_message_types(text: str) -> tuple[str, ...] | None:
    types = items(text)
    fit = all(len(item) <= LONGEST_MESSAGE_TYPE and is_packable(item) for item in types)
    return types if types and fit and len(types) <= MOST_MESSAGE_TYPES else None


def items(text: str) -> tuple[str, ...]:
    """Cut a comma list; blanks are dropped, and so are repetitions."""
    return tuple(dict.fromkeys(stripped for item in text.split(",") if (stripped := item.strip())))


def show_list(values: Sequence[object]) -> str:
    """Return the comma list of values."""
    return ",".join(str(value) for value in values)


BOOLEAN: Final[Kind[bool]] = Kind(
    "true or false", lambda text: _BOOLEANS.get(text.strip().lower()), lambda value: str(value).lower()
)
VERBATIM: Final = Kind("some text", lambda text: text if text and is_encodable(text) else None)
"""Taken as it is, blanks included."""
TEXT: Final = Kind("a text that is not blank", lambda text: VERBATIM.parse(text.strip()))
PATH: Final = Kind("the path of a file", lambda text: text or None)
MILLISECONDS: Final = integer(1, DAY_MS)


def _parse_time_zone(text: str) -> str | None:
    try:
        return zoneinfo.ZoneInfo(text.strip()).key
    except (KeyError, ValueError, OSError):  # unknown, no key at all, a folder of the zone database
        return None


def _parse_url(text: str) -> str | None:
    try:
        parts = urlsplit(text)
        is_plain = parts.hostname and parts.port != 0 and not parts.username
        return text if parts.scheme in {"http", "https"} and is_plain else None
    except ValueError:
        return None


def _without_secrets(url: str) -> str:
    """Return a URL without what may be secret in it: a login, and all that its query says."""
    head, mark, _ = url.partition("?")
    scheme, slashes, rest = head.partition("//")
    host, slash, path = rest.partition("/")
    host = f"{HIDDEN}@{host.rpartition('@')[2]}" if "@" in host else host
    return f"{scheme}{slashes}{host}{slash}{path}{mark and f'?{HIDDEN}'}"


URL: Final = Kind(
    "a URL that begins with http:// or https://, without a user and a password",
    _parse_url,
    shown=_without_secrets,
)
PAUSE_MS: Final = integer(0, DAY_MS)
HOST: Final = name(_HOST, "the name or the address of a host")
HOSTS: Final = names(_HOST, "names of hosts separated by commas")
TOPIC: Final = name(TOPIC_PATTERN, f"a topic name: {TOPIC_NAME_RULE}")
TOPICS: Final = names(TOPIC_PATTERN, f"topic names separated by commas, each {TOPIC_NAME_RULE}", fewest=0)
"""May come out empty: what that means is for the option to say."""
GROUP: Final = name(GROUP_NAME, f"a group name: {GROUP_NAME_RULE}")
GROUPS: Final = names(GROUP_NAME, f"group names separated by commas, each {GROUP_NAME_RULE}")
TIME_ZONE: Final = Kind("the name of a time zone, such as UTC or Asia/Shanghai", _parse_time_zone)
MASTERS: Final = addresses(DEFAULT_MASTER_PORT)
MESSAGE_TYPES: Final = Kind(
    f"message types separated by commas, at most {MOST_MESSAGE_TYPES}, each of at most "
    f"{LONGEST_MESSAGE_TYPE} characters without : # @ or =",
    _parse_message_types,
    show_list,
)


def nearest_names(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that are closest to one that is missing, or the first of them if none is close."""
    known = sorted(names)
    return difflib.get_close_matches(name, known, n=most, cutoff=0.5) or known[:most]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean 'value'?`` with the name that is closest, or "" if none is close.

    Upper and lower case make no difference.
    """
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return f"did you mean '{by_lower_case[close[0]]}'?" if close else ""
