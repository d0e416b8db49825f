"""Run scenarios in many universes: ``python -m simulation``, or ``make simulate``."""

import argparse
import collections
import csv
import logging
import math
import os
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_KEPT: Final = Path(__file__).parent / "kept.csv"
_OLDEST_PYTHON: Final = (3, 12)
"""What simloom needs."""


def main() -> int:
    """Run what the command line says; return 1 when a universe fails."""
    from simulation import universe
    from simulation.scenarios import COSTLY, SCENARIOS

    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("scenario", nargs="?", choices=[*SCENARIOS, "all", "kept"], default="all")
    parser.add_argument("--seed", type=int, help="only this universe, with what the package logs")
    parser.add_argument("--first", type=int, default=0, help="the first seed; 0")
    parser.add_argument("--runs", type=int, default=300, help="universes of each scenario; 300")
    arguments = parser.parse_args()
    universe.spare_the_collector()
    if arguments.seed is not None:
        return int(not all(_passes(name, arguments.seed) for name in _named(arguments.scenario)))
    logging.disable()
    kept = all(_passes(name, seed) for name, seed in _kept())
    if arguments.scenario == "kept":
        return int(not kept)
    passed = [kept]
    for name in _named(arguments.scenario):
        share = COSTLY.get(name, 1) if arguments.scenario == "all" else 1
        seeds = range(arguments.first, arguments.first + math.ceil(arguments.runs / share))
        passed.append(_all_pass(name, seeds))
    return int(not all(passed))


def _named(scenario: str) -> list[str]:
    from simulation.scenarios import SCENARIOS

    return list(SCENARIOS) if scenario == "all" else [scenario]


def _kept() -> Iterable[tuple[str, int]]:
    with _KEPT.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["scenario"], int(row["seed"])


def _all_pass(scenario: str, seeds: range) -> bool:
    """Run a scenario in universes until one fails."""
    began = time.process_time()
    met: collections.Counter[str] = collections.Counter()
    if not all(_passes(scenario, seed, met) for seed in seeds):
        return False
    each_ms = (time.process_time() - began) / max(1, len(seeds)) * 1000
    print(f"{scenario}: {len(seeds)} universes passed, {each_ms:.0f} ms of CPU each, which met")
    print("   ", ", ".join(f"{count} {name}" for name, count in met.most_common()), flush=True)
    return True


def _passes(scenario: str, seed: int, met: "collections.Counter[str] | None" = None) -> bool:
    from simulation import universe

    result = universe.run(scenario, seed)
    if met is not None:
        met.update(result.coverage)
    if result.error is None:
        return True
    traceback.print_exception(result.error)
    print(f"{scenario}: universe {seed} fails: make simulate SCENARIO={scenario} SEED={seed}", flush=True)
    return False


if __name__ == "__main__":
    if sys.version_info < _OLDEST_PYTHON:
        print("simulate was left out: simloom needs Python 3.12: make simulate PYTHON=python3.12")
        sys.exit(os.environ.get("TUBEMQ_SIMULATION") == "required")
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of texts belongs to a universe too.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
