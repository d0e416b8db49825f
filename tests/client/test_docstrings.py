"""Every public name has a docstring that shows its use, or says where that is shown.

Shown is what stands in an indented block, between double backquotes behind *For example*, on a page that a
docstring names, or in the docstring of another public name that it refers to. Calls of methods may stand in
the docstring of their class.
"""

import ast
import inspect
import re
import textwrap

import pytest

import tubemq_spark
from testkit.git import ROOT
from tests.client.test_surface import exported
from tubemq_spark import arrow, functions, testing
from tubemq_spark.client import open_clients, parse_inlong
from tubemq_spark.testing.client import TopicClient

FIXTURES = [name for name, thing in vars(testing).items() if name.startswith("tubemq") and callable(thing)]
THINGS = {
    **exported(),
    "ArrowReader": arrow.ArrowReader,
    "TopicClient": TopicClient,
    "TopicFactory": testing.TopicFactory,
    "open_clients": open_clients,
    "parse_inlong": parse_inlong,
    **{name: getattr(functions, name) for name in functions.__all__},
    **{name: getattr(testing, name).__wrapped__ for name in FIXTURES},
}
VARIABLES = {
    "client": ("TubeMQClient",),
    "producer": ("Producer",),
    "consumer": ("GroupConsumer", "AssignedConsumer"),
    "master": ("MasterAdmin",),
    "broker": ("BrokerAdmin",),
}
"""What examples name their objects, with the classes of these; those for asyncio have the same methods."""
AWAIT_ANYWHERE = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def example_in(text):
    """Return the indented blocks of a docstring, without those of its sections."""
    text = re.split(r"^(?:Args|Raises|Returns|Yields):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return "\n".join(line for line in text.splitlines() if line.startswith("    "))


def shown_in(text, others=frozenset()):
    """Return all that a docstring shows, itself or elsewhere."""
    one_line = " ".join(text.split())
    yield example_in(text)
    yield from re.findall(r"[Ff]or example,? ``([^`]+)``", one_line)
    for page in re.findall(r"\bdocs/[\w/-]+\.md", text):
        yield (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"(?:[Ss]ee|as|from) ``(\w+)``", one_line):
        if name in THINGS and name not in others:
            yield from shown_in(inspect.getdoc(THINGS[name]), {*others, name})


def methods():
    """Yield the name of each class and of each public method that this package defines for it."""
    for name, thing in THINGS.items():
        for method in sorted(dir(thing)) if inspect.isclass(thing) else ():
            function = getattr(thing, method)
            is_ours = (getattr(function, "__module__", None) or "").startswith(tubemq_spark.__name__)
            if is_ours and inspect.isroutine(function) and not method.startswith("_"):
                yield name, method


@pytest.mark.parametrize("name", THINGS)
def test_a_public_name_shows_its_use(name):
    text = inspect.getdoc(THINGS[name])
    where = f"{text}\n{testing.__doc__}" if name in FIXTURES else text
    assert "".join(shown_in(where)), "show an example, or name a page or a public name that has one"
    compile(textwrap.dedent(example_in(text)), name, "exec", flags=AWAIT_ANYWHERE)


@pytest.mark.parametrize(("name", "method"), list(methods()))
def test_a_call_of_a_public_method_is_shown(name, method):
    text = inspect.getdoc(getattr(THINGS[name], method))
    assert text
    shown = "\n".join([*shown_in(text), *shown_in(inspect.getdoc(THINGS[name]))])
    assert re.search(rf"\b{method}\(", shown), f"call {method} in the example of {name}"


def fits(call, cls):
    """Whether a class has a method with the name and the arguments of a call."""
    arguments = {argument.arg: None for argument in call.keywords}
    try:
        inspect.signature(getattr(cls, call.func.attr)).bind(None, *call.args, **arguments)
    except (AttributeError, TypeError):
        return False
    return True


@pytest.mark.parametrize("name", exported())
def test_an_example_calls_only_what_there_is(name):
    example = textwrap.dedent(example_in(inspect.getdoc(THINGS[name])))
    for call in ast.walk(compile(example, name, "exec", flags=AWAIT_ANYWHERE)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            classes = VARIABLES.get(ast.unparse(call.func.value))
            if classes is not None:
                assert any(fits(call, THINGS[cls]) for cls in classes), ast.unparse(call)
