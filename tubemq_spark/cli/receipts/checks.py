"""What manifests say must be there, and the verdict about what is there. No cluster is asked here.

**What is checked together.** A receipt tells of messages between two offsets of a partition. The ranges of
two writes overlap when they ran at the same time, or when one was aborted and then repeated, and whose a
message in both ranges is cannot be told. So ranges that overlap are one ``Check``: counts and checksums add
up.

**What cannot be told.** Messages of other producers, and copies of messages that were sent again, lie in the
same range. Where the sink gave each message an id (``messageUid``), the beginning of the id names the write,
and copies have the same id, so both can be left out. Without ids, a range with more messages than were
acknowledged is ``UNCLEAR``.
"""

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

from tubemq_spark.files.manifests import Manifest, Outcome
from tubemq_spark.model import INDEX_ENTRY_BYTES, OffsetRange
from tubemq_spark.offsets.ledger import coalesced
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt, counted


class Verdict(enum.Enum):
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


SOUND: Final = frozenset({Verdict.INTACT, Verdict.REPEATED, Verdict.UNCLEAR})
"""Verdicts that tell of no fault."""

_BY_LOSS: Final = (
    (Loss.TOPIC_REMOVED, Verdict.REMOVED),
    (Loss.PARTITION_REMOVED, Verdict.REMOVED),
    (Loss.TRUNCATED, Verdict.MISSING),
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
class Contents:
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
    contents: Contents

    @property
    def verdict(self) -> Verdict:
        """What became of the messages."""
        check, contents = self.check, self.contents
        if contents.error:
            return Verdict.UNREADABLE
        if (contents.count, contents.bytes, contents.checksum) == (check.count, check.bytes, check.checksum):
            return Verdict.REPEATED if contents.copies else Verdict.INTACT
        kinds = {loss.loss for loss in contents.losses}
        for kind, verdict in _BY_LOSS:
            if kind in kinds:
                return verdict
        if Loss.EXPIRED in kinds and contents.count >= check.count - self._expired:
            return Verdict.EXPIRED
        if contents.count > check.count:
            return Verdict.UNCLEAR
        if kinds - {Loss.EXPIRED}:
            return Verdict.DAMAGED
        return Verdict.MISSING if contents.count < check.count else Verdict.CHANGED

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
    """Return what some manifests say must be there, by partition and offset.

    Args:
        manifests: each with the name of its file.
    """
    receipts = [(receipt, name, manifest) for name, manifest in manifests for receipt in manifest.receipts]
    receipts.sort(key=lambda entry: (entry[0].partition, entry[0].first_offset))
    return [_check(together) for together in _overlapping(receipts)]


def neighbours_of(checks: Iterable[Check]) -> list[list[Check]]:
    """Return checks in their order, with those together that are worth being read in one go.

    They are of one partition and not too long together, and what lies between their ranges is not longer than
    these are.
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


def _check(entries: Sequence[_Entry]) -> Check:
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
