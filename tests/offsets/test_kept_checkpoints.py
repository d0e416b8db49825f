"""Checkpoints that earlier releases have written, as files: each release reads those of all before it."""

import json
from pathlib import Path

import pytest

from tubemq_spark.offsets.offset_spec import parse_offset_spec
from tubemq_spark.offsets.source_offset import SourceOffset, read_stream_offset

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
"""One directory per release whose offsets look different, see the page in there."""


def offsets():
    """Return the files that hold an offset of a stream; it is in the last line."""
    return sorted(CHECKPOINTS.glob("*/offsets/[0-9]*"))


@pytest.mark.parametrize("file", offsets(), ids=lambda file: "/".join(file.parts[-3:]))
def test_the_offsets_of_every_release_are_read(file):
    text = file.read_text().splitlines()[-1]

    offset = read_stream_offset(json.loads(text))

    assert isinstance(offset, SourceOffset)
    assert offset.next_offsets
    resumed = parse_offset_spec(text, "startingOffsets")
    assert {one: at for topic in resumed.topics.values() for one, at in topic.items()} == offset.next_offsets


def test_at_least_five_kept_offsets_are_found():
    assert len(offsets()) >= 5


def test_only_an_assignment_says_that_there_may_be_other_partitions():
    said = {
        file.parent.parent.name: read_stream_offset(json.loads(file.read_text().splitlines()[-1])).partial
        for file in offsets()
    }
    assert said == {"first": False, "assigned": True, "marked": False}
