"""What manifests say must be there, and the verdict about what is there. No cluster is asked here.

**What is checked together.** A receipt tells of messages between two offsets of a partition. The ranges of
two writes overlap when they ran at the same time, or when one was aborted and then repeated, and nobody can
tell whose a message in both ranges is. So ranges that overlap are one ``Check``: counts and checksums add up.

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
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt


class Verdict(enum.Enum):
    """What became of the messages of a check; the value is what users read."""

    INTACT = "intact"
    """All are there, as they were sent."""
    REPEATED = "repeated"
    """All are there, and some of them more than once."""
    UNCLEAR = "unclear"
    """There are more messages than were acknowledged, and nobody can tell which of them were."""
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
    (Loss.EXPIRED, Verdict.EXPIRED),
    (Loss.TRUNCATED, Verdict.MISSING),
)
"""Losses after which messages of the check are gone for certain: those at one of its ends."""


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
class Found:
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
    found: Found

    @property
    def verdict(self) -> Verdict:
        """What became of the messages."""
        check, found = self.check, self.found
        if found.error:
            return Verdict.UNREADABLE
        if (found.count, found.bytes, found.checksum) == (check.count, check.bytes, check.checksum):
            return Verdict.REPEATED if found.copies else Verdict.INTACT
        kinds = {loss.loss for loss in found.losses}
        for kind, verdict in _BY_LOSS:
            if kind in kinds:
                return verdict
        if found.count > check.count:
            return Verdict.UNCLEAR
        if kinds:
            return Verdict.DAMAGED
        return Verdict.MISSING if found.count < check.count else Verdict.CHANGED

    @property
    def missing(self) -> int:
        """How many messages are missing at least."""
        return max(0, self.check.count - self.found.count)

    @property
    def text(self) -> str:
        """What is to be said besides the verdict."""
        check, found = self.check, self.found
        parts = [found.error] if found.error else []
        if found.count > check.count:
            parts.append(
                f"{found.count - check.count} more than were acknowledged: {_WHOSE[found.copies is None]}"
            )
        parts += _losses_in_words(found.losses)
        parts += [f"{found.copies} copies"] if found.copies else []
        parts += [f"{found.others} messages of others"] if found.others else []
        return "; ".join(parts)


def checks_of(manifests: Iterable[tuple[str, Manifest]]) -> list[Check]:
    """Return what some manifests say must be there, by partition and offset.

    Args:
        manifests: each with the name of its file.
    """
    told = [(receipt, name, manifest) for name, manifest in manifests for receipt in manifest.receipts]
    told.sort(key=lambda one: (one[0].partition, one[0].first_offset))
    return [_check(together) for together in _overlapping(told)]


def neighbours_of(checks: Iterable[Check]) -> list[list[Check]]:
    """Return checks in their order, with those together that are worth being read in one go.

    They are of one partition and not too long together, and what lies between their ranges is not longer than
    these are.
    """
    found: list[list[Check]] = []
    entries = 0
    for check in checks:
        last = found[-1] if found else []
        if last and last[0].range.partition == check.range.partition:
            entries += check.entries
            span = (check.range.end - last[0].range.start) // INDEX_ENTRY_BYTES
            if span <= min(_MOST_ENTRIES, 2 * entries):
                last.append(check)
                continue
        found.append([check])
        entries = check.entries
    return found


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


_Told = tuple[Receipt, str, Manifest]


def _overlapping(told: Iterable[_Told]) -> Iterator[list[_Told]]:
    """Yield the receipts of each check."""
    together: list[_Told] = []
    reached = -1
    for one in told:
        receipt = one[0]
        if together and (receipt.partition != together[0][0].partition or receipt.first_offset > reached):
            yield together
            together, reached = [], -1
        together.append(one)
        reached = max(reached, receipt.last_offset)
    if together:
        yield together


def _check(told: Sequence[_Told]) -> Check:
    start = told[0][0].first_offset
    end = max(receipt.last_offset for receipt, _, _ in told) + INDEX_ENTRY_BYTES
    prefixes, counted = _by_uids(told)
    receipts = [receipt for receipt, _, _ in counted]
    return Check(
        OffsetRange(told[0][0].partition, start, end),
        tuple(name for _, name, _ in told),
        sum(receipt.count for receipt in receipts),
        sum(receipt.bytes for receipt in receipts),
        sum(receipt.checksum or 0 for receipt in receipts) % CHECKSUM_MODULUS,
        prefixes,
    )


def _by_uids(told: Sequence[_Told]) -> tuple[frozenset[str], Sequence[_Told]]:
    """Return how the ids of messages begin, and the receipts that tell how many different ones there are.

    A micro-batch that was aborted and repeated has the same ids both times: what is complete counts. When it
    was aborted twice, or written twice by ``foreachBatch``, nobody knows how many ids both have in common, so
    ids do not help.
    """
    topic = told[0][0].partition.topic
    complete = {one.uid_prefix for _, _, one in told if one.outcome is Outcome.WRITTEN}
    counted = [one for one in told if one[2].outcome is Outcome.WRITTEN or one[2].uid_prefix not in complete]
    prefixes = [manifest.uid_prefix_in(topic) for _, _, manifest in counted]
    known = frozenset(prefix for prefix in prefixes if prefix)
    return (known, counted) if len(known) == len(prefixes) else (frozenset(), told)


def _losses_in_words(losses: Iterable[LossRecord]) -> list[str]:
    found = coalesced(losses)
    texts = [
        f"{loss.loss.value.lower().replace('_', ' ')} between the offsets {loss.start} and {loss.end}"
        for loss in found[:_SHOWN_LOSSES]
    ]
    more = len(found) - len(texts)
    return [*texts, f"and {more} more gaps"] if more else texts
