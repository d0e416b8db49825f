"""Which unit tests touch a line: from one run of all of them, with the test as coverage's context."""

import ast
import collections
import difflib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path, PurePosixPath
from typing import Final

import coverage

from testkit.git import ROOT

FOLDER: Final = ROOT / ".mutants"
_DATA: Final = FOLDER / "coverage"
_TIMES: Final = FOLDER / "seconds.json"
_SOURCES: Final = FOLDER / "sources"
"""The package and its tests as they were then: lines that have moved since are found again by comparing."""
_SETTINGS: Final = "[run]\nsource = tubemq_spark\nomit = *_pb2.py\nrelative_files = true\n"


def are_there() -> bool:
    """Return whether ``collect`` has run to its end."""
    return _TIMES.exists()


def collect(processes: int) -> None:
    """Run all unit tests, and keep which lines each of them touched and how long it took."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for folder in ("tubemq_spark", "tests"):
        shutil.copytree(ROOT / folder, _SOURCES / folder, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    settings = FOLDER / "coveragerc"
    settings.write_text(_SETTINGS)
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-n", str(processes), "-m", "not nightly"]
    command += ["-p", "tools.mutants.plugin", "-p", "no:cacheprovider", "--durations=0", "--no-header"]
    command += ["--cov", "--cov-report=", "--cov-context=test", f"--cov-config={settings}"]
    environ = {**os.environ, "COVERAGE_FILE": str(_DATA), "TUBEMQ_MUTANTS_TIMES": str(_TIMES)}
    subprocess.run(command, cwd=ROOT, env=environ, check=False)


class Touched:
    """The tests that touch the lines of the package; any thread may ask."""

    def __init__(self) -> None:
        """Read what ``collect`` has kept."""
        self.seconds: dict[str, float] = json.loads(_TIMES.read_text())
        """How long each test took."""
        self._data = coverage.CoverageData(str(_DATA))
        self._data.read()
        self._lock = threading.Lock()
        self._tests: dict[str, dict[int, frozenset[str]]] = {}
        """By module and line, as they were when the tests ran; of the modules that were asked for."""

    def _of_module(self, path: str) -> dict[int, frozenset[str]]:
        with self._lock:
            if path not in self._tests:
                self._tests[path] = {
                    line: frozenset(context.rpartition("|")[0] for context in contexts if context)
                    for line, contexts in self._data.contexts_by_lineno(path).items()
                }
            return self._tests[path]

    def of_lines(self, path: str, lines: range) -> list[list[str]]:
        """Return the tests that touch any of these lines of a module, as it is now, by files and in order.

        What is carried out when the module is imported concerns all tests that touch the module, and those
        whose file names what is defined there.
        """
        touched = self._of_module(path)
        before = _lines_before(path)
        tests = [touched[before[line]] for line in lines if before.get(line) in touched]
        source = (ROOT / path).read_text()
        # A test that was the first one to import a module seems to be the only one to touch its constants.
        if not tests or (any(tests) and is_in_function(source, lines[0])):
            return self._in_order(path, frozenset().union(*tests), frozenset())
        *outer, name = names_at(source, lines[0]) or [""]
        naming = self._of_files(name)
        return self._in_order(path, naming.union(*touched.values(), *map(self._of_files, outer)), naming)

    def _of_files(self, name: str) -> frozenset[str]:
        """Return the tests of the files that have a name in their text."""
        word = re.compile(rf"\b{name}\b")
        files = {test.partition("::")[0] for test in self.seconds} if name else set()
        files = {file for file in files if (ROOT / file).exists() and word.search((ROOT / file).read_text())}
        return frozenset(test for test in self.seconds if test.partition("::")[0] in files)

    def _in_order(self, path: str, tests: frozenset[str], best: frozenset[str]) -> list[list[str]]:
        """Return tests by files: a module's own file, the best ones, its folder's; quick tests first."""
        own = _mirror_of(path)
        folders = collections.Counter(own.parts[:-1])
        by_file: dict[PurePosixPath, list[str]] = {}
        for test in sorted(tests, key=lambda test: (self.seconds.get(test, 1.0), test)):
            by_file.setdefault(PurePosixPath(test.partition("::")[0]), []).append(test)

        def distance(file: PurePosixPath) -> tuple[bool, bool, int, int, PurePosixPath]:
            near = sum((collections.Counter(file.parts[:-1]) & folders).values())
            return file != own, best.isdisjoint(by_file[file]), -near, -len(by_file[file]), file

        return [by_file[file] for file in sorted(by_file, key=distance)]


def is_in_function(source: str, line: int) -> bool:
    """Return whether a line is carried out by calls."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body[0].lineno <= line <= (node.end_lineno or 0)
        for node in ast.walk(ast.parse(source))
    )


def names_at(source: str, line: int) -> list[str]:
    """Return the names of what a line outside of functions defines: of the classes around it, and its own."""
    names = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                pass
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case _:
                continue
        if node.lineno <= line <= (node.end_lineno or 0):
            names.append(name)
    return names


def command_tests(path: str) -> list[str]:
    """Return the tests of the command that runs a module's package in a process of its own."""
    package = PurePosixPath(path).parts[1]
    files = (ROOT / "tests" / "cli").glob(f"test_{package}_command.py")
    return [str(file.relative_to(ROOT)) for file in files]


def own_tests(path: str) -> list[str]:
    """Return the test files of a module: contexts do not tell what other processes touch.

    A module without a file of its own has those that begin with its name, or all of its folder.
    """
    own = _mirror_of(path)
    if (ROOT / own).exists():
        return [str(own)]
    folder = ROOT / own.parent
    found = [*folder.glob(f"{own.stem}*.py")] or [*folder.glob("test_*.py")]
    return [str(file.relative_to(ROOT)) for file in sorted(found)]


def changed_tests(path: str) -> list[str]:
    """Return those of a module's own test files that were changed since: what they touch now is not known."""
    return [test for test in own_tests(path) if _differs(ROOT / test, _SOURCES / test)]


def _differs(file: Path, other: Path) -> bool:
    return not other.exists() or file.read_bytes() != other.read_bytes()


def _mirror_of(path: str) -> PurePosixPath:
    module = PurePosixPath(path)
    return PurePosixPath("tests", *module.parts[1:-1], f"test_{module.name}")


@functools.cache
def _lines_before(path: str) -> dict[int, int]:
    """Return which line each line of a module was; a new one is the one before it."""
    old = _SOURCES / path
    now = (ROOT / path).read_text().splitlines()
    if not old.exists():
        return {}
    matcher = difflib.SequenceMatcher(None, old.read_text().splitlines(), now, autojunk=False)
    lines: dict[int, int] = {}
    for tag, old_start, old_end, start, end in matcher.get_opcodes():
        for line in range(start, end):
            offset = min(line - start, max(old_end - old_start - 1, 0))
            lines[line + 1] = (old_start + offset if tag != "insert" else old_start - 1) + 1
    return lines
