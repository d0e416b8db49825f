"""What all commands have in common: their parser, their example and their exit codes."""

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

from tubemq_spark.protocol.constants import is_encodable
from tubemq_spark.settings.kinds import enumerated
from tubemq_spark.settings.suggest import did_you_mean

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


_EXAMPLE: Final = "example: "


class _Paragraphs(argparse.HelpFormatter):
    """Fills each paragraph of a text on its own, and leaves an example in one line, as it is copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(
            paragraph if paragraph.startswith(_EXAMPLE) else fill(paragraph, width, indent)
            for paragraph in text.split("\n\n")
        )


def new_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    example: str,
    failure: str = "something cannot be reached or used",
    more_exit_codes: Mapping[int, str] | None = None,
) -> CommandParser:
    """Return the parser of a new command, which has no arguments yet.

    Args:
        commands: where it is added.
        name: its name.
        run: what it does; takes the parsed arguments and returns the exit code.
        summary: what the list of commands says of it: a phrase without capital and full stop.
        description: what its own help says: sentences.
        example: arguments that it takes, after ``tubemq-spark`` and its name.
        failure: when its exit code is 1: continues "if".
        more_exit_codes: what other exit codes say.
    """
    parser = commands.add_parser(name, help=summary, description=description, formatter_class=_Paragraphs)
    parser.exit_codes = {
        0: "success",
        FAILED: f"if {failure}",
        WRONG_ARGUMENTS: "wrong arguments",
        **(more_exit_codes or {}),
        INTERRUPTED: "interrupted",
    }
    parser.example = f"{parser.prog} {example}".rstrip()
    codes = "; ".join(f"{code} {meaning}" for code, meaning in parser.exit_codes.items())
    parser.epilog = f"exit codes: {codes}\n\n{_EXAMPLE}{parser.example}"
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Commands, name: str, *, summary: str, description: str) -> Commands:
    """Return where the actions of a new command are added, which does nothing by itself."""
    parser = commands.add_parser(name, help=summary, description=description)
    return parser.add_subparsers(title="actions", required=True, metavar="ACTION")
