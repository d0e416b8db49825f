"""The command ``tubemq-spark produce``: lines of a file or of standard input to a topic."""

import argparse
import base64
import binascii
import contextlib
import json
import os
import signal
import sys
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tubemq_spark.cli.connection import cluster_config, connection
from tubemq_spark.cli.output import complain, print_json
from tubemq_spark.cli.parser import TIME_ZONE_OF_MESSAGES, argument, command
from tubemq_spark.cli.places import fields_of, parse_partition
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import MSG_TIME_KEY, MSG_TYPE_KEY
from tubemq_spark.offsets.message_time import MOMENT, is_repeated, minutes_of, moment_ms, text_of
from tubemq_spark.receipts import Receipt, summarise

if TYPE_CHECKING:
    from tubemq_spark.client.producer.messages import MessageFields
    from tubemq_spark.client.producer.producer import Producer

    class _Line(MessageFields):
        value: bytes


_FIELDS: Final = frozenset(
    {"value", "valueBase64", "key", "brokerId", "partition", "messageType", "messageTime", "attributes"}
)
_IGNORED: Final = frozenset({"topic", "offset", "messageId"})
"""What ``consume --json`` says of a message besides: its output can be the input."""
_PROGRESS_EVERY: Final = 1_000


_MESSAGE_TIME: Final = (
    f"{MOMENT}, milliseconds since 1970 such as 1769860800000, or the text that is stored, 202601311200"
)
"""What a message's time may be, for help and errors."""
_STORED_DIGITS: Final = 12
_MILLISECONDS_DIGITS: Final = 13


def stored_time(text: str, zone: zoneinfo.ZoneInfo) -> str:
    """Return a message's time as TubeMQ stores it: as the clocks of a zone show it, to the minute."""
    digits = len(text) if text.isascii() and text.isdigit() else 0
    if digits == _STORED_DIGITS and minutes_of(text, zone) is not None:
        return text
    try:
        # A number that is shorter is no time of today in milliseconds, but a slip: seconds, or another form.
        minute = (int(text) if digits == _MILLISECONDS_DIGITS else moment_ms(text)) // 60_000
        stored = text_of(minute, zone)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: {_MESSAGE_TIME}") from None
    if is_repeated(minute, stored, zone):
        raise ValueError(
            f"{text!r} is {stored} in {zone.key}, which sets its clocks back then, and would be read as an "
            "earlier time (UTC has no such times)"
        )
    return stored


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


@command(
    name="produce",
    summary="send lines to a topic",
    description="Send each line of a file, or of standard input, as a message. At the end it says how "
    "many messages brokers have stored. A line that cannot be sent ends the command; those before it "
    "are sent.",
    example="clicks lines.txt --key-delimiter : --master 10.1.2.3",
    failure="a message could not be stored, or the file cannot be read",
    arguments=(
        argument("topic TOPIC", "topic to send to"),
        argument("file FILE", "file to read (default: standard input)", Path, nargs="?"),
        argument(
            "--key-delimiter -K TEXT",
            "lines are KEY, this text and VALUE; equal keys share a partition",
            os.fsencode,
        ),
        argument(
            "--attribute -H NAME=VALUE",
            "attribute of each message; may be given several times",
            _pair,
            action="append",
        ),
        argument("--message-type TYPE", "message type, by which consumers may filter"),
        argument("--message-time TIME", f"message time: {_MESSAGE_TIME} (default: the time of sending)"),
        argument("--no-message-time", "send messages that name no time without one"),
        TIME_ZONE_OF_MESSAGES,
        argument("--partition -p BROKER_ID:PARTITION_ID", "send all to this partition", parse_partition),
        argument(
            "--json-lines",
            "each line is an object, as consume --json prints it: value or valueBase64, and the "
            "other fields that are to be set",
        ),
        argument("--skip-blank-lines", "leave out lines without any character"),
        argument("--json", "print what was stored as one JSON object"),
        connection("tubemq_spark_produce", reads=False),
    ),
)
def produce(arguments: argparse.Namespace) -> int:
    """Send all lines and return 0."""
    if arguments.json_lines and arguments.key_delimiter is not None:
        raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="--json-lines", other="--key-delimiter")
    if arguments.no_message_time and arguments.message_time is not None:
        raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="--no-message-time", other="--message-time")
    if arguments.message_time is not None:
        try:
            arguments.message_time = stored_time(arguments.message_time, _zone(arguments))
        except ValueError as error:
            raise OptionError("TUBEMQ_COMMAND_SETTING", source="--message-time", problem=error) from error
    config = cluster_config(arguments)
    from tubemq_spark.client.tubemq import TubeMQClient

    with _terminated_as_interrupted(), _input(arguments.file) as lines, TubeMQClient(config.client) as client:
        producer = client.producer(
            arguments.file or "standard input",
            stamp_message_time=not arguments.no_message_time,
            message_time_zone=arguments.message_time_zone,
        )
        try:
            try:
                _send_all(producer, lines, arguments)
            finally:
                # What came before a line that cannot be sent was accepted.
                producer.flush()
        except (TubeMQError, KeyboardInterrupt):
            if producer.receipts():
                complain(f"stored before it ended: {summarise(producer.receipts())}")
            raise
        finally:
            producer.close()
        if not producer.receipts():
            client.publishable(arguments.topic)  # nothing was sent that would show a wrong topic or master
        _print_summary(producer.receipts(), as_json=arguments.json)
    return 0


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """End at SIGTERM as at Ctrl-C: what was accepted is sent."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _input(file: Path | None) -> IO[bytes]:
    if file is None:
        # A copy, so that closing it leaves standard input alone.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return file.open("rb")


def _send_all(producer: "Producer", lines: IO[bytes], arguments: argparse.Namespace) -> None:
    """Send all lines; stop at the first that failed, whose error ``flush`` raises."""
    constant = dict(arguments.attribute or ())
    # Both ends are a terminal at which nothing has been typed.
    show = sys.stderr.isatty() and not sys.stdin.isatty()
    for number, line in _read(lines, arguments):
        line["attributes"] = {**constant, **(line.get("attributes") or {})} or None
        line["partition"] = line.get("partition") or arguments.partition
        line["message_type"] = line.get("message_type") or arguments.message_type
        if arguments.message_time is not None:
            line.setdefault("message_time", arguments.message_time)
        producer.send(arguments.topic, **line)
        if producer.failures:
            break
        if show and number % _PROGRESS_EVERY == 0:
            sys.stderr.write(f"\r{number:,} lines")
    if show:
        sys.stderr.write("\r\x1b[K")


def _read(lines: IO[bytes], arguments: argparse.Namespace) -> Iterator[tuple[int, "_Line"]]:
    delimiter: bytes | None = arguments.key_delimiter
    zone = _zone(arguments)
    for number, text in enumerate(lines, 1):
        body = text.removesuffix(b"\n").removesuffix(b"\r")
        if not body:
            if arguments.skip_blank_lines:
                continue
            raise _refused(number, "it is blank (--skip-blank-lines leaves such lines out)")
        if arguments.json_lines:
            yield number, _line_of_json(number, body, zone)
        elif delimiter is not None:
            key, separator, value = body.partition(delimiter)
            if not separator:
                raise _refused(number, f"it has no {os.fsdecode(delimiter)!r}")
            yield number, {"value": value, "key": key}
        else:
            yield number, {"value": body}


def _line_of_json(number: int, text: bytes, zone: zoneinfo.ZoneInfo) -> "_Line":
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(number, f"it is not JSON ({error})") from error
    if not isinstance(data, dict):
        raise _refused(number, "it is not a JSON object")
    unknown = data.keys() - _FIELDS - _IGNORED
    if unknown:
        raise _refused(number, f"it has {min(unknown)!r}, which is none of {', '.join(sorted(_FIELDS))}")
    try:
        line: _Line = {
            "value": _value(data),
            "key": data.get("key"),
            "partition": _route(data),
            "message_type": data.get("messageType"),
            "attributes": _own(data.get("attributes")),
        }
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise _refused(number, f"its fields have other types than consume --json prints ({error})") from error
    if data.get("messageTime") is not None:
        try:
            line["message_time"] = stored_time(str(data["messageTime"]), zone)
        except ValueError as error:
            raise _refused(number, f"its messageTime {error}") from error
    return line


def _zone(arguments: argparse.Namespace) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(arguments.message_time_zone)


def _route(data: dict[str, Any]) -> tuple[int, int] | None:
    """Return the partition that a line names; what was consumed tells where it came from instead."""
    if "offset" in data or "messageId" in data or "brokerId" not in data or "partition" not in data:
        return None
    return int(data["brokerId"]), int(data["partition"])


def _value(data: dict[str, Any]) -> bytes:
    if "valueBase64" in data:
        try:
            return base64.b64decode(_text(data, "valueBase64"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"valueBase64 is not base64: {error}") from error
    return _text(data, "value").encode()


def _text(data: dict[str, Any], name: str) -> str:
    if not isinstance(data.get(name), str):
        raise TypeError(f"{name} is not a text")
    return str(data[name])


def _own(attributes: dict[str, str] | None) -> dict[str, str] | None:
    """Return attributes without those that have fields of their own."""
    if attributes is None:
        return None
    return {name: value for name, value in attributes.items() if name not in (MSG_TYPE_KEY, MSG_TIME_KEY)}


def _print_summary(receipts: list[Receipt], *, as_json: bool) -> None:
    """Print a summary of what is stored."""
    if not as_json:
        sys.stderr.write(f"{summarise(receipts)}\n")
        return
    print_json(
        {
            "messages": sum(receipt.count for receipt in receipts),
            "bytes": sum(receipt.bytes for receipt in receipts),
            "sentAgain": sum(receipt.retried for receipt in receipts),
            "extraCopiesAtMost": sum(receipt.unanswered for receipt in receipts),
            "partitions": [
                {
                    **fields_of(receipt.partition),
                    "messages": receipt.count,
                    "firstOffset": receipt.first_offset,
                    "lastOffset": receipt.last_offset,
                }
                for receipt in receipts
            ],
        }
    )


def _refused(number: int, what: str) -> OptionError:
    return OptionError("TUBEMQ_BAD_MESSAGE", what=f"line {number}: {what}")
