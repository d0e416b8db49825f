"""The notebook runs, reads what it writes, and shows a picture."""

import re

import pytest

from integration_tests import notebook

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_the_notebook_runs_and_shows_a_picture():
    done = notebook.run()

    assert dict(re.findall(r"^(.*): (\d+)$", notebook.printed(done), re.MULTILINE)) == {
        "rows written": "38001",
        "rows read": "38001",
    }
    (picture,) = notebook.pictures(done)
    assert picture.startswith(b"\x89PNG")


def test_what_is_kept_has_a_picture_and_no_error():
    kept = notebook.nbformat.read(notebook.NOTEBOOK, as_version=4)

    outputs = [output for cell in kept.cells for output in cell.get("outputs", ())]
    assert not [
        output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert notebook.pictures(kept) == [notebook.PICTURE.read_bytes()]
