"""Tests by their node ids, looked up without importing a file."""

import ast
import functools
from collections.abc import Sequence
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a test file, without importing it."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def node_exists(node_id: str, root: Path) -> bool:
    """Tell whether `path::[Class::]name` names a test function; a `[param]` is ignored."""
    path, *names = node_id.partition("[")[0].split("::")
    file = root / path
    if not names or file.suffix != ".py" or not file.is_file():
        return False
    body: Sequence[ast.stmt] = parse(file).body
    *classes, test = names
    for name in classes:
        classes_of_name = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
        if not classes_of_name:
            return False
        body = classes_of_name[-1].body
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = [node.name for node in body if isinstance(node, kinds)]
    return test.startswith("test") and test in functions
