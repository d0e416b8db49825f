"""``tubemq-spark``: arguments in, an exit code out.

Exit codes: 0 success, 1 failure, 2 wrong arguments, 130 interrupted, 141 the output is not read any more.
Spark and rich are imported only by the commands that need them, when they run.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import shtab

from tubemq_spark import __version__
from tubemq_spark.cli.checkpoint import checkpoint
from tubemq_spark.cli.consume import consume
from tubemq_spark.cli.demo.command import demo
from tubemq_spark.cli.embedded import embedded
from tubemq_spark.cli.examples import examples
from tubemq_spark.cli.gateway import gateway
from tubemq_spark.cli.groups import groups
from tubemq_spark.cli.output import LogFormatter, Output, complain, system_error
from tubemq_spark.cli.parser import FAILED, INTERRUPTED, OUTPUT_CLOSED, WRONG_ARGUMENTS, CommandParser
from tubemq_spark.cli.places import offsets
from tubemq_spark.cli.produce import produce
from tubemq_spark.cli.receipts import receipts
from tubemq_spark.cli.topics import topics
from tubemq_spark.cli.views import lag, losses
from tubemq_spark.errors import OffsetFormatError, OptionError, TubeMQError
from tubemq_spark.logs import write_lines_as
from tubemq_spark.protocol import speedups

_COMMANDS: Final = (
    embedded,
    gateway,
    demo,
    produce,
    consume,
    topics,
    groups,
    offsets,
    lag,
    checkpoint,
    losses,
    receipts,
    examples,
)
"""In the order in which help lists them."""


def _version() -> str:
    twin = "pure Python" if speedups.compiled is None else "compiled"
    return f"tubemq_spark {__version__} ({twin})"


def build_parser() -> CommandParser:
    """Return the parser of all commands; each sets its function as ``run``."""
    parser = CommandParser(
        prog="tubemq-spark",
        description="TubeMQ with Apache Spark: produce and consume messages, look at topics and offsets, "
        "run an embedded server, a gateway or a demo, verify what was written.",
    )
    parser.add_argument("-V", "--version", action="version", version=_version())
    shtab.add_argument_to(parser, "--print-completion", help="print a shell's completion script and exit")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not hasattr(sys.stdout, "write"):  # it is None: this process began without one
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    code = 0
    try:
        try:
            code = _run(build_parser().parse_args(arguments))
        finally:
            sys.stdout.flush()  # Python would do it at its end, and could only complain then.
    except OSError as error:
        # Python would complain once more when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return OUTPUT_CLOSED
        if code != FAILED:
            complain(system_error(error))
        return FAILED
    return code


def _run(arguments: argparse.Namespace) -> int:
    if logging.lastResort is not None:  # where warnings go unless a command sends its log elsewhere
        logging.lastResort.setFormatter(LogFormatter())
    write_lines_as(LogFormatter())
    try:
        answer: int | Output = arguments.run(arguments)
        return answer.tell(as_json=arguments.json) if isinstance(answer, Output) else answer
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except TubeMQError as error:
        complain(error)
        return WRONG_ARGUMENTS if isinstance(error, OptionError | OffsetFormatError) else FAILED
    except OSError as error:
        complain(system_error(error))
        return FAILED


def run_gateway() -> int:
    """Run ``tubemq-gateway``, which is ``tubemq-spark gateway``."""
    return main(["gateway", *sys.argv[1:]])
