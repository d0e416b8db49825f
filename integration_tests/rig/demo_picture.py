"""Runs the demo and draws its screen at the end: ``python -m integration_tests.rig.demo_picture``."""

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

from tubemq_spark.cli import screen
from tubemq_spark.cli.main import main

PICTURE: Final = Path(__file__).parents[2] / "docs" / "demo.svg"
_COMMAND: Final = ("demo",)


class _Terminal(Console):
    """Wraps lines by itself, which otherwise a terminal does."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        super().print(*objects, **how)


def draw() -> None:
    """Run the demo and write the picture."""
    console = _Terminal(record=True, width=108, file=io.StringIO())
    console.print(f"$ tubemq-spark {' '.join(_COMMAND)}", style="bold", highlight=False)
    screen._standard_output = lambda: console
    screen.Screen._reporting = lambda *_: contextlib.nullcontext()  # a terminal keeps no reports
    if main(_COMMAND):
        sys.exit("the demo failed")
    drawn = console.export_svg(title="tubemq-spark demo", theme=MONOKAI, unique_id="demo")
    # A page fetches nothing, and no font either.
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    draw()
