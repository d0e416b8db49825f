"""How commands are declared, and how their arguments are read.

``command`` stands before the function that a command is: it says what the command is called, what help says
of it, and which arguments it takes. Arguments are values, so that several commands share one. The function
returns an exit code, or an ``Output``, which is printed.
"""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeAlias, TypeVar

from tubemq_spark.cli.output import Output
from tubemq_spark.files.folder_uri import EXPECTED, FolderUri, redacted
from tubemq_spark.protocol.constants import is_encodable
from tubemq_spark.settings.kinds import MAX_LONG, TIME_ZONE, Kind, did_you_mean, enumerated, integer

T = TypeVar("T")
P = ParamSpec("P")

FAILED: Final = 1
WRONG_ARGUMENTS: Final = 2
INTERRUPTED: Final = 130
OUTPUT_CLOSED: Final = 141

_MISSING: Final = "the following arguments are required: "
_ONE_IS_MISSING: Final = "one of the arguments "
_UNKNOWN: Final = "unrecognized arguments: "
"""How messages of argparse begin that are said in other words, or with more."""
_OF_OTHER_TOOLS: Final = {
    "-t": "TOPIC",
    "--topic": "TOPIC",
    "--bootstrap-server": "--master",
    "--broker-list": "--master",
    "--from-beginning": "--from",
    "--max-messages": "--count",
    "--offset": "--from",
    "--tail": "--last",
}
"""Arguments of other command lines, and those that stand for them here."""


class CommandParser(argparse.ArgumentParser):
    """Reports errors in one line, and takes positional arguments in any place.

    Subcommands are of the same class. A command that does something has an ``example`` and ``exit_codes``.
    """

    example: str = ""
    exit_codes: Mapping[int, str] = {}

    _is_intermixed = False
    """Whether the call that is under way came from ``parse_intermixed_args``, which calls back."""

    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong and what would be right, and end with exit code 2."""
        self.exit(WRONG_ARGUMENTS, f"{self.prog}: {self._advised(message)}; see {self.prog} --help\n")

    def _advised(self, message: str) -> str:
        """Return a message of argparse with what helps: the actions, an example, the nearest argument."""
        if message.startswith(_MISSING):
            may_be_left_out = {action.metavar for action in self._actions if action.nargs == "*"}
            names = [
                name for name in message.removeprefix(_MISSING).split(", ") if name not in may_be_left_out
            ]
            missing = f"{enumerated(names, 'and')} {'is' if len(names) == 1 else 'are'} missing"
            if self.example:
                return f"{missing}, as in: {self.example}"
            there_are = [name for action in self._actions if action.required for name in action.choices or ()]
            return f"{missing}: {enumerated(there_are, 'or')}"
        if message.startswith(_ONE_IS_MISSING):
            return f"{message}, as in: {self.example}"
        if message.startswith(_UNKNOWN):
            options = (word.partition("=")[0] for word in message.removeprefix(_UNKNOWN).split())
            nearest = filter(None, map(self._nearest, (name for name in options if name.startswith("-"))))
            return "; ".join([message, *nearest])
        return message

    def _nearest(self, name: str) -> str:
        """Return which argument an unknown one most likely stands for; "" if none is close."""
        known = [option for action in self._actions for option in action.option_strings]
        meant = _OF_OTHER_TOOLS.get(name, name)
        if meant in [action.metavar for action in self._actions if not action.option_strings]:
            return f"{meant} is given without it"
        return did_you_mean(meant if meant in known else name, known) if name.startswith("--") else ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 (typeshed: overloads)
        """Take positional arguments in any place, and report unknown ones under the command's own name."""
        if self._subparsers is not None or self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_intermixed_args(args, namespace), []
        finally:
            self._is_intermixed = False

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:  # noqa: ANN401 (as its type makes it)
        # A command's own action takes all that follows.
        if action.type is None and action.nargs != argparse.PARSER and not is_encodable(arg_string):
            problem = f"{arg_string!r} has bytes that are no text in {sys.getfilesystemencoding()}"
            raise argparse.ArgumentError(action, problem)
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:  # commands by their names
            advice = did_you_mean(value, action.choices) or f"choose from {', '.join(action.choices)}"
            self.error(f"no {str(action.metavar).lower()} is called {value!r}; {advice}")
        super()._check_value(action, value)


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"  # noqa: SLF001 (typeshed names it so)
"""Where commands, or the actions of a command, are added."""
Arguments: TypeAlias = argparse._ActionsContainer  # noqa: SLF001 (typeshed and argparse name it so)
"""Where arguments are added: a parser, or a group of its arguments."""
Argument: TypeAlias = Callable[[Arguments], object]
"""What adds an argument, or some that belong together, to a parser."""
Run: TypeAlias = Callable[[argparse.Namespace], int | Output]
"""What a command does; it returns an exit code, or what is printed."""

_EXAMPLE: Final = "example: "


class _Paragraphs(argparse.HelpFormatter):
    """Fills each paragraph of a text on its own, and leaves an example in one line, as it is copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(
            paragraph if paragraph.startswith(_EXAMPLE) else fill(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """A command that does something; ``command`` declares it."""

    run: Run
    _: dataclasses.KW_ONLY
    name: str
    summary: str
    """What the list of commands says of it: a phrase without capital and full stop."""
    description: str
    """What its own help says: sentences."""
    example: str
    """Arguments that it takes, after ``tubemq-spark`` and its name."""
    arguments: Sequence[Argument] = ()
    failure: str = "something cannot be reached or used"
    """When its exit code is 1: continues "if"."""
    more_exit_codes: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def add_to(self, commands: Commands) -> None:
        """Add its parser."""
        parser = commands.add_parser(
            self.name, help=self.summary, description=self.description, formatter_class=_Paragraphs
        )
        parser.exit_codes = {
            0: "success",
            FAILED: f"if {self.failure}",
            WRONG_ARGUMENTS: "wrong arguments",
            **self.more_exit_codes,
            INTERRUPTED: "interrupted",
        }
        parser.example = f"{parser.prog} {self.example}".rstrip()
        codes = "; ".join(f"{code} {meaning}" for code, meaning in parser.exit_codes.items())
        parser.epilog = f"exit codes: {codes}\n\n{_EXAMPLE}{parser.example}"
        for add in self.arguments:
            add(parser)
        parser.set_defaults(run=self.run)


def _declaring(make: Callable[Concatenate[Run, P], Command]) -> Callable[P, Callable[[Run], Command]]:
    """Return a function that takes the other fields of a command, and returns its decorator."""
    return lambda *args, **fields: lambda run: make(run, *args, **fields)


command: Final = _declaring(Command)
"""Declares the command that a function is, by the other fields of ``Command``."""


@dataclasses.dataclass(frozen=True, slots=True)
class CommandGroup:
    """A command that does nothing by itself, and has actions."""

    name: str
    summary: str
    description: str
    actions: Sequence[Command]

    def add_to(self, commands: Commands) -> None:
        """Add its parser, and those of its actions."""
        parser = commands.add_parser(self.name, help=self.summary, description=self.description)
        actions: Commands = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
        for action in self.actions:
            action.add_to(actions)


def argument(
    usage: str,
    text: str,
    read: Callable[[str], Any] | None = None,
    **how: Any,  # noqa: ANN401 (as argparse takes it)
) -> Argument:
    """Return an argument.

    Args:
        usage: its names and what stands for its value, such as ``--count -c N``. Without that it is a flag.
        text: what help says of it.
        read: makes its value of a text; None for the text itself.
        how: what else ``add_argument`` takes.
    """
    *names, value = usage.split()
    if not value.startswith("-"):
        how["metavar"] = value
    else:
        names.append(value)
        if how.keys().isdisjoint(("action", "choices")):
            how["action"] = "store_true"
    if read is not None:
        how["type"] = read
    return lambda parser: parser.add_argument(*names, help=text, **how)


def one_of(*arguments: Argument, required: bool = False) -> Argument:
    """Return arguments of which only one may be given."""

    def add(parser: Arguments) -> None:
        group = parser.add_mutually_exclusive_group(required=required)
        for each in arguments:
            each(group)

    return add


_LONGEST_S: Final = 86_400


def of_kind(kind: Kind[T], expected: str = "") -> Callable[[str], T]:
    """Return a parser of an argument; errors name ``expected``, or else the kind, as the right text."""

    def read(text: str) -> T:
        value = kind.parse(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{kind.shown(text)!r} is not {expected or kind.expected}")
        return value

    return read


def whole_number(lowest: int, highest: int, what: str) -> Callable[[str], int]:
    """Return a parser of a number, which errors call ``what``."""
    return of_kind(integer(lowest, highest), f"{what}; use {lowest} to {highest}")


def _parse_seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0 < seconds <= _LONGEST_S else None


def _parse_pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except re.error:
        return None


def _parse_folder(text: str) -> FolderUri | None:
    # A shell has a current directory, as a cluster has not.
    is_relative = text.strip() and ":" not in text
    return FolderUri.parse(str(Path(text).absolute()) if is_relative else text)


COUNT: Final = of_kind(integer(1, MAX_LONG), "a positive whole number")
SECONDS: Final = of_kind(Kind(f"a number of seconds from above 0 to {_LONGEST_S}", _parse_seconds))
PATTERN: Final = of_kind(Kind("a regular expression", _parse_pattern))
FOLDER: Final = of_kind(Kind(EXPECTED, _parse_folder, shown=redacted))

TIME_ZONE_OF_MESSAGES: Final = argument(
    "--message-time-zone ZONE",
    "time zone of message times, which TubeMQ stores as text without one, such as Asia/Shanghai "
    "(default: %(default)s)",
    of_kind(TIME_ZONE),
    default="UTC",
)
JSON: Final = argument("--json", "print one JSON object")
