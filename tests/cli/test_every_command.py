"""What all commands have: help, an example that they take, exit codes."""

import re
import shlex

import pytest

from tests.cases import in_one_test
from tools.gen_docs import commands, connection_arguments, leaves, name_of
from tubemq_spark.cli import main as cli

COMMANDS = [command for command, _ in leaves(cli.build_parser())]
SHARED = connection_arguments()
PAGE = commands() + SHARED
each_command = in_one_test("command", COMMANDS)


@each_command
def test_the_page_has_a_section_with_each_argument_and_the_exit_codes(command):
    section = re.search(rf"\n## {name_of(command)}\n(.*?)(?:\n## |$)", PAGE, re.DOTALL)[1]
    assert command.example in section
    assert "Exit codes: 0 success; 1 if " in section
    for action in command._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in section + SHARED, (command.prog, option)


def test_anchors_are_unique():
    anchors = re.findall(r'id="([^"]+)"', PAGE)
    assert len(anchors) == len(set(anchors)) > 50


def test_there_are_commands():
    assert {command.prog for command in COMMANDS} >= {"tubemq-spark demo", "tubemq-spark topics list"}


@each_command
def test_help_says_what_it_does_how_it_ends_and_shows_an_example_that_it_takes(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.prog.split()[1:], "--help"])
    assert ended.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(command.description.split()) in told
    exit_codes = r"exit codes: 0 success; 1 if .+; 2 wrong arguments.*; 130 interrupted example: "
    assert re.search(exit_codes, told), "the help of a command ends with its exit codes and an example"
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
