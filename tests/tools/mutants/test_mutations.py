"""What becomes of a line: each operator, and what none of them touches."""

import ast

import pytest

from tests.cases import in_one_test
from tools.mutants.mutations import Mutant, mutants_of, sample


def texts(source):
    """Return each mutant's text of the module."""
    mutants = mutants_of("tubemq_spark/client/a.py", source.encode())
    for mutant in mutants:
        ast.parse(mutant.applied(source.encode()))
    return [mutant.applied(source.encode()).decode() for mutant in mutants]


@in_one_test(
    ("source", "mutants"),
    [
        # Comparisons, of which the first changes.
        ("a < b", ["(a <= b)"]),
        ("a <= b", ["(a < b)"]),
        ("a > b", ["(a >= b)"]),
        ("a >= b", ["(a > b)"]),
        ("a == b", ["(a != b)"]),
        ("a != b", ["(a == b)"]),
        ("a is b", ["(a is not b)"]),
        ("a is not b", ["(a is b)"]),
        ("a in b", ["(a not in b)"]),
        ("a not in b", ["(a in b)"]),
        ("a < b < c", ["(a <= b < c)"]),
        # Logic.
        ("a and b", ["(a or b)"]),
        ("a or b or c", ["(a and b and c)"]),
        ("not a", ["(a)"]),
        ("a if b else c", ["(c if b else a)"]),
        # Arithmetic.
        ("a + b", ["(a - b)"]),
        ("a - b", ["(a + b)"]),
        ("a * b", ["(a // b)"]),
        ("a // b", ["(a * b)"]),
        ("a / b", ["(a * b)"]),
        ("a % b", ["(a * b)"]),
        ("a << b", ["(a >> b)"]),
        ("a >> b", ["(a << b)"]),
        ("a & b", ["(a | b)"]),
        ('"%s" % a', []),
        ('f"{a}" + b', []),
        ("-a", []),
        # Values.
        ("7", ["(7 + 1)"]),
        ("1.5", ["(1.5 + 1)"]),
        ("True", ["False"]),
        ("'text'", []),
        ("b'text'", []),
        ("None", []),
        ('f"{a < 7}"', []),
        # Calls.
        ("f(a, b, c)", ["f(b, a, c)"]),
        ("f(a)", []),
        ("f('a', b)", []),
        ("f(*a, b)", []),
        ("f(a, *b)", []),
        ("f(a=b, c=d)", []),
        ("f(a=7)", ["f(a=(7 + 1))"]),
        ("zip(a, strict=True)", []),
    ],
)
def test_an_expression(source, mutants):
    assert texts(f"x = {source}\n") == [f"x = {mutant}\n" for mutant in mutants]


@in_one_test(
    ("statement", "mutants"),
    [
        ("f()", ["pass"]),
        ("o.f()", ["pass"]),
        ("f(a, b)", ["pass", "f(b, a)"]),
        ("logger.info(a)", []),
        ("warnings.warn(a)", []),
        ("'a docstring'", []),
        ("...", []),
        ("x = a", []),
        ("o.x = a", ["pass"]),
        ("o[a] = b", ["pass"]),
        ("o.x, y = a", []),
        ("o.x: int = a", ["pass"]),
        ("x: tuple[Literal[7], bool] = a", []),
        ("x += a", ["pass"]),
        ("raise Error(a, b)", ["pass"]),
        ("raise AssertionError", []),
        ("del o[a]", ["pass"]),
        ("return", []),
        ("return None", []),
        ("return a", ["return None"]),
        ("pass", []),
    ],
)
def test_a_statement(statement, mutants):
    source = "def f():\n    {}\n"
    changed = texts(source.format(statement))
    assert sorted(changed) == sorted(source.format(mutant) for mutant in mutants)


@pytest.mark.parametrize(
    ("value", "mutants"),
    [
        ("a", ["not (a)"]),
        ("True", ["False"]),
        ("not a", ["(a)"]),
        ("a < b", ["(a <= b)"]),
        ("a and b", ["(a or b)", "not (a and b)"]),
    ],
)
def test_a_function_that_returns_a_truth_value(value, mutants):
    source = "def f() -> bool:\n    return {}\n"
    assert sorted(texts(source.format(value))) == sorted(source.format(mutant) for mutant in mutants)


def test_a_function_inside_one_that_returns_a_truth_value_does_not():
    source = "def f() -> bool:\n    def g():\n        return a\n    return {}\n"
    assert texts(source.format("b")) == [
        source.format("b").replace("return a", "return None"),
        source.format("not (b)"),
    ]


@pytest.mark.parametrize(
    ("condition", "mutants"),
    [("a", ["not (a)"]), ("not a", ["(a)"]), ("a < b", ["(a <= b)"]), ("TYPE_CHECKING", [])],
)
def test_a_condition(condition, mutants):
    source = "if {}:\n    import a\n"
    assert texts(source.format(condition)) == [source.format(mutant) for mutant in mutants]


@pytest.mark.parametrize("end", ["break", "continue"])
def test_the_end_of_a_turn_of_a_loop(end):
    source = "for x in a:\n    {}\n"
    assert texts(source.format(end)) == [source.format("pass")]


@pytest.mark.parametrize(
    ("body", "mutants"),
    [
        ("x = a", ["pass"]),
        ("x = a\n    y = b", ["pass"]),
        ("pass", []),
        ("raise", ["pass"]),
        ("logger.info(a)", []),
        ("logger.info(a)\n    x = b", ["pass"]),
    ],
)
def test_an_error_that_is_passed_over(body, mutants):
    source = "try:\n    x = a\nexcept E:\n    {}\n"
    assert texts(source.format(body)) == [source.format(mutant) for mutant in mutants]


@pytest.mark.parametrize("returned", ["return", "return None", "return False"])
def test_a_handler_that_returns_nothing_at_the_end_of_a_function_may_as_well_pass(returned):
    source = f"def f():\n    try:\n        x = a\n    except E:\n        {returned}\n"
    behind = source + "    y = b\n"
    assert texts(behind)[0] == behind.replace(returned, "pass")
    assert [text for text in texts(source) if "pass" in text] == []


def test_defaults_count_and_annotations_decorators_and_overloads_do_not():
    source = (
        "@decorated(7)\n"
        "async def f(a: Literal[7] = {}, *, b: int | None = None) -> Literal[7]:\n"
        "    pass\n"
        "@overload\n"
        "def g(a: int = 7): ...\n"
    )
    assert texts(source.format("1")) == [source.format("(1 + 1)")]


def test_a_mutant_says_where_it_is():
    source = (
        'TEXT = "ä"; LIMIT = 3\nclass A:\n    def b(self):\n        self.c.d(\n            self\n        )\n'
    )
    first, second = mutants_of("tubemq_spark/client/master/a.py", source.encode())
    assert (first.line, first.function, first.package) == (1, "", "client")
    assert first.applied(source.encode()).decode() == source.replace("3", "(3 + 1)"), "places are of bytes"
    assert second.key == (second.path, "A.b", "self.c.d(\n            self\n        )", "pass")
    assert str(second) == "tubemq_spark/client/master/a.py:4 A.b: self.c.d( self ) -> pass"
    assert Mutant("tubemq_spark/errors.py", 1, "", 0, 1, "1", "2").package == ""


SEVERAL = [
    Mutant(path, line, "f", number, number + 1, "a", str(number))
    for path in ("b.py", "a.py")
    for line in range(1, 21)
    for number in range(3)
]


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_has_a_mutant_a_line_and_is_the_same_for_the_same_seed(seed):
    chosen = sample(SEVERAL, 10, seed)
    places = [(mutant.path, mutant.line) for mutant in chosen]
    assert len(places) == len(set(places)) == 10
    assert places == sorted(places)
    assert set(chosen) <= set(SEVERAL)
    assert sample(SEVERAL, 10, seed) == chosen
    assert sample(SEVERAL, 10, seed + 1) != chosen


@pytest.mark.parametrize("count", [None, 1_000])
def test_a_sample_of_everything_has_all_lines(count):
    chosen = sample(SEVERAL, count, 1)
    assert len({(mutant.path, mutant.line) for mutant in chosen}) == len(chosen) == 40
    assert {mutant.after for mutant in chosen} == {"0", "1", "2"}
