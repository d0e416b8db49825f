"""What ``consume --decode`` makes of the values of messages."""

import base64
import dataclasses
import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.errors import InLongMsgError, OptionError

if TYPE_CHECKING:
    from tubemq_spark.client.reader.records import Record

NAMES: Final = ("text", "json", "avro", "inlong")
_HEAD: Final = 5
"""The bytes that a schema registry's serialisers write before a value: a zero, and the schema's number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decoded:
    """A message as it is to be printed."""

    record: "Record"
    value: bytes
    """The value, for formats that print it."""
    fields: Mapping[str, Any]
    """The value, and what else the decoder knows, for ``--json``."""


class UndecodableError(Exception):
    """A value is not what it was said to be; the text says why."""


Decoder = Callable[["Record"], Iterable[Decoded]]
"""Makes of a message what is printed; several where a value has several. It raises ``UndecodableError``."""


def as_it_is(record: "Record") -> list[Decoded]:
    """Return the value as it is: as text for ``--json`` if it is UTF-8, otherwise as base64."""
    return [Decoded(record, record.value, _text_or_base64(record.value))]


def decoder(name: str | None, schema: Path | None, *, has_head: bool) -> Decoder:
    """Return the decoder of a name."""
    for option, is_stated in ("--schema", schema is not None), ("--registry-head", has_head):
        if is_stated and name != "avro":
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--decode", other=option)
    if name is None:
        return as_it_is
    if name == "avro":
        if schema is None:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--schema", other="--decode avro")
        return _of_one(_avro(schema, _HEAD if has_head else 0))
    return {"inlong": _inlong, "json": _of_one(_json), "text": _as_text}[name]


def _of_one(decode: Callable[[bytes], Any]) -> Decoder:
    """Return the decoder that makes a value of JSON of each value."""

    def decoded(record: "Record") -> list[Decoded]:
        value = decode(record.value)
        return [Decoded(record, json.dumps(value, indent=2, ensure_ascii=False).encode(), {"value": value})]

    return decoded


def _as_text(record: "Record") -> list[Decoded]:
    """Return the value as text, with marks in place of what is not UTF-8."""
    text = record.value.decode(errors="replace")
    return [Decoded(record, text.encode(), {"value": text})]


def _json(value: bytes) -> Any:  # noqa: ANN401 (any value of JSON)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"it is not JSON ({error})") from error


def _avro(path: Path, head: int) -> Callable[[bytes], Any]:
    try:
        from fastavro import parse_schema, schemaless_reader
    except ImportError:
        raise OptionError(
            "TUBEMQ_COMMAND_NEEDS", what="--decode avro", package="tubemq_spark[avro]"
        ) from None
    import io

    try:
        schema = parse_schema(json.loads(path.read_text(encoding="utf-8")))
    except Exception as error:  # fastavro raises errors of many classes
        expected = f"a file with an Avro schema ({error})"
        raise OptionError("TUBEMQ_OPTION_VALUE", option="--schema", value=path, expected=expected) from error

    def decode(value: bytes) -> Any:  # noqa: ANN401 (any value of Avro)
        if head and value[:1] != b"\0":
            raise UndecodableError(f"it begins with {value[:1]!r}, not with the zero of a registry")
        stream = io.BytesIO(value)
        stream.seek(head)
        try:
            data = schemaless_reader(stream, schema, None)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise UndecodableError(f"it does not fit the schema ({problem})") from error
        if unread := len(value) - stream.tell():
            raise UndecodableError(f"it does not fit the schema ({unread} bytes are left)")
        return _plain(data)

    return decode


def _plain(data: Any) -> Any:  # noqa: ANN401 (any value of Avro)
    """Return a value of Avro as JSON has it: bytes as base64, times and decimals as text."""
    if isinstance(data, dict):
        return {str(name): _plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, bytes):
        return base64.b64encode(data).decode()
    return data if data is None or isinstance(data, str | int | float) else str(data)


def _inlong(record: "Record") -> list[Decoded]:
    """Return the messages that InLong packed into a value."""
    from tubemq_spark.client import parse_inlong

    try:
        messages = parse_inlong(record.value)
    except InLongMsgError as error:
        raise UndecodableError(f"it is not a sound InLongMsg: {error.parameters['what']}") from error
    return [
        Decoded(
            record,
            message.value,
            {
                **_text_or_base64(message.value),
                "inlongAttributes": dict(message.attributes),
                "inlongTime": _time(message.time_ms),
                "inlongIndex": message.index,
            },
        )
        for message in messages
    ]


def _time(ms: int | None) -> str | None:
    if ms is None:
        return None
    time = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text_or_base64(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": base64.b64encode(value).decode()}
