"""Reading the ranges of checks, to find out what is there."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from tubemq_spark.cli.receipts.checks import Check, Finding, Found
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, MESSAGE_UID_KEY, TopicsLayout
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.checksums import sum_of_checksums
from tubemq_spark.protocol.fetch_columns import MessageColumns
from tubemq_spark.receipts import CHECKSUM_MODULUS
from tubemq_spark.sink.occurrences import Occurrences

_UID: Final = re.compile(rb"(?:\A|,)%b=([^,]*)" % MESSAGE_UID_KEY.encode())

Progress = Callable[[int], None]
"""Takes how many entries of stores were passed since the last call."""


def findings(cluster: Cluster, checks: Sequence[Check], on_progress: Progress) -> Iterator[Finding]:
    """Read the ranges of all checks, and yield what is there.

    Raises:
        TubeMQError: no master answered, or the group may not read a topic. What is wrong with a partition is
            part of its findings.
    """
    topics = sorted({check.range.partition.topic for check in checks})
    layout = cluster.layout(topics, missing_ok=True)
    for check in checks:
        yield Finding(check, _found(cluster, layout, check, on_progress))


def _found(cluster: Cluster, layout: TopicsLayout, check: Check, on_progress: Progress) -> Found:
    partition, start = check.range.partition, check.range.start
    counting = _Counting(check)
    passed = 0
    if partition in layout.partitions:
        request = layout.request(check.range, own_store=partition.store_id in layout.alone_in_store)
        try:
            for batch in cluster.read_range(request, counting.found.losses.append):
                counting.add(batch.columns)
                now = (batch.next - start) // INDEX_ENTRY_BYTES
                on_progress(now - passed)
                passed = now
        except TubeMQError as error:
            counting.found.error = str(error)
    else:
        gone = Loss.TOPIC_REMOVED if partition.topic in layout.missing_topics else Loss.PARTITION_REMOVED
        counting.found.losses.append(LossRecord(gone, partition, start, check.range.end))
    on_progress(check.entries - passed)
    return counting.found


class _Counting:
    """Counts the messages of a check; where they have ids, each once."""

    def __init__(self, check: Check) -> None:
        self._prefixes = tuple(prefix.encode() for prefix in check.uid_prefixes)
        self._seen = Occurrences()
        self.found = Found(copies=0, others=0) if self._prefixes else Found()

    def add(self, columns: MessageColumns) -> None:
        """Count the messages of a fetch."""
        if self._prefixes:
            columns = self._first_of_each(columns)
        found = self.found
        found.count += len(columns)
        found.bytes += int((columns.value_end - columns.value_start).sum())
        found.checksum += sum_of_checksums(columns.data, columns.value_start, columns.value_end)
        found.checksum %= CHECKSUM_MODULUS

    def _first_of_each(self, columns: MessageColumns) -> MessageColumns:
        """Return the check's messages that were not counted yet; count copies, and messages of others."""
        rows, hashes, view = [], [], memoryview(columns.data)
        bounds = zip(columns.attribute_start.tolist(), columns.attribute_end.tolist(), strict=True)
        for row, (start, end) in enumerate(bounds):
            match = _UID.search(view[start:end])
            if match is not None and match[1].startswith(self._prefixes):
                rows.append(row)
                hashes.append(hash(match[1]))
        numbers = self._seen.numbers(np.array(hashes, np.int64).view(np.uint64))
        kept = np.array(rows, np.int64)[numbers == 0]
        found = self.found
        found.copies = (found.copies or 0) + len(rows) - len(kept)
        found.others = (found.others or 0) + len(columns) - len(rows)
        return columns.take(kept)
