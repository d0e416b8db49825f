"""The examples as a user gets them: copied by the installed command, run with what is installed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from integration_tests.rig.examples import WITH_SPARK, WITHOUT_SPARK, lines
from integration_tests.wheel.environment import Environment, FailedError, run

# One session serves all of them, which saves the start of a JVM for each.
_PROGRAM: Final = """\
import runpy, sys
for name in sys.argv[1:]:
    print("==", name)
    sys.argv = [name]
    runpy.run_path(f"{name}.py", run_name="__main__")
"""
_LINES: Final = {name: lines(text) for name, text in (WITH_SPARK | WITHOUT_SPARK).items()} | {
    "tail": ["cart", "home", "prices"]
}


def run_examples(environment: Environment, directory: Path, variables: Mapping[str, str]) -> None:
    """Copy all examples and run them, one after the other."""
    copies = directory / "examples"
    run([environment.path / "bin" / "tubemq-spark", "examples", "copy", copies], directory=directory)
    shown = run([environment.python, "-c", _PROGRAM, *_LINES], directory=copies, variables=variables)
    for name, output in zip(_LINES, shown.split("== ")[1:], strict=True):
        # Spark's warnings are between the lines.
        printed = [line for line in lines(output) if line in _LINES[name] or line.startswith("clicks/")]
        if name == "tail":  # partitions are by chance, and so is their order
            printed = sorted(line.split(" ")[1] for line in printed)
        if printed != _LINES[name]:
            raise FailedError(f"{name} printed:\n{output}")
