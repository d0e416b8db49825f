"""The command: choose mutants, run their tests, and print what survived."""

import argparse
import collections
import csv
import functools
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testkit.git import ROOT, git
from tools.mutants import contexts, parity
from tools.mutants.contexts import Touched
from tools.mutants.mutations import Mutant, mutants_of, sample
from tools.mutants.running import START_S, Copy, Outcome, Run, each_on_a_copy

_EQUIVALENT: Final = Path(__file__).with_name("equivalent.csv")
"""Mutants that change nothing that anybody could see, each with its reason."""
_RESULTS: Final = contexts.FOLDER / "results.jsonl"
_FLOORS: Final = {"offsets": 95, "source": 95, "sink": 95}
_FLOOR: Final = 92
"""The share of mutants that are to be killed, in percent; by package, and of the others."""
_STAGES: Final = (2, 8)
"""Behind how many files of tests another process begins: most mutants need the nearest ones alone."""
_ALL_S: Final = 90.0
"""How many seconds of tests a mutant is given at most, as they took when the contexts were collected."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 when a package is below its floor, or the tests of a row of parity.csv notice nothing."""
    options = _parser().parse_args(arguments)
    if options.rows is not None:
        return parity.main(options.rows, options.sample, options.seed, options.processes)
    mutants = _chosen(options)
    if not mutants:
        sys.exit("no mutant is like that: nothing was broken")
    if options.collect or not contexts.are_there():
        contexts.collect(options.processes + 2)
    print(f"{len(mutants)} mutants, seed {options.seed}", flush=True)
    return _report(_run(mutants, options.processes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules and folders; by default the whole package")
    parser.add_argument(
        "--changed", nargs="?", const="main", metavar="COMMIT", help="only lines changed since"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many lines, chosen by the seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--match", metavar="REGEX", help="only mutants whose line in the output matches")
    parser.add_argument("--survivors", action="store_true", help="those that survived last time")
    parser.add_argument(
        "--rows", nargs="*", metavar="ID", help="break what rows of docs/project/parity.csv name"
    )
    parser.add_argument("--collect", action="store_true", help="first find out which tests touch which lines")
    parser.add_argument("--processes", type=int, default=2)
    return parser


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    equivalent = _equivalent()
    mutants = [
        mutant
        for path in _modules(options.paths or ["tubemq_spark"])
        for mutant in mutants_of(path, (ROOT / path).read_bytes())
        if mutant.key not in equivalent
    ]
    if options.survivors:
        survived = _survivors()
        return [mutant for mutant in mutants if mutant.key in survived]
    if options.changed is not None:
        changed = _changed_lines(options.changed)
        mutants = [mutant for mutant in mutants if mutant.line in changed.get(mutant.path, ())]
    if options.match is not None:
        return [mutant for mutant in mutants if re.search(options.match, str(mutant))]
    return sample(mutants, options.sample, options.seed)


def _modules(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        place = ROOT / path
        if not place.exists():
            sys.exit(f"there is no {path}")
        for module in [place] if place.is_file() else sorted(place.rglob("*.py")):
            # No unit test knows the code that protoc writes, nor the examples, which make wheel-test runs.
            if not module.name.endswith("_pb2.py") and module.parent.name != "examples":
                yield module.relative_to(ROOT).as_posix()


def _equivalent() -> frozenset[tuple[str, ...]]:
    with _EQUIVALENT.open(newline="", encoding="utf-8") as file:
        return frozenset(tuple(row[:4]) for row in csv.reader(file))


def _survivors() -> set[tuple[str, ...]]:
    last: dict[tuple[str, ...], str] = {}
    if not _RESULTS.exists():
        return set()
    for line in _RESULTS.read_text().splitlines():
        result = json.loads(line)
        last[tuple(result["key"])] = result["outcome"]
    return {key for key, outcome in last.items() if outcome in {"SURVIVED", "UNTOUCHED"}}


def _changed_lines(commit: str) -> dict[str, set[int]]:
    """Return the lines that are not as they were at the last commit in common with this one."""
    base = git("merge-base", "HEAD", commit)
    if not base:
        sys.exit(f"there is no commit {commit}")
    new = git("ls-files", "--others", "--exclude-standard", "--", "tubemq_spark")
    lines = {path: set(range(1, (ROOT / path).read_bytes().count(b"\n") + 2)) for path in new}
    path = ""
    for line in git("diff", "--unified=0", "--no-color", base[0], "--", "tubemq_spark"):
        if line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/")
        elif (hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)) is not None:
            start = int(hunk[1])
            lines.setdefault(path, set()).update(range(start, start + int(hunk[2] or 1)))
    return lines


def _run(mutants: Sequence[Mutant], processes: int) -> list[tuple[Mutant, Run]]:
    """Run the tests of each mutant; print a line for each when it has ended."""
    touched = Touched()
    runs = []
    for mutant, run in each_on_a_copy(mutants, functools.partial(_judge, touched), processes):
        runs.append((mutant, run))
        place = f"[{len(runs):4}/{len(mutants)}]"
        print(f"{place} {run.outcome.value:9} {run.seconds:5.1f} s {mutant}", flush=True)
        _keep(mutant, run)
    return sorted(runs, key=lambda judged: (judged[0].path, judged[0].start))


def _keep(mutant: Mutant, run: Run) -> None:
    with _RESULTS.open("a") as file:
        result = {"key": mutant.key, "outcome": run.outcome.value, "test": run.test, "seconds": run.seconds}
        file.write(json.dumps(result) + "\n")


def _judge(touched: Touched, copy: Copy, mutant: Mutant) -> Run:
    """Run the tests that touch a mutant, nearest first, until one fails."""
    source = mutant.applied((ROOT / mutant.path).read_bytes())
    started = time.monotonic()
    last = Run(Outcome.UNTOUCHED, "", 0.0)
    for tests, seconds in _stages(mutant, touched):
        last = copy.run(mutant.path, source, tests, START_S + 5 * seconds)
        if last.noticed:
            break
    return Run(last.outcome, last.test, time.monotonic() - started)


def _stages(mutant: Mutant, touched: Touched) -> Iterator[tuple[list[str], float]]:
    """Yield the tests of each process, and how many seconds they should take."""
    lines = range(mutant.line, mutant.line + mutant.before.count("\n") + 1)
    files = touched.of_lines(mutant.path, lines)
    if own := contexts.changed_tests(mutant.path) if files else contexts.own_tests(mutant.path):
        yield own, _ALL_S
    left_s = _ALL_S
    for first, last in itertools.pairwise((0, *_STAGES, len(files))):
        stage: list[str] = []
        stage_s = 0.0
        for test in itertools.chain(*files[first:last]):
            seconds = touched.seconds.get(test, 1.0)
            if seconds <= left_s or left_s == _ALL_S:
                stage.append(test)
                stage_s, left_s = stage_s + seconds, left_s - seconds
        if stage:
            yield stage, stage_s
    if commands := contexts.command_tests(mutant.path):
        yield commands, _ALL_S


def _report(runs: Sequence[tuple[Mutant, Run]]) -> int:
    """Print the survivors, and the share of each package that was killed."""
    counts: dict[str, collections.Counter[Outcome]] = collections.defaultdict(collections.Counter)
    print("\nSurvivors:")
    for mutant, run in runs:
        counts[mutant.package or "(top)"][run.outcome] += 1
        if not run.noticed:
            print(f"  {mutant}{' (no test touches it)' if run.outcome is Outcome.UNTOUCHED else ''}")
    print(f"\n{'package':12} {'mutants':>8} {'killed':>8} {'timed out':>10} {'survived':>9}   killed")
    is_low = False
    for package, count in sorted(counts.items()):
        survived = count[Outcome.SURVIVED] + count[Outcome.UNTOUCHED]
        killed = count.total() - survived
        share, floor = 100 * killed / count.total(), _FLOORS.get(package, _FLOOR)
        is_low = is_low or share < floor
        below = f", below {floor}" if share < floor else ""
        print(
            f"{package:12} {count.total():8} {killed:8} {count[Outcome.TIMED_OUT]:10} {survived:9}"
            f"  {share:5.1f} %{below}"
        )
    return int(is_low)
