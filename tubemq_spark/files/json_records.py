"""JSON that is kept in files: written in one way only, and read with errors that name the file.

Every such object has a version ``v``. Releases read what older ones wrote, and refuse what newer ones did.
"""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from tubemq_spark.errors import TubeMQError

Record = TypeVar("Record")


def canonical(value: object) -> str:
    """Return the one text of a value: sorted keys, no blanks, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def read_record(
    text: str,
    source: str,
    version: int,
    make: Callable[[dict[str, Any]], Record],
    malformed: Callable[[str], TubeMQError],
) -> Record:
    """Return what ``make`` makes of an object in a file; what it raises means that that is malformed."""
    try:
        data = json.loads(text)
        data_version = int(data["v"])
        record = make(data) if data_version <= version else None
    except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
        raise malformed(f"{type(error).__name__}: {error}") from None
    if record is None:
        raise type(malformed(""))(
            "TUBEMQ_OFFSETS_VERSION", source=source, version=data_version, supported=version
        )
    return record


def optional_int(value: str | int | None) -> int | None:
    """Return a number that may be absent."""
    return None if value is None else int(value)


def optional_text(value: object) -> str | None:
    """Return a text that may be absent."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is not a text")
