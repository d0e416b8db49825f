"""What all commands have: help, an example that they take, exit codes."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tests.cases import in_one_test
from tubemq_spark.cli import main as cli

ROOT = Path(__file__).resolve().parents[2]


def load_tool():
    spec = importlib.util.spec_from_file_location("gen_command_docs", ROOT / "tools" / "gen_command_docs.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool()
COMMANDS = [command for command, _ in TOOL.leaves(cli.build_parser())]
each_command = in_one_test("command", COMMANDS)


def test_the_page_is_up_to_date():
    """Run ``make docs`` when this fails."""
    assert TOOL.PAGE.read_text(encoding="utf-8") == TOOL.page()


@each_command
def test_the_page_has_a_section_with_each_argument_and_the_exit_codes(command):
    page = TOOL.page()
    section = re.search(rf"\n## {TOOL.name_of(command)}\n(.*?)\n## ", page, re.DOTALL)[1]
    assert command.example in section
    assert "Exit codes: 0 success; 1 if " in section
    connection = page.partition("## Connection arguments")[2]
    for action in command._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in section + connection, (command.prog, option)


def test_anchors_are_unique():
    anchors = re.findall(r'id="([^"]+)"', TOOL.page())
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
