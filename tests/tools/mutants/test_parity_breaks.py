"""What is left of a module when the place that a row of the parity table names is taken out."""

import pytest

from tests.cases import in_one_test
from tools.mutants.parity import breaks_of, can_be_broken

SOURCE = '''"""A module."""

LIMIT: Final = 5
NAMES = {"a": 1, "b": 2}
BOTH: tuple[int, ...] = (1, 2)
IS_ON = True
WORD = "word"
UNKNOWN: int


def plain(a):
    """Say what it does."""
    return a


def short(a) -> int: return a


def numbers(until: int) -> Iterator[int]:
    yield from range(until)


async def many() -> AsyncIterator[int]:
    yield 2


def is_even(number: int) -> bool:
    return number % 2 == 0


def makes_a_generator() -> Callable[[], Iterator[int]]:
    def inner() -> Iterator[int]:
        yield 1

    return inner


class Thing:
    SIZE = 1

    @overload
    def method(self, a: str) -> bytes: ...

    def method(self, a):
        return a

    class Inner:
        async def deep(self) -> str:
            return "deep"
'''


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "tubemq_spark" / "client"
    package.mkdir(parents=True)
    (package / "module.py").write_text(SOURCE)
    (tmp_path / "page.md").write_text("A page.\n")
    return tmp_path


@in_one_test(
    ("name", "goes", "comes"),
    [
        ("plain", '    """Say what it does."""\n    return a\n', ["    return None\n"]),
        ("short", "def short(a) -> int: return a\n", ["def short(a) -> int: return 0\n"]),
        ("numbers", "    yield from range(until)\n", ["    return None; yield\n"]),
        ("many", "    yield 2\n", ["    return; yield\n"]),
        ("is_even", "    return number % 2 == 0\n", ["    return True\n", "    return False\n"]),
        (
            "makes_a_generator",
            "    def inner() -> Iterator[int]:\n        yield 1\n\n    return inner\n",
            ["    return None\n"],
        ),
        ("Thing.method", "        return a\n", ["        return None\n"]),
        ("Thing.Inner.deep", '            return "deep"\n', ["            return ''\n"]),
        ("LIMIT", "LIMIT: Final = 5\n", ["LIMIT: Final = 5 + 1\n"]),
        ("NAMES", 'NAMES = {"a": 1, "b": 2}\n', ["NAMES = {}\n"]),
        ("BOTH", "BOTH: tuple[int, ...] = (1, 2)\n", ["BOTH: tuple[int, ...] = ()\n"]),
        ("IS_ON", "IS_ON = True\n", ["IS_ON = False\n"]),
        ("WORD", 'WORD = "word"\n', ["WORD = None\n"]),
    ],
)
def test_a_function_says_nothing_and_a_value_is_another_one(checkout, name, goes, comes):
    before, _, after = SOURCE.rpartition(goes)
    made = [change.source.decode() for change in breaks_of(f"client/module.py::{name}", checkout)]
    assert made == [f"{before}{text}{after}" for text in comes]


@pytest.mark.parametrize("place", ["client/module.py", "page.md"])
def test_a_file_is_emptied(checkout, place):
    (change,) = breaks_of(place, checkout)
    assert change.source == b""


@in_one_test(
    "place",
    [
        "client/",
        "client/no_module.py::plain",
        *(f"client/module.py::{name}" for name in ("nothing", "UNKNOWN", "method", "Thing", "Thing.nothing")),
    ],
)
def test_what_names_nothing_cannot_be_broken(checkout, place):
    assert not can_be_broken(place, checkout)
    with pytest.raises(LookupError, match=place):
        list(breaks_of(place, checkout))
