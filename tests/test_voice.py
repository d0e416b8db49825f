"""Names say what they hold, and docstrings what functions do: the rules of docs/project/words.md, counted."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = [path for path in (ROOT / "tubemq_spark").rglob("*.py") if not path.stem.endswith("_pb2")]
FOLDERS_BESIDE = ("tests", "testkit", "simulation", "integration_tests", "benchmarks", "fuzz", "tools")
MOST_VAGUE_NAMES = 0.005


def words_of(rule: str) -> set[str]:
    """Return the words in italics behind the place where the page says this."""
    page = (ROOT / "docs" / "project" / "words.md").read_text(encoding="utf-8")
    text = re.split(r"\n(?=- |\n)", page.partition(rule)[2])[0]
    return {word for words in re.findall(r"\*([\w, \n]+)\*", text) for word in re.split(r",\s*", words)}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    assert len(FILES) > 200
    for path in FILES:
        yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def bound_names(tree: ast.Module) -> Iterator[ast.Name | ast.arg]:
    """Yield each local, attribute of a class and parameter where it is bound."""
    for node in ast.walk(tree):
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)) or isinstance(node, ast.arg):
            yield node


def name_of(node: ast.Name | ast.arg) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name of each class and function with a docstring, and that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield node.name, text


def test_names_say_what_they_hold():
    vague = words_of("It does not say that something was")
    assert len(vague) >= 6
    names = [(path, node.lineno, name_of(node)) for path, tree in trees() for node in bound_names(tree)]
    offenders = [f"{path}:{line}: {name}" for path, line, name in names if name in vague]
    assert len(offenders) < MOST_VAGUE_NAMES * len(names), "\n".join(("say what it holds:", *offenders))


def test_docstrings_say_what_functions_do_and_not_what_is_not_there():
    openings = words_of("begin with")
    assert len(openings) >= 5
    offenders = [
        f"{path}: {name}: {text.splitlines()[0]}"
        for path, tree in trees()
        for name, text in docstrings(tree)
        if text.split(maxsplit=1)[0] in openings or (name == "__init__" and re.search(r"\byet\b", text))
    ]
    assert offenders == [], "say what a function does, from its first word on; see docs/project/words.md"


def test_docstrings_beside_the_package_say_what_functions_do():
    opening = re.compile(rf'"""((?:{"|".join(words_of("begin with"))}) .*)')
    offenders = [
        f"{path.relative_to(ROOT)}: {text}"
        for folder in FOLDERS_BESIDE
        for path in (ROOT / folder).rglob("*.py")
        for text in opening.findall(path.read_text(encoding="utf-8"))
    ]
    assert offenders == [], "say what a function does, from its first word on; see docs/project/words.md"


def test_no_word_that_few_native_writers_use_stands_in_the_package():
    words = words_of("not metaphors for them. Leave out")
    assert len(words) >= 7
    offenders = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in FILES
        for word in words.intersection(re.findall(r"\w+", path.read_text(encoding="utf-8").lower()))
    ]
    assert offenders == [], "use a usual word; see docs/project/words.md"
