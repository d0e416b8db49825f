"""What commands print: tables for people, JSON for programs, and errors in the words of the command line.

Texts of errors name options of Spark, where most are read. What a command prints names arguments instead: the
one table is here, and a test goes through all texts that there are.
"""

import dataclasses
import datetime
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tubemq_spark.errors import TubeMQError
from tubemq_spark.settings.fields import bad_setting

_ARGUMENTS: Final = {
    "tubemq.master.servers": "--master",
    "tubemq.master.web": "--web",
    "tubemq.group": "--group",
    "tubemq.username": "--username",
    "tubemq.password": "--password-file",
    "tubemq.fetchTimeoutMs": "--timeout",
    "tubemq.tls.caFile": "--tls-ca",
    "tubemq.tls.certFile": "--tls-cert",
    "tubemq.tls.keyFile": "--tls-key",
    "tubemq.tls.serverName": "--tls-server-name",
    "tubemq.tls.keyPassword": "the variable TUBEMQ_TLS_KEY_PASSWORD",
    "tubemq.tls.minVersion": "the version of TLS, 1.2 or newer here,",
    "tubemq.tls.enabled=true": "--tls",
    "tubemq.tls.enabled": "--tls",
    "master_port": "--master-port",
    "broker_port": "--broker-port",
    "master_web_port": "--master-web-port",
    "broker_web_port": "--broker-web-port",
}
"""Options of Spark and of the embedded server, and the arguments that stand for them."""
_SETTINGS: Final = {"masters": "--master", "web": "--web", "group": "--group", "username": "--username"}
"""Settings of the client, likewise."""
_PHRASES: Final = (
    (r", or the topics in 'subscribe'", ""),
    (r" \(clients in Python: master_web; for all who use a gateway its operator sets master_web\)", ""),
    (r"raise tubemq\.rpcTimeoutMs or ", ""),
    (r"set tubemq\.tls\.enabled=false", "leave out --tls"),
    (r"raise readerGroups\.size, or ", ""),
    (r", or raise fetchOffset\.numRetries", ""),
    (r", or set startingOffsetsByTimestampStrategy=latest", ""),
    (r" \(in Spark: (?:subscribe|messageTypes|readerGroups|tubemq\.group)\)", ""),
    (r"given with the password\b", "given with the password, in --password-file or in TUBEMQ_PASSWORD"),
    (r" Set failOnDataLoss=false [^.]*\.", ""),
    (r" of option '(?:receiptsPath|lossLedger|checkpointLocation)'", ""),
    (r"name one that the driver and all executors can reach and write to", "name another one"),
    (r"(name a folder elsewhere) that the driver and all executors can reach", r"\1"),
    (r", as an absolute path or a URI that the driver can reach", ""),
    (r" in the option '(?:receiptsPath|lossLedger)'", ""),
    (
        r"give the confModAuthToken of the masters",
        "give the confModAuthToken of the masters in --token-file or in TUBEMQ_ADMIN_TOKEN",
    ),
    (r"\(in Spark: ([^)]*)\)", r"(\1)"),
    (r"\b(?:the )?[Oo]ption '([\w.-]+)'", r"\1"),
    (r"\bthe options '([\w.-]+)' and '([\w.-]+)'", r"\1 and \2"),
    (r"\bsince '(--[\w -]+)' needs", r"since \1 needs"),
    (r"is given without '(--[\w-]+)'", r"is given without \1"),
    (r"The setting (--[\w-]+)", r"\1"),
)
"""What is left out, or said otherwise: patterns, in the order in which they count."""
_NAMES: Final = re.compile("|".join(map(re.escape, sorted(_ARGUMENTS, reverse=True))))


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What a command has to say: to programs ``data``, to people lines; and to both what is worth knowing."""

    data: Mapping[str, Any]
    lines: Sequence[str]
    remarks: Sequence[object] = ()
    failed: bool = False

    def tell(self, *, as_json: bool) -> int:
        """Print it, and return the exit code."""
        if as_json:
            print_json(self.data)
        else:
            sys.stdout.writelines(f"{line}\n" for line in self.lines)
        for remark in self.remarks:
            complain(remark)
        return int(self.failed)


def print_json(data: object) -> None:
    """Print one line of JSON."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of rows in columns, numbers to the right; what is None is blank."""
    cells = [[_shown(cell) for cell in row] for row in rows]
    numbers = [
        bool(cells) and all(row[place].lstrip("-").isdigit() or not row[place] for row in cells)
        for place in range(len(header))
    ]
    widths = [
        max([len(_heading(name)), *(len(row[place]) for row in cells)]) for place, name in enumerate(header)
    ]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in [[_heading(name) for name in header], *cells]
    ]


def rows_lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the lines of rows in columns that their keys name; none of no rows."""
    return table_lines(list(rows[0]), [list(row.values()) for row in rows]) if rows else []


def _shown(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else str(cell)


def _heading(name: str) -> str:
    """Return the words of a name such as ``brokerId``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).upper()


def complain(text: object) -> None:
    """Print something that is wrong or worth knowing, in the words of the command line."""
    sys.stderr.write(f"tubemq-spark: {in_words_of_commands(text)}\n")


def utc_text(time: datetime.datetime | None, precision: str = "seconds") -> str | None:
    """Return a time in UTC, in the form of ISO 8601; None if it is not known."""
    if time is None:
        return None
    return time.astimezone(datetime.UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without its null values."""
    return {name: value for name, value in row.items() if value is not None}


def in_words_of_commands(text: object) -> str:
    """Return a text that names arguments where it named options of Spark."""
    words = str(text)
    for pattern, instead in _PHRASES:
        words = re.sub(pattern, instead, words)
    for name, argument in _SETTINGS.items():
        words = words.replace(f"The setting {name} ", f"{argument} ")
    return _NAMES.sub(lambda match: _ARGUMENTS[match[0]], words)


def system_error(error: OSError) -> TubeMQError:
    """Return an error of the operating system as one of the tree."""
    if error.filename is None:
        return TubeMQError("TUBEMQ_COMMAND_SYSTEM", cause=cause_of(error))
    return TubeMQError("TUBEMQ_COMMAND_FILE", path=os.fsdecode(error.filename), cause=cause_of(error))


def cause_of(error: Exception) -> str:
    """Return why a file cannot be used, without the number and the path that texts of Python have."""
    return (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".")


def text_of(option: str, file: Path) -> str:
    """Return the text of the file that an argument names.

    Raises:
        OptionError: it cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_setting(option, f"{file} ({cause_of(error)})", "a text file that can be read") from error


class LogFormatter(logging.Formatter):
    """Writes warnings of a command as it writes its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return f"tubemq-spark: {in_words_of_commands(super().format(record))}"
