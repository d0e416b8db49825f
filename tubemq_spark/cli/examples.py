"""The command ``tubemq-spark examples``: which examples the package has, and copies of them."""

import argparse
import ast
import json
import sys
from importlib import resources
from pathlib import Path
from typing import Final

from tubemq_spark.cli.output import Output, table_lines
from tubemq_spark.cli.parser import JSON, CommandGroup, argument, command
from tubemq_spark.errors import TubeMQError

_PROGRAM = ".py"
_NOTEBOOK = ".ipynb"


@command(
    name="list",
    summary="list the examples, and what each shows",
    description="List the examples, what each shows, and which need Spark.",
    example="--json",
    arguments=(JSON,),
)
def _list(_: argparse.Namespace) -> Output:
    examples = [
        {"file": name, "needsSpark": " pyspark" in text, "shows": _title(name, text)}
        for name, text in _texts().items()
    ]
    rows = [(row["file"], "Spark" if row["needsSpark"] else None, row["shows"]) for row in examples]
    return Output({"examples": examples}, table_lines(["file", "needs", "shows"], rows))


@command(
    name="copy",
    summary="copy the examples to a folder",
    description="Copy the examples to a folder, which is made if it does not exist. If one of the files "
    "is there already, nothing is copied.",
    example="trial",
    failure="a file is there already, or the folder cannot be written",
    arguments=(argument("folder DIR", "the folder", Path),),
)
def _copy(arguments: argparse.Namespace) -> int:
    files = {arguments.folder / name: text for name, text in _texts().items()}
    for path in files:
        if path.exists():
            raise TubeMQError("TUBEMQ_COMMAND_FILE_EXISTS", path=path)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


def _texts() -> dict[str, str]:
    """Return the text of each example by the name of its file."""
    files = sorted(resources.files("tubemq_spark.examples").iterdir(), key=lambda file: file.name)
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in files
        if file.name.endswith((_PROGRAM, _NOTEBOOK)) and not file.name.startswith("_")
    }


def _title(name: str, text: str) -> str:
    """Return the first line of a program or a notebook."""
    if name.endswith(_NOTEBOOK):
        return str(json.loads(text)["cells"][0]["source"][0]).strip("# \n")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


examples: Final = CommandGroup(
    "examples",
    "list examples, and copy them to a folder",
    "Examples of jobs and of programs without Spark, each complete in one file.",
    (_list, _copy),
)
