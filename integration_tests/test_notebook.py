"""The notebook runs, reads what it writes, and shows a picture."""

import io
import re

import numpy as np
import pytest
from matplotlib import image

from integration_tests.rig import notebook

THROUGHPUT, LAG = (31, 119, 180), (255, 127, 14)
"""Red, green and blue of the two curves."""
A_FIFTH = 0.2
"""Of the picture's height: a curve without data, or of zeros, takes a line's width."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def height_of(picture, colour):
    """Return how much of the picture's height a curve takes, from its lowest to its highest point."""
    pixels = np.rint(image.imread(io.BytesIO(picture), format="png")[..., :3] * 255)
    rows, _ = np.nonzero((pixels == colour).all(axis=2))
    return (rows.max() - rows.min()) / len(pixels) if len(rows) else 0


@pytest.mark.nightly  # a minute, in which a query flows; the other examples run with every change
def test_the_notebook_runs_and_shows_a_picture():
    done = notebook.run()

    assert dict(re.findall(r"^(.*): (\d+)$", notebook.printed(done), re.MULTILINE)) == {
        "rows written": "38001",
        "rows read": "38001",
    }
    (picture,) = notebook.pictures(done)
    assert height_of(picture, THROUGHPUT) > A_FIFTH
    assert height_of(picture, LAG) > A_FIFTH


def test_what_is_kept_has_a_picture_and_no_error():
    kept = notebook.nbformat.read(notebook.NOTEBOOK, as_version=4)

    outputs = [output for cell in kept.cells for output in cell.get("outputs", ())]
    assert not [
        output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert notebook.pictures(kept) == [notebook.PICTURE.read_bytes()]
