"""The small changes that a test should notice.

A *mutant* is a module in which one expression or statement was replaced. What a test cannot be expected to
notice is left alone: annotations, docstrings, log lines and the texts of errors.
"""

import ast
import dataclasses
import random
from collections.abc import Iterable
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
}
_QUIET: Final = frozenset({"logger", "warnings"})
"""Objects whose calls only tell something."""
_NOTHING: Final = frozenset({"return", "return None", "return False"})
"""What a function does at its end, too, if it is left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    path: str
    """Of the module, relative to the checkout."""
    line: int
    """The first line of what is replaced, from 1."""
    function: str
    """The qualified name of the function around it; empty in the body of the module."""
    start: int
    """The first byte that is replaced."""
    end: int
    """The byte behind the last one."""
    before: str
    after: str

    @property
    def package(self) -> str:
        """The folder below ``tubemq_spark``; empty for the modules at its top."""
        return "/".join(self.path.split("/")[1:-1][:1])

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it while lines around it move."""
        return self.path, self.function, self.before, self.after

    def applied(self, source: bytes) -> bytes:
        """Return the text of the module with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        """Return its place and the change, in one line."""
        before = " ".join(self.before.split())
        after = " ".join(self.after.split())
        return f"{self.path}:{self.line} {self.function}: {before} -> {after}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a module, in the order of their places."""
    walk = _Walk(path, source)
    walk.visit(ast.parse(source))
    return sorted(walk.mutants, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def sample(mutants: Iterable[Mutant], count: int | None, seed: int) -> list[Mutant]:
    """Return one mutant for each of so many lines, all chosen by the seed; None: for each line."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        by_line.setdefault((mutant.path, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    lines = sorted(by_line)
    if count is not None:
        lines = sorted(chance.sample(lines, min(count, len(lines))))
    return [chance.choice(by_line[line]) for line in lines]


class _Walk(ast.NodeVisitor):
    """Collects the mutants of one module."""

    def __init__(self, path: str, source: bytes) -> None:
        self.mutants: list[Mutant] = []
        self._path = path
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._names: list[str] = []
        self._returns_bool = False
        self._last: set[ast.ExceptHandler] = set()
        """Handlers with nothing behind them in their functions."""

    # What is left alone.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over: the places inside are not those in the file before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value alone."""
        if node.value is not None:
            self._removal_of_assignment(node, [node.target])
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        """Negate a condition, unless it is for type checkers."""
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.UnaryOp | ast.Compare):  # which are negated already
            self._replace(node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    # Scopes.

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body."""
        self._visit_body(node.name, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit the defaults of parameters and the body."""
        if any("overload" in ast.unparse(decorator) for decorator in node.decorator_list):
            return
        self._names.append(node.name)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._names.pop()
        if isinstance(node.body[-1], ast.Try):
            self._last.update(node.body[-1].handlers)
        outer, self._returns_bool = self._returns_bool, _is_bool(node.returns)
        self._visit_body(node.name, node.body)
        self._returns_bool = outer

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Visit the defaults of parameters and the body."""
        self.visit_FunctionDef(node)

    def _visit_body(self, name: str, body: list[ast.stmt]) -> None:
        self._names.append(name)
        for statement in body:
            self.visit(statement)
        self._names.pop()

    # Statements.

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a call."""
        value = node.value
        if isinstance(value, ast.Constant):
            return  # a docstring, or the body of a protocol's method
        if isinstance(value, ast.Call):
            if _only_tells(node):
                return
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remove an assignment to an attribute or an item."""
        self._removal_of_assignment(node, node.targets)
        self.visit(node.value)

    def _removal_of_assignment(self, node: ast.stmt, targets: list[ast.expr]) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._replace(node, "pass")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Remove a change of a variable."""
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Remove it, unless it cannot be reached; what the error says is its own matter."""
        if node.exc is not None and ast.unparse(node.exc) == "AssertionError":
            return  # for the type checker, behind a loop without end
        self._replace(node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        """Remove it."""
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        """Remove it."""
        self._replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        """Remove it."""
        self._replace(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        """Return nothing, or the opposite."""
        value = node.value
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            return
        if not self._returns_bool:
            self._replace(value, "None")
        elif not isinstance(value, ast.Constant | ast.UnaryOp | ast.Compare):
            self._replace(value, f"not ({ast.unparse(value)})")
        self.visit(value)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """Pass over an error."""
        first, last = node.body[0], node.body[-1]
        if not isinstance(first, ast.Pass | ast.Raise) and not (
            (node in self._last and ast.unparse(first) in _NOTHING) or all(map(_only_tells, node.body))
        ):
            self._replace_span(first, last, "pass")
        self.generic_visit(node)

    # Expressions.

    def visit_Compare(self, node: ast.Compare) -> None:
        """Move a border, or turn a comparison round."""
        changed = ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        self._replace(node, f"({ast.unparse(changed)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Swap ``and`` and ``or``."""
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._replace(node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Drop a ``not``."""
        if isinstance(node.op, ast.Not):
            self._replace(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Change what is computed."""
        other = _ARITHMETIC.get(type(node.op))
        texts = (node.left, node.right)
        if other is not None and not any(isinstance(text, ast.JoinedStr) or _is_text(text) for text in texts):
            self._replace(node, f"({ast.unparse(ast.BinOp(node.left, other(), node.right))})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Take the other value."""
        self._replace(node, f"({ast.unparse(ast.IfExp(node.test, node.orelse, node.body))})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Turn a truth value round; make a number larger by one."""
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, f"({ast.unparse(node)} + 1)")

    def visit_keyword(self, node: ast.keyword) -> None:
        """Pass over ``strict``: it only checks what the code takes for granted, that lengths are equal."""
        if node.arg != "strict":
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap the first two arguments, unless their order makes no difference."""
        match node.args:
            case _ if isinstance(node.func, ast.Name) and node.func.id in {"max", "min"}:
                pass
            case [ast.Starred(), *_] | [_, ast.Starred(), *_]:
                pass
            case [first, second, *rest] if not isinstance(first, ast.Constant):
                call = ast.Call(node.func, [second, first, *rest], node.keywords)
                if not _is_symmetric(node.func) and ast.unparse(first) != ast.unparse(second):
                    self._replace(node, ast.unparse(call))
        self.generic_visit(node)

    def _replace(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._replace_span(node, node, after)

    def _replace_span(self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt, after: str) -> None:
        start = self._line_starts[first.lineno - 1] + first.col_offset
        end = self._line_starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0)
        before = self._source[start:end].decode()
        self.mutants.append(
            Mutant(self._path, first.lineno, ".".join(self._names), start, end, before, after)
        )


def _is_bool(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "bool"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _is_symmetric(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in {"max", "min"}


def _only_tells(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and _root_of(node.value.func) in _QUIET
    )


def _root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
