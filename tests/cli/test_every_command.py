"""What all commands have: help, an example that they take, exit codes."""

import argparse
import re
import shlex

import pytest

from tests.cases import in_one_test
from tubemq_spark.cli import main as cli


def commands(parser):
    """Yield the parser of each command that does something."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for one in group.choices.values():
            yield from commands(one)


COMMANDS = list(commands(cli.build_parser()))
each_command = in_one_test("command", COMMANDS)


def test_there_are_commands():
    assert {command.prog for command in COMMANDS} >= {"tubemq-spark demo", "tubemq-spark topics list"}


@each_command
def test_help_says_what_it_does_how_it_ends_and_shows_an_example_that_it_takes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.prog.split()[1:], "--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(command.description.split()) in told
    assert re.search(r"exit codes: 0 success; 1 if .+; 2 wrong arguments.*; 130 interrupted example: ", told)
    assert told.endswith(f"example: {command.example}")
    assert command.example.startswith(f"{command.prog} ")
    parsed = cli.build_parser().parse_args(shlex.split(command.example)[1:])
    assert callable(parsed.run)


@each_command
def test_each_argument_is_explained(command):
    for action in command._actions:
        assert action.help, (command.prog, action.dest)


@each_command
def test_a_command_that_asks_a_cluster_tells_programs_too(command):
    options = {option for action in command._actions for option in action.option_strings}
    assert "--config" not in options or "--master" not in options or "--json" in options
