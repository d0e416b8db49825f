"""Break what a row of ``docs/project/parity.csv`` names, and see whether its tests notice.

The column ``where`` names functions (``client/urls.py::parse``, ``net/connections.py::Connections.close``)
and values of modules (``errors.py::CONDITIONS``). A function is broken by doing nothing and returning what
says nothing; a value by another one. A file without a name is emptied.
"""

import ast
import csv
import dataclasses
import functools
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testkit.git import ROOT
from tools.mutants.running import Copy, each_on_a_copy

_PATIENCE_S: Final = 240.0
_EMPTY: Final = {"None": "None", "int": "0", "float": "0.0", "str": "''", "bytes": "b''"}


@dataclasses.dataclass(frozen=True, slots=True)
class Break:
    """A file whose text leaves a capability out."""

    place: str
    """As the row names it."""
    path: str
    source: bytes
    how: str


def can_be_broken(place: str, root: Path) -> bool:
    """Return whether there is what a place names."""
    try:
        return bool(list(breaks_of(place, root)))
    except LookupError:
        return False


def breaks_of(place: str, root: Path = ROOT) -> Iterator[Break]:
    """Yield the ways to take out what a place names; two for what returns a truth value."""
    name, _, target = place.partition("::")
    path = next((path for path in (f"tubemq_spark/{name}", name) if (root / path).is_file()), None)
    if path is None:
        raise LookupError(place)
    source = (root / path).read_bytes()
    if not target:
        yield Break(place, path, b"", "emptied")
        return
    node = _find(_parsed(source), target.split("."))
    if node is None:
        raise LookupError(place)
    lines = source.decode().splitlines(keepends=True)
    for text in _replacements(node):
        first = node.body[0] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else node
        indent = " " * first.col_offset
        changed = [*lines[: first.lineno - 1], f"{indent}{text}\n", *lines[node.end_lineno or 0 :]]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and first.lineno == node.lineno:
            head = lines[first.lineno - 1][: first.col_offset]
            changed[first.lineno - 1] = f"{head}{text}\n"
        yield Break(place, path, "".join(changed).encode(), text)


@functools.cache
def _parsed(source: bytes) -> ast.Module:
    return ast.parse(source)


def _find(tree: ast.AST, names: Sequence[str]) -> ast.stmt | None:
    """Return the function or the assignment of a qualified name."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.ClassDef() if node.name == names[0] and len(names) > 1:
                return _find(node, names[1:])
            case ast.FunctionDef() | ast.AsyncFunctionDef() if [node.name] == list(names):
                if not any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
                    return node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if [name] == list(names) and node.value is not None:
                    return node
    return None


def _replacements(node: ast.stmt) -> list[str]:
    """Return the lines that take the place of a function's body, or of an assignment."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if any(map(_yields, node.body)):
            return ["return None; yield"] if isinstance(node, ast.FunctionDef) else ["return; yield"]
        returns = "None" if node.returns is None else ast.unparse(node.returns)
        if returns == "bool":
            return ["return True", "return False"]
        return [f"return {_EMPTY.get(returns, 'None')}"]
    assert isinstance(node, ast.Assign | ast.AnnAssign)
    assert node.value is not None
    head = ast.unparse(node)[: -len(ast.unparse(node.value))]
    return [head + _other(node.value)]


def _yields(node: ast.AST) -> bool:
    """Return whether a part of a function makes it a generator, which a function inside of it does not."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return isinstance(node, ast.Yield | ast.YieldFrom) or any(map(_yields, ast.iter_child_nodes(node)))


def _other(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=bool(truth)):
            return str(not truth)
        case ast.Constant(value=int() | float()):
            return f"{ast.unparse(value)} + 1"
        case ast.Dict():
            return "{}"
        case ast.List() | ast.Tuple():
            return "()"
    return "None"


def main(ids: Sequence[str], count: int | None, seed: int, processes: int) -> int:
    """Break the rows of these ids, or a sample, or all; print those whose tests notice nothing."""
    with (ROOT / "docs" / "project" / "parity.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "done"]
    if unknown := set(ids).difference(row["id"] for row in rows):
        sys.exit(f"no rows that are done: {' '.join(sorted(unknown))}")
    if ids:
        rows = [row for row in rows if row["id"] in ids]
    if count is not None:
        rows = random.Random(seed).sample(rows, min(count, len(rows)))
    quiet = []
    for row, unnoticed in each_on_a_copy(rows, _unnoticed, processes):
        print(f"{row['id']:6} {'; '.join(unnoticed) or 'noticed'}", flush=True)
        quiet += [row["id"]] * bool(unnoticed)
    print(f"\n{len(rows)} rows, seed {seed}: the tests of {len(quiet)} noticed nothing: {' '.join(quiet)}")
    return int(bool(quiet))


def _unnoticed(copy: Copy, row: dict[str, str]) -> list[str]:
    tests = [test for test in row["tests"].split() if test.startswith("tests/")]
    if not tests:
        return ["has no unit test"]
    return [
        f"{place} ({change.how}) was not noticed"
        for place in row["where"].split()
        for change in breaks_of(place)
        if not copy.run(change.path, change.source, tests, _PATIENCE_S).noticed
    ]
