"""What is left of a module when the place that a row of the parity table names is taken out."""

import pytest

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
    b = a
    return b


def short(a) -> int: return a


def numbers(until: int) -> Iterator[int]:
    yield from range(until)


async def later() -> str:
    return "later"


async def many() -> AsyncIterator[int]:
    yield 1


def is_even(number: int) -> bool:
    return number % 2 == 0


def makes_a_generator() -> Callable[[], Iterator[int]]:
    def inner() -> Iterator[int]:
        yield 1

    return inner


class Thing:
    SIZE = 1

    @overload
    def method(self, a: int) -> bytes: ...

    @overload
    def method(self, a: str) -> bytes: ...

    def method(self, a):
        """Say what it does."""
        return a

    @property
    def size(self) -> float:
        return 1.5

    class Inner:
        def deep(self) -> None:
            self.called = True


def after() -> bytes:
    return b"after"
'''


@pytest.fixture
def checkout(tmp_path):
    package = tmp_path / "tubemq_spark" / "client"
    package.mkdir(parents=True)
    (package / "module.py").write_text(SOURCE)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("A page.\n")
    return tmp_path


def broken(checkout, name):
    """Return the lines that go and those that come, for each way to break a place of the module."""
    ways = []
    for change in breaks_of(f"client/module.py::{name}", checkout):
        assert (change.place, change.path) == (f"client/module.py::{name}", "tubemq_spark/client/module.py")
        text = change.source.decode()
        compile(text, "module.py", "exec")
        before, after = SOURCE.splitlines(), text.splitlines()
        while before and after and before[0] == after[0]:
            del before[0], after[0]
        while before and after and before[-1] == after[-1]:
            del before[-1], after[-1]
        ways.append((before, after))
    return ways


@pytest.mark.parametrize(
    ("name", "goes", "comes"),
    [
        ("plain", ['    """Say what it does."""', "    b = a", "    return b"], ["    return None"]),
        ("short", ["def short(a) -> int: return a"], ["def short(a) -> int: return 0"]),
        ("numbers", ["    yield from range(until)"], ["    return None; yield"]),
        ("later", ['    return "later"'], ["    return ''"]),
        ("many", ["    yield 1"], ["    return; yield"]),
        ("Thing.size", ["        return 1.5"], ["        return 0.0"]),
        ("Thing.Inner.deep", ["            self.called = True"], ["            return None"]),
        ("after", ['    return b"after"'], ["    return b''"]),
    ],
)
def test_a_function_says_nothing(checkout, name, goes, comes):
    assert broken(checkout, name) == [(goes, comes)]


def test_a_truth_value_is_turned_both_ways(checkout):
    goes = ["    return number % 2 == 0"]
    assert broken(checkout, "is_even") == [(goes, ["    return True"]), (goes, ["    return False"])]


def test_a_function_around_a_generator_is_none(checkout):
    ((_, comes),) = broken(checkout, "makes_a_generator")
    assert comes == ["    return None"]


def test_of_overloads_the_function_itself_is_broken(checkout):
    goes = ['        """Say what it does."""', "        return a"]
    assert broken(checkout, "Thing.method") == [(goes, ["        return None"])]


@pytest.mark.parametrize(
    ("name", "goes", "comes"),
    [
        ("LIMIT", "LIMIT: Final = 5", "LIMIT: Final = 5 + 1"),
        ("NAMES", 'NAMES = {"a": 1, "b": 2}', "NAMES = {}"),
        ("BOTH", "BOTH: tuple[int, ...] = (1, 2)", "BOTH: tuple[int, ...] = ()"),
        ("IS_ON", "IS_ON = True", "IS_ON = False"),
        ("WORD", 'WORD = "word"', "WORD = None"),
    ],
)
def test_a_value_is_another_one(checkout, name, goes, comes):
    assert broken(checkout, name) == [([goes], [comes])]


@pytest.mark.parametrize(
    ("place", "path"),
    [("client/module.py", "tubemq_spark/client/module.py"), ("docs/page.md", "docs/page.md")],
)
def test_a_file_is_emptied(checkout, place, path):
    (change,) = breaks_of(place, checkout)
    assert (change.path, change.source) == (path, b"")


@pytest.mark.parametrize(
    "place",
    [
        "client/",
        "client/no_module.py",
        "client/no_module.py::plain",
        "client/module.py::nothing",
        "client/module.py::UNKNOWN",
        "client/module.py::method",
        "client/module.py::Thing",
        "client/module.py::Thing.nothing",
        "client/module.py::Nothing.method",
    ],
)
def test_what_names_nothing_cannot_be_broken(checkout, place):
    with pytest.raises(LookupError, match=place):
        list(breaks_of(place, checkout))
    assert not can_be_broken(place, checkout)


def test_what_names_something_can_be_broken(checkout):
    assert can_be_broken("client/module.py::Thing.method", checkout)
    assert can_be_broken("docs/page.md", checkout)
