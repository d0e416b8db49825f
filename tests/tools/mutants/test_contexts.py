"""Which tests are run for a line that is carried out when its module is imported."""

import pytest

from tools.mutants.contexts import names_at

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
