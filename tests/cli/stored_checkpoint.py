"""Checkpoints as Spark leaves them, for tests without Spark."""

import json
import uuid

from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.source_offset import SourceOffset

PLANNED_MS = 1_767_225_600_000
"""When the first micro-batch was planned: 2026-01-01. Each one came a second later."""
SETTINGS = {"batchWatermarkMs": 77, "conf": {"spark.sql.shuffle.partitions": "7"}}


def offset(topic, first=None, **partitions):
    """Return an offset: ``b1_10000=28`` is partition 10000 of broker 1."""

    def named(given):
        places = {key: tuple(map(int, key[1:].split("_"))) for key in given}
        return {TopicPartition(topic, *places[key]): value for key, value in given.items()}

    return SourceOffset(named(partitions), named(first or {}))


def store_checkpoint(folder, *batches, finished=None, names=None, first=0):
    """Write what a query has planned: for each micro-batch an offset per source, or the text of one.

    Args:
        folder: where; returned.
        batches: the offsets of each micro-batch.
        finished: the number of the last one that has finished; by default all have.
        names: those of the sources, if they have some; the first micro-batches may lack the last ones.
        first: the number of the first one.
    """
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    last = first + len(batches) - 1 if finished is None else finished
    for place, sources in enumerate(batches, first):
        lines = [one if isinstance(one, str) else json.dumps(one.to_json()) for one in sources]
        if names is not None:
            lines = [f"{name}:{line}" for name, line in zip(names, lines, strict=False)]
        settings = json.dumps({**SETTINGS, "batchTimestampMs": PLANNED_MS + 1000 * place})
        version = "v1" if names is None else "v2"
        (folder / "offsets" / str(place)).write_text("\n".join((version, settings, *lines)))
        (folder / "offsets" / f".{place}.crc").write_bytes(b"crc")
        if place <= last:
            (folder / "commits" / str(place)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def content(folder):
    """Return what is in a folder, byte for byte."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
