"""The command ``tubemq-spark consume``: messages of a topic to standard output, a range or as they come.

First is what ``--decode`` makes of values, then how ``--format`` prints a message, then which are read.
"""

import argparse
import base64
import dataclasses
import datetime
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import connected, connection
from tubemq_spark.cli.output import complain, utc_text, without_nulls
from tubemq_spark.cli.parser import COUNT, TIME_ZONE_OF_MESSAGES, argument, command
from tubemq_spark.cli.places import PLACE, chosen_partitions, offsets_at, parse_partition, parse_place
from tubemq_spark.errors import InLongMsgError, OptionError, TubeMQError
from tubemq_spark.model import OffsetRange
from tubemq_spark.offsets.offset_spec import Edge

if TYPE_CHECKING:
    from tubemq_spark.client import InLongMessage
    from tubemq_spark.client.reader.records import Record
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.model import TopicPartition, TopicsLayout
    from tubemq_spark.offsets.loss import LossRecord

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
        return _single_value_decoder(_avro(schema, _HEAD if has_head else 0))
    return {"inlong": _inlong, "json": _single_value_decoder(_json), "text": _as_text}[name]


def _single_value_decoder(decode: Callable[[bytes], Any]) -> Decoder:
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

    def fields(message: "InLongMessage") -> dict[str, Any]:
        time = None
        if message.time_ms is not None:
            time = datetime.datetime.fromtimestamp(message.time_ms / 1000, datetime.UTC)
        return {
            **_text_or_base64(message.value),
            "inlongAttributes": dict(message.attributes),
            "inlongTime": utc_text(time, "milliseconds"),
            "inlongIndex": message.index,
        }

    return [Decoded(record, message.value, fields(message)) for message in messages]


def _text_or_base64(value: bytes) -> dict[str, str]:
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": base64.b64encode(value).decode()}


_LOOK_EVERY_S: Final = 0.5
_LAYOUT_EVERY_S: Final = 10.0
"""How often --follow looks for new messages, and for new partitions."""


Format = Callable[[Decoded], bytes]

_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([nrt0\\])")
_PLACEHOLDER: Final = re.compile(r"%(.?)", re.DOTALL)


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


def _attributes(message: Decoded) -> bytes:
    pairs = (message.record.attributes or {}).items()
    return ",".join(f"{name}={value}" for name, value in pairs).encode()


_PLACEHOLDERS: Final[Mapping[str, tuple[str, Format]]] = {
    "t": ("topic", lambda message: _text(message.record.topic)),
    "p": ("BROKER_ID:PARTITION_ID", lambda message: _text(message.record.partition.local_id)),
    "o": ("offset, nothing where partitions share a store", lambda message: _text(message.record.offset)),
    "i": ("message id", lambda message: _text(message.record.message_id)),
    "T": ("message time as its producer wrote it", lambda message: _text(message.record.message_time)),
    "y": ("message type", lambda message: _text(message.record.message_type)),
    "h": ("attributes", _attributes),
    "s": ("value", lambda message: message.value),
    "S": ("its length in bytes", lambda message: _text(len(message.value))),
    "%": ("a percent sign", lambda _: b"%"),
}
_PLACES: Final = ", ".join(f"%{letter} {what}" for letter, (what, _) in _PLACEHOLDERS.items())
"""The placeholders of a template, for help and errors."""


def unescaped(text: str) -> bytes:
    r"""Return an argument's bytes; ``\n``, ``\r``, ``\t``, ``\0`` and ``\\`` are what they are in Python."""
    return os.fsencode(_ESCAPE.sub(lambda match: _ESCAPED[match[1]], text))


def _parse_format(text: str) -> str:
    """Read a format: ``raw``, ``json`` or a template, which has placeholders or escapes."""
    if text in ("raw", "json"):
        return text
    if "%" not in text and "\\" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is neither raw, json nor a template with {_PLACES}")
    for letter in _PLACEHOLDER.findall(text):
        if letter not in _PLACEHOLDERS:
            why = "; TubeMQ keeps no keys" if letter == "k" else ""
            raise argparse.ArgumentTypeError(f"{text!r} has %{letter}, which is none of {_PLACES}{why}")
    return text


def _format_of(text: str, delimiter: bytes) -> Format:
    """Return the function that formats messages; in ``raw`` a ``delimiter`` follows each."""
    if text == "raw":
        return lambda message: message.value + delimiter
    if text == "json":
        return _as_json
    # Split before escapes are read: a value may have any bytes, and is not read again.
    parts = _PLACEHOLDER.split(text)
    plain = [unescaped(part) for part in parts[::2]]
    makers = [_PLACEHOLDERS[letter][1] for letter in parts[1::2]]

    def formatted(message: Decoded) -> bytes:
        texts = [make(message) + behind for make, behind in zip(makers, plain[1:], strict=True)]
        return plain[0] + b"".join(texts)

    return formatted


def _as_json(message: Decoded) -> bytes:
    record = message.record
    fields = {
        "topic": record.topic,
        "brokerId": record.partition.broker_id,
        "partition": record.partition.partition_id,
        "offset": record.offset,
        "messageId": record.message_id,
        "messageType": record.message_type,
        "messageTime": record.message_time,
        "attributes": record.attributes,
    }
    return json.dumps(without_nulls(fields) | dict(message.fields), ensure_ascii=False).encode() + b"\n"


@command(
    name="consume",
    summary="print messages of a topic",
    description="Print the messages of a topic, one partition after the other, each in its order. No "
    "position of any group is moved. Records that are gone are reported.",
    example="clicks --from 2026-01-31T12:00 --json --master 10.1.2.3",
    failure="messages are gone, or a broker does not answer",
    arguments=(
        argument("topic TOPIC", "topic to read"),
        argument(
            "--from -o PLACE",
            f"where to begin: {PLACE} (default: earliest; latest with --follow)",
            parse_place,
            dest="start",
        ),
        argument("--to PLACE", "where to end, likewise (default: latest)", parse_place, dest="end"),
        TIME_ZONE_OF_MESSAGES,
        argument(
            "--partition -p BROKER_ID:PARTITION_ID",
            "only this partition; may be given several times",
            parse_partition,
            action="append",
        ),
        argument("--count -c N", "end after so many messages", COUNT),
        argument("--follow", "go on with messages as they come, until Ctrl-C"),
        argument(
            "--last -n N", "only the last N messages of each partition, before --to if that is given", COUNT
        ),
        argument(
            "--format -f FORMAT",
            "raw: values as they are, each followed by the delimiter; json: one object per line with "
            f"all fields; or a template such as '%%p %%o %%s\\n' with {_PLACES.replace('%', '%%')}, and "
            "\\n, \\t, \\r, \\0 (default: %(default)s)",
            _parse_format,
            default="raw",
        ),
        argument("--json -J", "as --format json", dest="format", action="store_const", const="json"),
        argument(
            "--delimiter -D TEXT",
            "what follows each raw value (default: a line's end)",
            unescaped,
            default=b"\n",
        ),
        argument(
            "--decode",
            "decode values. text: UTF-8, with a mark for what is not; json, avro: shown as JSON; "
            "inlong: each message that InLong packed into a value is printed. A value that does not fit is "
            "reported, and printed as it is",
            choices=NAMES,
        ),
        argument("--schema FILE", "the Avro schema that values have", Path),
        argument(
            "--registry-head",
            "before each Avro value are the five bytes of a schema registry; --schema still says the schema",
        ),
        connection("tubemq_spark_consume"),
    ),
)
def consume(arguments: argparse.Namespace) -> int:
    """Print messages and return 0, or 1 if some were gone."""
    for option, is_given in ("--to", arguments.end is not None), ("--from", arguments.start is not None):
        excluded = "--follow" if option == "--to" else "--last"
        if is_given and getattr(arguments, excluded[2:]):
            raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=excluded, other=option)
    decode = decoder(arguments.decode, arguments.schema, has_head=arguments.registry_head)
    show = _format_of(arguments.format, arguments.delimiter)
    config, cluster = connected(arguments)
    from tubemq_spark.client.tubemq import TubeMQClient

    with TubeMQClient(config.client) as client:
        reading = _TopicReading(client, cluster, arguments)
        for record in itertools.islice(reading.records(), arguments.count):
            try:
                messages = decode(record)
            except UndecodableError as error:
                reading.failed = True
                place = record.message_id if record.offset is None else record.offset
                complain(f"the message {place} of {record.partition} cannot be decoded: {error}")
                messages = as_it_is(record)
            for message in messages:
                sys.stdout.buffer.write(show(message))
        sys.stdout.buffer.flush()
    return int(reading.failed)


class _TopicReading:
    """The partitions of a topic, and how far they were read."""

    def __init__(self, client: "TubeMQClient", cluster: "Cluster", arguments: argparse.Namespace) -> None:
        self._client = client
        self._cluster = cluster
        self._arguments = arguments
        self._positions: dict[TopicPartition, int] = {}
        self.failed = False
        """Whether messages were gone, or could not be decoded."""
        self._without_master = False
        """Whether no master has answered lately, which was told."""

    def records(self) -> "Iterator[Record]":
        """Yield what is there, and with --follow what comes."""
        arguments = self._arguments
        layout = self._cluster.layout((arguments.topic,))
        partitions = chosen_partitions(layout, arguments.partition)
        bounds = self._client.bounds(layout).complete()
        # An offset of 0 is a place, too.
        first = Edge.LATEST if arguments.follow else Edge.EARLIEST
        start = first if arguments.start is None else arguments.start
        end = Edge.LATEST if arguments.end is None else arguments.end
        zone = arguments.message_time_zone
        self._positions = offsets_at(self._cluster, layout, bounds, start, "--from", zone)
        ends = offsets_at(self._cluster, layout, bounds, end, "--to", zone, ending=True)
        if arguments.last is None:
            yield from self._up_to(layout, partitions, ends)
        else:
            chosen = {partition: ends[partition] for partition in partitions}
            yield from self._client.read(
                arguments.topic, last=arguments.last, end=chosen, partitions=chosen, on_loss=self._lose
            )
        if arguments.follow:
            yield from self._follow(layout, partitions)

    def _up_to(
        self,
        layout: "TopicsLayout",
        partitions: "Collection[TopicPartition]",
        ends: "dict[TopicPartition, int]",
    ) -> "Iterator[Record]":
        for partition in partitions:
            start, end = self._positions[partition], ends[partition]
            if start < end:
                records = OffsetRange(partition, start, end)
                yield from self._client.read_range(layout, records, on_loss=self._lose)
                self._positions[partition] = end

    def _follow(self, layout: "TopicsLayout", partitions: "Collection[TopicPartition]") -> "Iterator[Record]":
        looked_at = time.monotonic()
        while True:
            sys.stdout.buffer.flush()
            time.sleep(_LOOK_EVERY_S)
            if time.monotonic() - looked_at >= _LAYOUT_EVERY_S:
                looked_at = time.monotonic()
                layout = self._newest(layout)
                partitions = chosen_partitions(layout, self._arguments.partition)
            bounds = self._client.bounds(layout).by_store
            ends = {}
            for partition in partitions:
                span = bounds.get(partition.store_id)
                if span is not None:  # otherwise its broker is away, and is asked again
                    self._positions.setdefault(partition, span.earliest)
                    ends[partition] = span.latest
            yield from self._up_to(layout, sorted(ends), ends)

    def _newest(self, known: "TopicsLayout") -> "TopicsLayout":
        """Return where the partitions are, as the master says, or said last while none answers."""
        try:
            layout = self._client.layout(self._arguments.topic)
        except TubeMQError as error:
            if not error.retriable:
                raise
            if not self._without_master:
                complain(f"{error} Going on with the partitions that are known.")
            self._without_master = True
            return known
        self._without_master = False
        return layout

    def _lose(self, loss: "LossRecord") -> None:
        self.failed = True
        complain(loss)
