"""Write docs/reference/commands.md from the parser of the command line; a unit test compares the two."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tubemq_spark.cli.connection import TITLE
from tubemq_spark.cli.main import build_parser
from tubemq_spark.cli.parser import CommandParser

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"

HEAD: Final = """\
# Commands

<!-- Written by `make docs` from the parser in tubemq_spark/cli. -->

`pip install tubemq_spark` brings the program `tubemq-spark`; `python -m tubemq_spark` is the same. `--help`
after a command says what this page does.

"""

TAIL: Final = """
## Connection arguments

Commands that reach a cluster have these arguments. Each may be in the environment or in a file too: what an
argument says counts first, then the environment, then the file, then the default.

- The variable of the environment is the argument in capitals: `TUBEMQ_MASTER` for `--master`,
  `TUBEMQ_TLS_CA` for `--tls-ca`.
- The file is `~/.config/tubemq-spark.toml` (`$XDG_CONFIG_HOME/tubemq-spark.toml`), or what `TUBEMQ_CONFIG` or
  `--config` names. Its keys are the arguments, and paths are relative to the file:

```toml
master = "10.1.2.3:8715,10.1.2.4:8715"
username = "anna"
password-file = "password"
tls = true
tls-ca = "ca.pem"
```

- Secrets stand in none of these, but for the variables `TUBEMQ_PASSWORD`, `TUBEMQ_TLS_KEY_PASSWORD` and
  `TUBEMQ_ADMIN_TOKEN`, or in files of their own.

{connection}

## Exit codes

0 success, 1 failure, 2 wrong arguments, 130 interrupted, 141 the output is not read any more. Each
command says what 1 stands for.

## Completion

`tubemq-spark --print-completion bash` prints a script that completes commands and their arguments; `zsh`
and `tcsh` have theirs.

```
tubemq-spark --print-completion bash > ~/.local/share/bash-completion/completions/tubemq-spark
tubemq-spark --print-completion zsh > ~/.zfunc/_tubemq-spark   # a folder of $fpath
```
"""


def page() -> str:
    """Return the whole page."""
    commands = list(leaves(build_parser()))
    overview = "\n".join(["| command | |", "|---|---|", *map(_overview_row, commands)])
    sections = "".join(_section(command) for command, _ in commands)
    return f"{HEAD}{overview}\n{sections}{TAIL.format(connection=_connection([one for one, _ in commands]))}"


def leaves(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[CommandParser, str]]:
    """Yield the commands that do something, each with its summary."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    if not groups:
        assert isinstance(parser, CommandParser)
        yield parser, summary
    for group in groups:
        summaries = {choice.dest: choice.help for choice in group._choices_actions}  # noqa: SLF001
        for name, child in group.choices.items():
            yield from leaves(child, summaries[name] or "")


def name_of(command: CommandParser) -> str:
    """Return the words of a command."""
    return command.prog.partition(" ")[2]


def _overview_row(command: tuple[CommandParser, str]) -> str:
    parser, summary = command
    return f"| [`{name_of(parser)}`](#{_anchor(name_of(parser))}) | {_escaped(summary)} |"


def _section(command: CommandParser) -> str:
    own = [action for action in _actions(command, connection=False) if action.dest != "help"]
    lines = [f"\n## {name_of(command)}\n", f"{_escaped(command.description or '')}\n"]
    lines += ["```", command.example, "```\n"]
    if own:
        lines += ["| argument | meaning |", "|---|---|", *(_row(command, action) for action in own), ""]
    if shared := _actions(command, connection=True):
        lines.append("It takes [connection arguments](#connection-arguments) too.")
        if "group" in {action.dest for action in shared}:
            group = command.get_default("group_by_default")
            lines[-1] += f" Unless `--group` says otherwise, it reads under the group `{group}`."
        lines[-1] += "\n"
    codes = "; ".join(f"{code} {meaning}" for code, meaning in command.exit_codes.items())
    lines.append(f"Exit codes: {codes}.\n")
    return "\n".join(lines)


def _connection(commands: list[CommandParser]) -> str:
    """Return the arguments that all these commands have, and those that some of them have."""
    rows: dict[str, str] = {}
    for command in commands:
        for action in _actions(command, connection=True):
            row = _row(command, action, "connection")
            own_group = f"default: {command.get_default('group_by_default')})"
            rows.setdefault(action.dest, row.replace(own_group, "default: that of the command)"))
    return "\n".join(["| argument | meaning |", "|---|---|", *rows.values()])


def _actions(command: CommandParser, *, connection: bool) -> list[argparse.Action]:
    """Return the arguments of the connection, or all others."""
    groups = [group for group in command._action_groups if (group.title == TITLE) is connection]  # noqa: SLF001
    return [action for group in groups for action in group._group_actions]  # noqa: SLF001


def _row(command: CommandParser, action: argparse.Action, prefix: str = "") -> str:
    names = [_with_value(action, name) for name in action.option_strings] or [_value(action)]
    argument = action.option_strings[0] if action.option_strings else action.dest
    anchor = _anchor(f"{prefix or name_of(command)} {argument}")
    meaning = command._get_formatter()._expand_help(action) if action.help else ""  # noqa: SLF001
    return f'| <a id="{anchor}"></a>{", ".join(f"`{name}`" for name in names)} | {_escaped(meaning)} |'


def _with_value(action: argparse.Action, name: str) -> str:
    return name if action.nargs == 0 else f"{name} {_value(action)}"


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        value = "\\|".join(map(str, action.choices))
    else:
        value = str(action.metavar or action.dest.upper())
    return {"?": f"[{value}]", "*": f"[{value} ...]", "+": f"{value} ..."}.get(str(action.nargs), value)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
