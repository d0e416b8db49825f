"""What manifests say must be there, what is there, and the verdict about it.

**What is checked together.** A receipt tells of messages between two offsets of a partition. The ranges of
two writes overlap when they ran at the same time, or when one was aborted and then repeated, and whose a
message in both ranges is cannot be told. So ranges that overlap are one ``Check``: counts and checksums add
up.

**What cannot be told.** Messages of other producers, and copies of messages that were sent again, lie in the
same range. Where the sink gave each message an id (``messageUid``), the beginning of the id names the write,
and copies have the same id, so both can be left out. Without ids, a range with more messages than were
acknowledged is ``UNCLEAR``.

**What is read in one go.** Micro-batches leave many short ranges one behind the other, and each costs several
requests. So neighbours are read in one go first: if all their messages are there, there is nothing more to
ask. Otherwise each of them is read by itself, to say which is not as it was.
"""

import collections
import concurrent.futures
import dataclasses
import enum
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from tubemq_spark.cli.places import fields_of
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.errors import TubeMQError
from tubemq_spark.files.manifests import Manifest, Outcome
from tubemq_spark.model import INDEX_ENTRY_BYTES, MESSAGE_UID_KEY, OffsetRange, TopicsLayout
from tubemq_spark.offsets.ledger import coalesced
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.fetch_columns import MessageColumns
from tubemq_spark.protocol.send_batch import sum_of_checksums
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt, counted
from tubemq_spark.sink.uids import Occurrences

if TYPE_CHECKING:
    from tubemq_spark.cli.screen import Screen


class RangeVerdict(enum.Enum):
    """What became of the messages of a check; the value is what users read."""

    INTACT = "intact"
    """All are there, as they were sent."""
    REPEATED = "repeated"
    """All are there, and some of them more than once."""
    UNCLEAR = "unclear"
    """There are more messages than were acknowledged, and it is unclear which of them were."""
    EXPIRED = "expired"
    """Retention has removed some of them, or all."""
    MISSING = "missing"
    """Some are not there."""
    CHANGED = "changed"
    """There are as many as were acknowledged, but not these."""
    DAMAGED = "damaged"
    """Some cannot be read, because the broker's data or index is damaged."""
    REMOVED = "removed"
    """The topic or the partition is gone."""
    UNREADABLE = "unreadable"
    """The broker is away or refuses."""


SOUND: Final = frozenset({RangeVerdict.INTACT, RangeVerdict.REPEATED, RangeVerdict.UNCLEAR})
"""Verdicts that tell of no fault."""

_BY_LOSS: Final = (
    (Loss.TOPIC_REMOVED, RangeVerdict.REMOVED),
    (Loss.PARTITION_REMOVED, RangeVerdict.REMOVED),
    (Loss.TRUNCATED, RangeVerdict.MISSING),
)
"""Losses after which messages of the check are gone for certain, and should not be."""


_WHOSE: Final = {
    True: "of other producers, of tasks that failed, or copies of messages that were sent again",
    False: "of tasks that failed, whose repetitions had other rows",
}
"""Whose messages there may be besides, by whether they have no ids."""
_SHOWN_LOSSES: Final = 3
_MOST_ENTRIES: Final = 1 << 18
"""Of ranges that are read in one go: when something is wrong with one, all of them are read again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """Messages of one partition that brokers acknowledged, and where they must be."""

    range: OffsetRange
    files: tuple[str, ...]
    """The manifests that tell of them."""
    count: int
    bytes: int
    checksum: int
    uid_prefixes: frozenset[str]
    """How the ids of these messages begin; empty when some have no id of the sink's."""

    @property
    def entries(self) -> int:
        """How many entries the store's index has in the range, those of other messages included."""
        return (self.range.end - self.range.start) // INDEX_ENTRY_BYTES


@dataclasses.dataclass(slots=True)
class RangeContents:
    """What there is in the range of a check."""

    count: int = 0
    """How many messages; where they have ids, only those of the check, each once."""
    bytes: int = 0
    checksum: int = 0
    copies: int | None = None
    """How many more messages have an id that another one has; None without ids."""
    others: int | None = None
    """How many messages of others there are; None without ids."""
    losses: list[LossRecord] = dataclasses.field(default_factory=list)
    error: str = ""
    """Why the range could not be read to its end."""

    @classmethod
    def as_sent(cls, check: Check) -> Self:
        """Return what there is when all messages of a check are there."""
        return cls(check.count, check.bytes, check.checksum)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A check, what was found, and what that means."""

    check: Check
    contents: RangeContents

    @property
    def verdict(self) -> RangeVerdict:
        """What became of the messages."""
        check, contents = self.check, self.contents
        if contents.error:
            return RangeVerdict.UNREADABLE
        if (contents.count, contents.bytes, contents.checksum) == (check.count, check.bytes, check.checksum):
            return RangeVerdict.REPEATED if contents.copies else RangeVerdict.INTACT
        kinds = {loss.loss for loss in contents.losses}
        for kind, verdict in _BY_LOSS:
            if kind in kinds:
                return verdict
        if Loss.EXPIRED in kinds and contents.count >= check.count - self._expired:
            return RangeVerdict.EXPIRED
        if contents.count > check.count:
            return RangeVerdict.UNCLEAR
        if kinds - {Loss.EXPIRED}:
            return RangeVerdict.DAMAGED
        return RangeVerdict.MISSING if contents.count < check.count else RangeVerdict.CHANGED

    @property
    def _expired(self) -> int:
        """How many messages of the check retention has removed, at most: others may have been among them."""
        wanted = self.check.range
        return sum(
            max(0, min(loss.end, wanted.end) - max(loss.start, wanted.start)) // INDEX_ENTRY_BYTES
            for loss in self.contents.losses
            if loss.loss is Loss.EXPIRED
        )

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        return max(0, self.check.count - self.contents.count)

    @property
    def text(self) -> str:
        """What is to be said besides the verdict."""
        check, contents = self.check, self.contents
        parts = [contents.error] if contents.error else []
        if contents.count > check.count:
            whose = _WHOSE[contents.copies is None]
            parts.append(f"{contents.count - check.count} more than were acknowledged: {whose}")
        parts += _losses_in_words(contents.losses)
        parts += [counted(contents.copies, "copy", "copies")] if contents.copies else []
        parts += [f"{counted(contents.others, 'message')} of others"] if contents.others else []
        return "; ".join(parts)


def checks_of(manifests: Iterable[tuple[str, Manifest]]) -> list[Check]:
    """Return the checks of some manifests, by partition and offset."""
    receipts = [(receipt, name, manifest) for name, manifest in manifests for receipt in manifest.receipts]
    receipts.sort(key=lambda entry: (entry[0].partition, entry[0].first_offset))
    return [_check_of(together) for together in _overlapping(receipts)]


def neighbours_of(checks: Iterable[Check]) -> list[list[Check]]:
    """Group checks whose ranges are best read in one go; keep their order.

    The checks of a group are of one partition, and their ranges are not too long together. The gaps between
    these ranges are not longer than the ranges.
    """
    groups: list[list[Check]] = []
    entries = 0
    for check in checks:
        last = groups[-1] if groups else []
        if last and last[0].range.partition == check.range.partition:
            entries += check.entries
            span = (check.range.end - last[0].range.start) // INDEX_ENTRY_BYTES
            if span <= min(_MOST_ENTRIES, 2 * entries):
                last.append(check)
                continue
        groups.append([check])
        entries = check.entries
    return groups


def together(checks: Sequence[Check]) -> Check:
    """Return one check for some of one partition, which are in the order of their offsets."""
    if len(checks) == 1:
        return checks[0]
    prefixes = [check.uid_prefixes for check in checks]
    return Check(
        OffsetRange(checks[0].range.partition, checks[0].range.start, checks[-1].range.end),
        tuple(name for check in checks for name in check.files),
        sum(check.count for check in checks),
        sum(check.bytes for check in checks),
        sum(check.checksum for check in checks) % CHECKSUM_MODULUS,
        frozenset().union(*prefixes) if all(prefixes) else frozenset(),
    )


_Entry = tuple[Receipt, str, Manifest]


def _overlapping(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """Yield the receipts of each check."""
    together: list[_Entry] = []
    reached = -1
    for entry in entries:
        receipt = entry[0]
        if together and (receipt.partition != together[0][0].partition or receipt.first_offset > reached):
            yield together
            together, reached = [], -1
        together.append(entry)
        reached = max(reached, receipt.last_offset)
    if together:
        yield together


def _check_of(entries: Sequence[_Entry]) -> Check:
    """Return the check of receipts whose ranges overlap."""
    start = entries[0][0].first_offset
    end = max(receipt.last_offset for receipt, _, _ in entries) + INDEX_ENTRY_BYTES
    prefixes, counted = _by_uids(entries)
    receipts = [receipt for receipt, _, _ in counted]
    return Check(
        OffsetRange(entries[0][0].partition, start, end),
        tuple(name for _, name, _ in entries),
        sum(receipt.count for receipt in receipts),
        sum(receipt.bytes for receipt in receipts),
        sum(receipt.checksum or 0 for receipt in receipts) % CHECKSUM_MODULUS,
        prefixes,
    )


def _by_uids(entries: Sequence[_Entry]) -> tuple[frozenset[str], Sequence[_Entry]]:
    """Return how the ids of messages begin, and the receipts that tell how many different ones there are.

    A micro-batch that was aborted and repeated has the same ids both times: what is complete counts. When it
    was aborted twice, or written twice by ``foreachBatch``, it is unknown how many ids both have in common,
    so ids do not help.
    """
    topic = entries[0][0].partition.topic
    complete = {entry.uid_prefix for _, _, entry in entries if entry.outcome is Outcome.WRITTEN}
    counted = [
        entry
        for entry in entries
        if entry[2].outcome is Outcome.WRITTEN or entry[2].uid_prefix not in complete
    ]
    prefixes = [manifest.uid_prefix_in(topic) for _, _, manifest in counted]
    named = frozenset(prefix for prefix in prefixes if prefix)
    return (named, counted) if len(named) == len(prefixes) else (frozenset(), entries)


def _losses_in_words(losses: Iterable[LossRecord]) -> list[str]:
    gaps = coalesced(losses)
    texts = [
        f"{loss.loss.value.lower().replace('_', ' ')} between the offsets {loss.start} and {loss.end}"
        for loss in gaps[:_SHOWN_LOSSES]
    ]
    more = len(gaps) - len(texts)
    return [*texts, f"and {more} more gaps"] if more else texts


_UID: Final = re.compile(rb"(?:\A|,)%b=([^,]*)" % MESSAGE_UID_KEY.encode())
_READERS: Final = 8
"""Ranges that are read at once."""

Progress = Callable[[int], None]
"""Takes how many entries of stores were passed since the last call; one call at a time."""


def findings(
    cluster: Cluster, neighbours: Sequence[Sequence[Check]], on_progress: Progress
) -> Iterator[Finding]:
    """Read the ranges of checks, some at a time, and yield what is there, in the order of the checks."""
    topics = sorted({check.range.partition.topic for some in neighbours for check in some})
    reading = _RangeReading(cluster, cluster.layout(topics, missing_ok=True), on_progress)
    with concurrent.futures.ThreadPoolExecutor(_READERS, "tubemq-verify") as readers:
        try:
            for contents in readers.map(reading.findings, neighbours):
                yield from contents
        finally:
            reading.stopped.set()


class _RangeReading:
    """Reads ranges; for use by several threads."""

    def __init__(self, cluster: Cluster, layout: TopicsLayout, on_progress: Progress) -> None:
        self._cluster = cluster
        self._layout = layout
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._away: dict[int, str] = {}
        """The errors of brokers that did not answer in time, by their ids."""
        self.stopped = threading.Event()
        """Set when the readers are to end soon."""

    def findings(self, checks: Sequence[Check]) -> list[Finding]:
        """Return what there is of neighbours."""
        whole = together(checks)
        contents = self._contents(whole, self._pass)
        if len(checks) == 1:
            return [Finding(whole, contents)]
        if Finding(whole, contents).verdict is RangeVerdict.INTACT and not contents.others:
            return [Finding(check, RangeContents.as_sent(check)) for check in checks]
        return [Finding(check, self._contents(check, self._pass_again)) for check in checks]

    def _contents(self, check: Check, on_progress: Progress) -> RangeContents:
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
        self.contents = RangeContents(copies=0, others=0) if self._prefixes else RangeContents()

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
        """Return the check's messages that are not counted so far; count copies, and messages of others."""
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


VERSION: Final = 1
"""Of the JSON."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The result of a run."""

    writes: int
    """How many manifests were read."""
    findings: tuple[Finding, ...]
    expiry_is_a_fault: bool = True

    @property
    def sound(self) -> bool:
        """Whether there is no fault; to have found no manifest is one."""
        tolerated = SOUND if self.expiry_is_a_fault else SOUND | {RangeVerdict.EXPIRED}
        return self.writes > 0 and all(finding.verdict in tolerated for finding in self.findings)

    @property
    def json(self) -> str:
        """Everything, as one object in one line."""
        return json.dumps(
            {
                "v": VERSION,
                "sound": self.sound,
                "manifests": self.writes,
                "verdicts": {verdict.value: count for verdict, count in self._counts().items()},
                "checks": [_to_json(finding) for finding in self.findings],
            }
        )

    def show(self, screen: "Screen") -> None:
        """Print what is not intact, and a sentence about everything."""
        doubtful = [finding for finding in self.findings if finding.verdict is not RangeVerdict.INTACT]
        if doubtful:
            header = ("partition", "offsets", "acknowledged", "found", "verdict", "", "manifest")
            screen.table("Not intact, or not certain", header, [_row(finding) for finding in doubtful])
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in self._counts().items())
        messages = sum(finding.check.count for finding in self.findings)
        sent = f"{messages:,} {'message' if messages == 1 else 'messages'}"
        ranges = f"{sent} in {counted(len(self.findings), 'range')}"
        text = f"{counted(self.writes, 'manifest')}, {ranges}{counts and f': {counts}'}"
        screen.conclude(text, good=self.sound)

    def _counts(self) -> dict[RangeVerdict, int]:
        counts = collections.Counter(finding.verdict for finding in self.findings)
        return {verdict: counts[verdict] for verdict in RangeVerdict if counts[verdict]}


def _row(finding: Finding) -> tuple[object, ...]:
    check, contents = finding.check, finding.contents
    first, *others = check.files
    return (
        check.range.partition,
        f"{check.range.start} to {check.range.end}",
        check.count,
        contents.count,
        finding.verdict.value,
        finding.text,
        f"{first} and {len(others)} more" if others else first,
    )


def _to_json(finding: Finding) -> dict[str, Any]:
    check, contents = finding.check, finding.contents
    return {
        **fields_of(check.range.partition),
        "startOffset": check.range.start,
        "endOffset": check.range.end,
        "manifests": list(check.files),
        "verdict": finding.verdict.value,
        "missing": finding.missing,
        "acknowledged": {"count": check.count, "bytes": check.bytes, "checksum": str(check.checksum)},
        "found": {"count": contents.count, "bytes": contents.bytes, "checksum": str(contents.checksum)},
        "copies": contents.copies,
        "others": contents.others,
        "losses": [
            {"reason": loss.loss.value, "startOffset": loss.start, "endOffset": loss.end}
            for loss in contents.losses
        ],
        "error": contents.error or None,
    }
