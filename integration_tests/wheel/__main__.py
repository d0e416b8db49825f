"""Try the distributions as a new user would: ``python -m integration_tests.wheel``, or ``--short``.

Everything is built, installed into fresh environments and run from another directory, without activating
anything: README's blocks, the examples, a stand-alone cluster whose executors have the package, one that
gets it by ``--py-files``, and Spark Connect.
"""

import argparse
import contextlib
import importlib.util
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from integration_tests.wheel import readme
from integration_tests.wheel.environment import Environment, FailedError, run, write_spark_settings
from integration_tests.wheel.examples import run_examples
from integration_tests.wheel.servers import spark_cluster, tubemq
from testkit.compiler import can_compile
from tools.build_dist import build

# The floors are those of setup.cfg.
LOWEST: Final = ("protobuf==5.29.5", "pyarrow==18.0.0", "numpy==2.0.0", "rich==13.0.0", "shtab==1.7.0")
SPARK_42: Final = "pyspark==4.2.0"
SPARK_43: Final = "pyspark>=4.3,<4.4"
WHEEL: Final = "*-cp311-abi3-*.whl"
"""One wheel for each platform: the compiled module works with every Python from 3.11 on."""
_SHOWN: Final = ("pyspark", "protobuf", "pyarrow", "numpy")


class Trial:
    """One run: its directory, its distributions, and what has been tried."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.dist = directory / "dist"
        self._began = time.monotonic()
        self._settings = write_spark_settings(directory)
        self._jobs = 0

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Say what is done, and how long it took."""
        began = time.monotonic()
        print(f"{began - self._began:6.0f} s  {text} ...", flush=True)
        yield
        print(f"{'':10}done in {time.monotonic() - began:.0f} s", flush=True)

    def distribution(self, pattern: str) -> Path:
        """Return the one distribution whose name fits."""
        (found,) = self.dist.glob(pattern)
        return found

    def environment(self, name: str, *requirements: str | Path) -> Environment:
        """Make an environment and say what is in it."""
        with self.step(f"install the environment {name}"):
            made = Environment.create(self.directory / name, *requirements)
        print(f"{'':10}{made.versions(*_SHOWN)}", flush=True)
        return made

    def readme(self, how: str, command: list[str | Path], **variables: str) -> None:
        """Run README's blocks on a new TubeMQ server; ``command`` is what precedes the program's name."""
        self._jobs += 1
        place = self.directory / f"job{self._jobs}"
        place.mkdir()
        with self.step(f"README's blocks {how}"), tubemq(self._server, place) as master:
            job = place / "job.py"
            job.write_text(readme.program(master, place / "checkpoint"))
            shown = run([*command, job], directory=place, variables=self._settings | variables)
        if readme.DONE not in shown:
            raise FailedError(f"README's program ended early:\n{shown}")

    def examples(self, environment: Environment) -> None:
        """Run the examples of an environment."""
        place = self.directory / f"examples-{environment.path.name}"
        place.mkdir()
        with self.step(f"the examples in the environment {environment.path.name}"):
            run_examples(environment, place, self._settings)

    def serve_from(self, environment: Environment) -> None:
        """Take the TubeMQ server of later jobs from an environment that has the package."""
        self._server = environment


def main(arguments: list[str] | None = None) -> int:
    """Run the trial; return 0 when all went well."""
    parser = argparse.ArgumentParser(prog="wheel-test", description=__doc__)
    parser.add_argument(
        "--short",
        action="store_true",
        help="only README's blocks and the examples, in the oldest environment that is allowed",
    )
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="wheel-test-") as directory:
        trial = Trial(Path(directory))
        try:
            (_short if parsed.short else _whole)(trial)
        except FailedError as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    return 0


def _short(trial: Trial) -> None:
    _build(trial)
    # Other tests have everything new.
    lowest = trial.environment("lowest", SPARK_42, *LOWEST, trial.distribution(WHEEL))
    _check_compiled(lowest, trial.directory)
    trial.serve_from(lowest)
    trial.readme("on one machine, everything as old as allowed", [lowest.python])
    trial.examples(lowest)


def _whole(trial: Trial) -> None:
    _build(trial)
    lowest = trial.environment("lowest", SPARK_42, *LOWEST, trial.distribution("*.tar.gz"))
    _check_compiled(lowest, trial.directory)
    trial.serve_from(lowest)
    trial.readme("on one machine, everything as old as allowed", [lowest.python])
    # The package itself comes later into this one: executors that get it by --py-files must not have it.
    newest = trial.environment("newest", SPARK_43, "protobuf", "pyarrow", "numpy", "rich", "shtab", "tzdata")
    _py_files(trial, newest)
    with trial.step("install the wheel and Spark Connect"):
        newest.install(trial.distribution(WHEEL), SPARK_43.replace("pyspark", "pyspark[connect]"))
    trial.serve_from(newest)
    trial.readme("on one machine, everything new", [newest.python])
    trial.examples(newest)
    _cluster(trial, newest)
    trial.readme("through Spark Connect", [newest.python], SPARK_REMOTE="local")
    old_spark = trial.environment("spark42", "pyspark>=4.2,<4.3", trial.distribution(WHEEL))
    trial.readme("on one machine, PySpark 4.2 with everything else new", [old_spark.python])


def _build(trial: Trial) -> None:
    with trial.step("build sdist, wheel and zip"):
        build(trial.dist)
    _check_description(trial.distribution(WHEEL))


def _check_description(wheel: Path) -> None:
    """The package index shows it, where links to files of the repository are dead."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode()
    dead = re.findall(r"\]\((?!\w+:)[^)]*\)", description)
    if dead or "docs/reference/options.md" not in description:
        raise FailedError(f"links to files, or no description: {dead}")


def _check_compiled(environment: Environment, directory: Path) -> None:
    shown = run([environment.python, "-m", "tubemq_spark", "--version"], directory=directory)
    if can_compile() and "(compiled)" not in shown:
        raise FailedError(f"the package has no compiled module: {shown}")


def _cluster(trial: Trial, environment: Environment) -> None:
    with spark_cluster(environment, trial.directory, workers=2) as cluster:
        command = [environment.spark_home / "bin" / "spark-submit", "--master", cluster.url]
        trial.readme(
            "on a cluster of two workers that have the package",
            command,
            PYSPARK_PYTHON=str(environment.python),
        )


def _py_files(trial: Trial, environment: Environment) -> None:
    zipped = trial.distribution("*.zip")
    with spark_cluster(environment, trial.directory, workers=2) as cluster:
        command = [
            environment.spark_home / "bin" / "spark-submit",
            "--master",
            cluster.url,
            "--py-files",
            zipped,
        ]
        trial.readme(
            "on a cluster of two workers that get the package by --py-files",
            command,
            PYSPARK_PYTHON=str(environment.python),
            PYTHONPATH=str(zipped),
        )


if __name__ == "__main__":
    if importlib.util.find_spec("build") is None:
        sys.exit("the package build is missing: make venv")
    sys.exit(main())
