"""Runs the notebook of the examples; as a program it keeps what the notebook shows.

    python -m integration_tests.rig.notebook

writes the notebook with its output, and the picture of the site's page on monitoring.
"""

import base64
import os
import sys
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient

ROOT: Final = Path(__file__).parents[2]
NOTEBOOK: Final = ROOT / "tubemq_spark" / "examples" / "throughput_and_lag.ipynb"
PICTURE: Final = ROOT / "docs" / "spark" / "throughput-and-lag.png"
_SECONDS: Final = 180
"""For one cell."""
_PNG: Final = "image/png"


def run() -> Any:
    """Return the notebook as it is after all of its cells have run."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(NOTEBOOK.parent)}}
    return NotebookClient(notebook, timeout=_SECONDS, kernel_name="python3", resources=place).execute()


def printed(notebook: Any) -> str:
    """Return what its cells print."""
    return "".join(output.text for output in _outputs(notebook) if output.output_type == "stream")


def pictures(notebook: Any) -> list[bytes]:
    """Return its pictures, as PNG."""
    return [
        base64.b64decode(output.data[_PNG]) for output in _outputs(notebook) if _PNG in output.get("data", {})
    ]


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def _keep() -> None:
    notebook = run()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        # Spark tells of the machine when it starts.
        cell.outputs = [output for output in cell.get("outputs", ()) if output.get("name") != "stderr"]
    nbformat.write(notebook, NOTEBOOK)
    (picture,) = pictures(notebook)
    PICTURE.write_bytes(picture)


if __name__ == "__main__":
    _keep()
