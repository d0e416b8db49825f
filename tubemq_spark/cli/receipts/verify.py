"""Reading the ranges of checks, to find out what is there.

Micro-batches leave many short ranges one behind the other, and each costs several requests. So neighbours are
read in one go first: if all their messages are there, there is nothing more to ask. Otherwise each of them is
read by itself, to say which is not as it was.
"""

import concurrent.futures
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from tubemq_spark.cli.receipts.checks import Check, Contents, Finding, Verdict, together
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, MESSAGE_UID_KEY, TopicsLayout
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.fetch_columns import MessageColumns
from tubemq_spark.protocol.send_batch import sum_of_checksums
from tubemq_spark.receipts import CHECKSUM_MODULUS
from tubemq_spark.sink.uids import Occurrences

_UID: Final = re.compile(rb"(?:\A|,)%b=([^,]*)" % MESSAGE_UID_KEY.encode())
_READERS: Final = 8
"""Ranges that are read at once."""

Progress = Callable[[int], None]
"""Takes how many entries of stores were passed since the last call; one call at a time."""


def findings(
    cluster: Cluster, neighbours: Sequence[Sequence[Check]], on_progress: Progress
) -> Iterator[Finding]:
    """Read the ranges of checks, some at a time, and yield what is there, in the order of the checks.

    Args:
        cluster: where to read.
        neighbours: the checks, with those together that are read in one go.
        on_progress: counts up to the entries of all that are read in one go; not what is read once more.

    Raises:
        TubeMQError: no master answered, or the group may not read a topic. What is wrong with a partition is
            part of its findings.
    """
    topics = sorted({check.range.partition.topic for some in neighbours for check in some})
    reading = _Reading(cluster, cluster.layout(topics, missing_ok=True), on_progress)
    with concurrent.futures.ThreadPoolExecutor(_READERS, "tubemq-verify") as readers:
        try:
            for contents in readers.map(reading.findings, neighbours):
                yield from contents
        finally:
            reading.stopped.set()


class _Reading:
    """Reads ranges; for use by several threads."""

    def __init__(self, cluster: Cluster, layout: TopicsLayout, on_progress: Progress) -> None:
        self._cluster = cluster
        self._layout = layout
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._away: dict[int, str] = {}
        """Errors of brokers that were waited for in vain."""
        self.stopped = threading.Event()
        """Set when the readers are to end soon."""

    def findings(self, checks: Sequence[Check]) -> list[Finding]:
        """Return what there is of neighbours."""
        whole = together(checks)
        contents = self._contents(whole, self._pass)
        if len(checks) == 1:
            return [Finding(whole, contents)]
        if Finding(whole, contents).verdict is Verdict.INTACT and not contents.others:
            return [Finding(check, Contents.as_sent(check)) for check in checks]
        return [Finding(check, self._contents(check, self._pass_again)) for check in checks]

    def _contents(self, check: Check, on_progress: Progress) -> Contents:
        counting = _Counting(check)
        passed = 0
        for entries in self._read(check, counting):
            on_progress(entries - passed)
            passed = entries
        on_progress(check.entries - passed)
        return counting.contents

    def _read(self, check: Check, counting: "_Counting") -> Iterator[int]:
        """Count what is in a range; yield how many of its entries were passed."""
        partition, start, contents = check.range.partition, check.range.start, counting.contents
        if partition not in self._layout.partitions:
            removed = partition.topic in self._layout.missing_topics
            loss = Loss.TOPIC_REMOVED if removed else Loss.PARTITION_REMOVED
            contents.losses.append(LossRecord(loss, partition, start, check.range.end))
            return
        contents.error = self._away.get(partition.broker_id, "")
        if contents.error:
            return
        own_store = partition.store_id in self._layout.alone_in_store
        request = self._layout.request(check.range, own_store=own_store)
        try:
            for batch in self._cluster.read_range(request, contents.losses.append):
                counting.add(batch.columns)
                yield (batch.next - start) // INDEX_ENTRY_BYTES
        except TubeMQError as error:
            contents.error = str(error)
            if self._cluster.bounds(self._layout, [partition.store_id]).failures:
                self._away[partition.broker_id] = contents.error

    def _pass(self, entries: int) -> None:
        self._pass_again(entries)
        with self._lock:
            self._on_progress(entries)

    def _pass_again(self, _entries: int) -> None:
        if self.stopped.is_set():
            raise InterruptedError


class _Counting:
    """Counts the messages of a check; where they have ids, each once."""

    def __init__(self, check: Check) -> None:
        self._prefixes = tuple(prefix.encode() for prefix in check.uid_prefixes)
        self._seen = Occurrences()
        self.contents = Contents(copies=0, others=0) if self._prefixes else Contents()

    def add(self, columns: MessageColumns) -> None:
        """Count the messages of a fetch."""
        if self._prefixes:
            columns = self._first_of_each(columns)
        contents = self.contents
        contents.count += len(columns)
        contents.bytes += int((columns.value_end - columns.value_start).sum())
        contents.checksum += sum_of_checksums(columns.data, columns.value_start, columns.value_end)
        contents.checksum %= CHECKSUM_MODULUS

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
        firsts = np.array(rows, np.int64)[numbers == 0]
        contents = self.contents
        contents.copies = (contents.copies or 0) + len(rows) - len(firsts)
        contents.others = (contents.others or 0) + len(columns) - len(rows)
        return columns.take(firsts)
