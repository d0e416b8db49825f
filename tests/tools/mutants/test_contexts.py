"""Which tests are run for a line that no test touches: it is carried out at import, or in other processes."""

import pytest

from tools.mutants.contexts import command_tests, is_in_function, names_at

MODULE = """
SIZE: Final = 5
_MS = {
    "s": 1_000,
}


@dataclass
class Settings:
    wait_ms: int = option(
        5,
    )

    def kind(self, more=7):
        total = more
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SIZE", ["SIZE"]),
        ('"s"', ["_MS"]),
        ("5,", ["Settings", "wait_ms"]),
        ("def kind", ["Settings"]),
        ("@dataclass", []),
    ],
)
def test_a_line_outside_of_functions_has_the_names_of_what_it_defines(text, names):
    before, _, _ = MODULE.partition(text)
    assert names_at(MODULE, before.count("\n") + 1) == names


def test_what_processes_do_is_tested_by_the_command_that_runs_the_package():
    assert command_tests("tubemq_spark/gateway/process.py") == ["tests/cli/test_gateway_command.py"]
    assert command_tests("tubemq_spark/options/table.py") == []


@pytest.mark.parametrize(
    ("text", "called"), [("SIZE", False), ("5,", False), ("def kind", False), ("total", True)]
)
def test_what_is_carried_out_at_import_is_in_no_function(text, called):
    before, _, _ = MODULE.partition(text)
    assert is_in_function(MODULE, before.count("\n") + 1) is called
