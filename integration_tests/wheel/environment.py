"""Fresh environments, and programs that run in them as users start them."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# What could lead Spark or Python to another installation than the one that is tried.
_LEADS_ASTRAY: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "PYTHONPATH", "VIRTUAL_ENV")


# What makes Spark small and quick, and is none of README's business.
_SPARK_SETTINGS: Final = """\
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1
spark.sql.shuffle.partitions 2
spark.python.unix.domain.socket.enabled true
spark.python.authenticate.socketTimeout 2m
"""


class FailedError(Exception):
    """A program failed; the text has its output."""


class Environment:
    """A virtual environment that is not activated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = path / "bin" / "python"

    @classmethod
    def create(cls, path: Path, *requirements: str | Path) -> "Environment":
        """Make a new one and install into it."""
        run([sys.executable, "-m", "venv", path])
        made = cls(path)
        made.install(*requirements)
        return made

    def install(self, *requirements: str | Path) -> None:
        """Install with pip, which would also compile what nothing imports."""
        quickly = ("--quiet", "--no-compile", "--disable-pip-version-check")
        run([self.python, "-m", "pip", "install", *quickly, *requirements])

    def versions(self, *names: str) -> str:
        """Return which versions of some packages are installed, for the screen."""
        code = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
        return run([self.python, "-c", code, *names]).strip()

    @property
    def spark_home(self) -> Path:
        """Where this environment's PySpark has its scripts."""
        return Path(run([self.python, "-c", "import pyspark; print(pyspark.__path__[0])"]).strip())


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's variables without those that lead astray, and with others."""
    kept = {name: value for name, value in os.environ.items() if name not in _LEADS_ASTRAY}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | dict(extra or {})


def write_spark_settings(directory: Path) -> dict[str, str]:
    """Write the settings of Spark below a directory; return the variable that leads to them."""
    place = directory / "conf"
    place.mkdir()
    (place / "spark-defaults.conf").write_text(_SPARK_SETTINGS)
    return {"SPARK_CONF_DIR": str(place)}


def run(
    command: Sequence[str | Path],
    *,
    directory: Path | None = None,
    variables: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> str:
    """Run a program and return what it printed."""
    shown = " ".join(str(part) for part in command)
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=directory,
            env=clean_environment(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{shown}\ndid not end within {timeout} s:\n{error.output}") from error
    if done.returncode:
        raise FailedError(f"{shown}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout
