"""The code of the pages in ``docs``, as programs at a test's own places."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from integration_tests.wheel.environment import write_spark_settings

DOCS: Final = Path(__file__).parents[2] / "docs"
MASTER: Final = "127.0.0.1:8715"
"""The one that pages name."""


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of code that a page has in a language, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def moved(text: str, places: Mapping[str, str]) -> str:
    """Return code with other places, each of which it must name."""
    for written, instead in places.items():
        assert written in text, f"{written} is not in:\n{text}"
        text = text.replace(written, instead)
    return text


def write_job(page: str, folder: Path, master: str, topic: str, *, rows_per_trigger: int) -> Path:
    """Write the one job of a page that reads ``clicks`` and keeps its files in ``/data/clicks``.

    It gets its jars by ``spark_variables``, and not from a repository.
    """
    (text,) = blocks(page)
    places = {MASTER: master, '"subscribe", "clicks"': f'"subscribe", "{topic}"', "/data/clicks": str(folder)}
    text = re.sub(r'\.config\("spark\.jars\.packages", "[^"]+"\)', "", moved(text, places))
    text, limits = re.subn(r'("maxOffsetsPerTrigger"), "\d+"', rf'\1, "{rows_per_trigger}"', text)
    assert limits == 1, text
    program = folder / "job.py"
    program.write_text(text, encoding="utf-8")
    return program


def spark_variables(folder: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that let Spark start quickly, with more settings, such as ``spark.jars``."""
    variables = write_spark_settings(folder)
    with (folder / "conf" / "spark-defaults.conf").open("a") as file:
        file.writelines(f"{name} {value}\n" for name, value in (settings or {}).items())
    # Without PYSPARK_PYTHON the workers are the first python3 on the PATH.
    return variables | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
