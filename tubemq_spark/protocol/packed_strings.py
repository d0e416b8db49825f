"""The grammar of TubeMQ's packed strings: parts between separators, read into values and written from them.

The formats know no escaping, so writers refuse parts that contain a separator. Each format, in
``topic_strings`` and ``partition_strings``, comes as a pair: ``parse_x(format_x(value)) == value``, and
writing what was read gives the peer's own text again. Where TubeMQ's peers differ, readers accept what all of
them write.

Readers of parts raise ValueError, which ``parse_packed`` turns into the peer's error; writers raise
LocalProtocolError, since options are checked earlier.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError

# TokenConstants: `:` fields, `#` sections, `@` consumer and group, `,` lists, `=` key and value.
_SEPARATORS: Final = frozenset(":#@,=")
_INT32_MAX: Final = (1 << 31) - 1
_SHOWN_CHARACTERS: Final = 200

Value = TypeVar("Value")


def parse_packed(text: str, form: str, read: Callable[[str], Value]) -> Value:
    """Return what ``read`` makes of a peer's text."""
    try:
        return read(text)
    except ValueError as error:
        shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        raise RemoteProtocolError(
            "TUBEMQ_BAD_PACKED_STRING", text=shown, form=form, what=str(error)
        ) from error


def split(text: str, separator: str, least: int, most: int) -> list[str]:
    """Return the parts of a text, which must be at least and at most so many."""
    # Not trimmed before: Java's String.split drops empty items at the end, so peers write an empty port as
    # one blank.
    parts = text.split(separator)
    if not least <= len(parts) <= most:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} has {len(parts)} parts between {separator!r}")
    return parts


def read_name(text: str) -> str:
    """Return a part that is a name."""
    if not text or text.isspace():
        raise ValueError("a name is blank")
    # One separator more would move all that follows it: formats have no escaping.
    for separator in _SEPARATORS:
        if separator in text:
            raise ValueError(f"the name {text[:_SHOWN_CHARACTERS]!r} contains {separator!r}")
    return text


def read_number(text: str, limit: int = _INT32_MAX) -> int:
    """Return a part that is a decimal number from 0 to ``limit``."""
    # int() alone would accept blanks, signs, underscores and other scripts' digits.
    if not (text.isascii() and text.isdigit()) or int(text) > limit:
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]!r} is not a number from 0 to {limit}")
    return int(text)


def read_port(text: str) -> int:
    """Return a part that is a port."""
    port = read_number(text, 65535)
    if port == 0:
        raise ValueError("the port is 0")
    return port


def is_packable(name: str) -> bool:
    """Tell whether a name can be written into a packed string: it is not blank and has no separator."""
    return bool(name) and not name.isspace() and _SEPARATORS.isdisjoint(name)


def checked(name: str) -> str:
    """Return a name that can be written."""
    if not is_packable(name):
        raise misuse(f"the name {name!r} in a packed string")
    return name


def nonempty(items: Sequence[Value]) -> Sequence[Value]:
    """Return a list that can be written."""
    if not items:
        raise misuse("a packed list without items")
    return items


def misuse(what: str) -> LocalProtocolError:
    """Return the error for something that no packed string can express."""
    return LocalProtocolError("TUBEMQ_PROTOCOL_MISUSE", what=what)
