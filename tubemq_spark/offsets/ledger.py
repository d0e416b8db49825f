"""The ledger of losses: what its files say, how they are named, and which gaps they add up to.

Losses are *observed*, by the driver or by tasks, and every observation goes to a file. One gap may be
observed several times: by the attempts of a task, by its speculative copy, by a micro-batch that is repeated
after a restart. Some of these see the same, and their files have the same name. Others do not: retention has
gone on, or a broker's answers end elsewhere. So the files hold observations, and ``gaps`` makes gaps of them:

- Observations are of one gap if they have the same *origin* and partition, and overlap, or touch for the same
  reason. Attempts may see different reasons: what a broker passed over for one had expired for the next. A
  gap has the reason that tells most (``_REASONS``). A log that moved back is a gap of its own: what was read
  before is not lost unread.
- An origin is a micro-batch (the query's id and the batch's number, where a task knows them), the offset that
  a micro-batch begins at (in the driver, which does not know these), or a batch read.
- What an attempt observed stays in the ledger although another attempt succeeded: it is not known which
  of them Spark took. A gap is the union of all observations.

``gaps`` does not depend on the order of its arguments, nor on how often each is there.
"""

import collections
import dataclasses
import datetime
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tubemq_spark.errors import LedgerFormatError
from tubemq_spark.files.manifests import canonical, optional_int, read_record
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord

VERSION: Final = 1
SUFFIX: Final = ".jsonl"
"""How the names of files end."""
_REASONS: Final = (
    Loss.EXPIRED,
    Loss.TRUNCATED,
    Loss.PARTITION_REMOVED,
    Loss.TOPIC_REMOVED,
    Loss.REPLACED,
    Loss.SKIPPED,
    Loss.CORRUPT,
    Loss.MOVED_BACK,
)
"""The one that tells most first."""
_NAME_DIGITS: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Who passed over a loss: the same for all who repeat the same work."""

    consumer_group: str
    """The user's group."""
    key: str
    """Distinguishes what reads under this group: a micro-batch or a batch read."""
    query_id: str | None = None
    """Spark's id of the streaming query; None where it is not known."""
    batch_id: int | None = None
    """The number of the micro-batch; None where it is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One loss, by whom it was passed over, and when."""

    loss: LossRecord
    origin: Origin
    time: datetime.datetime
    """In UTC."""


def micro_batch(consumer_group: str, query_id: str | None, batch_id: int | None) -> Origin:
    """Return the origin of what the tasks of a micro-batch pass over."""
    return Origin(consumer_group, f"micro-batch {query_id} {batch_id}", query_id, batch_id)


def batch_read(consumer_group: str, read_id: str) -> Origin:
    """Return the origin of what a batch read passes over, on the driver and in its tasks."""
    return Origin(consumer_group, f"read {read_id}")


def planning(consumer_group: str, start: object) -> Origin:
    """Return the origin of what the driver passes over when it plans from an offset, given as JSON.

    A restarted query plans from the same one.
    """
    return Origin(consumer_group, f"from {_digest(canonical(start))}")


def coalesced(losses: Iterable[LossRecord]) -> list[LossRecord]:
    """Return the losses of one observer with those put together of which one begins where another ends."""
    merged: list[LossRecord] = []
    for loss in sorted(losses, key=_by_place):
        last = merged[-1] if merged else None
        if last is not None and _kind(last) == _kind(loss) and last.end == loss.start:
            rows = None if last.rows is None or loss.rows is None else last.rows + loss.rows
            merged[-1] = dataclasses.replace(last, end=loss.end, rows=rows)
        else:
            merged.append(loss)
    return merged


def file_of(losses: Collection[LossRecord], origin: Origin, time: datetime.datetime) -> tuple[str, str]:
    """Return the name and the text of the file of some losses; the time has no part in the name."""
    ordered = sorted(losses, key=lambda loss: (*_by_place(loss), -1 if loss.rows is None else loss.rows))
    lines = [_to_json(loss, origin) for loss in ordered]
    name = _digest("\n".join(canonical(line) for line in lines))
    stamp = time.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
    return name, "".join(f"{canonical({**line, 'time': stamp})}\n" for line in lines)


def observations_of(text: str, source: str) -> list[Observation]:
    """Return the observations in a file."""
    return [
        _observation(line, f"{source}, line {number}") for number, line in enumerate(text.splitlines(), 1)
    ]


def gaps(observations: Iterable[Observation]) -> list[Observation]:
    """Return each gap once, ordered by time and place; its time is the earliest of its observations."""
    by_place: dict[tuple[Origin, TopicPartition, bool], list[Observation]] = collections.defaultdict(list)
    for observation in observations:
        loss = observation.loss
        by_place[observation.origin, loss.partition, loss.loss is Loss.MOVED_BACK].append(observation)
    union = [gap for observed in by_place.values() for gap in _gaps_of_place(observed)]
    return sorted(union, key=lambda gap: (gap.time, *_by_place(gap.loss), gap.origin.key))


def _gaps_of_place(observed: Iterable[Observation]) -> list[Observation]:
    """Return the gaps of one origin and partition, which do not overlap."""
    union: list[Observation] = []
    for together in _overlapping(observed):
        time = min(observation.time for observation in together)
        gap = dataclasses.replace(together[0], loss=_union([each.loss for each in together]), time=time)
        if union and len(both := coalesced([union[-1].loss, gap.loss])) == 1:
            gap = dataclasses.replace(gap, loss=both[0], time=min(union.pop().time, time))
        union.append(gap)
    return union


def _overlapping(observed: Iterable[Observation]) -> Iterator[list[Observation]]:
    """Yield observations that overlap together, in the order of their offsets."""
    together: list[Observation] = []
    reached = 0
    for observation in sorted(observed, key=lambda each: (each.loss.start, each.loss.end)):
        if together and observation.loss.start >= reached:
            yield together
            together = []
        reached = max(observation.loss.end, reached)
        together.append(observation)
    if together:
        yield together


def _union(losses: Sequence[LossRecord]) -> LossRecord:
    """Return the loss that some losses, which overlap and are sorted by their start, are together."""
    reason = min((loss.loss for loss in losses), key=_REASONS.index)
    union = dataclasses.replace(losses[0], loss=reason, end=max(loss.end for loss in losses))
    return dataclasses.replace(union, rows=_rows(union, losses))


def _rows(union: LossRecord, losses: Sequence[LossRecord]) -> int | None:
    """Return how many rows are lost if the offsets tell, or a loss of all of them; None otherwise.

    A loss for one reason does not count what is lost for another one.
    """
    length = (union.end - union.start) // INDEX_ENTRY_BYTES
    counts = {loss.rows for loss in losses if (loss.start, loss.end) == (union.start, union.end)}
    if length in counts or all(map(_is_dense, losses)):
        return length
    return counts.pop() if len(counts) == 1 and len({loss.loss for loss in losses}) == 1 else None


def _is_dense(loss: LossRecord) -> bool:
    """Tell whether all records between two offsets are lost, and counted."""
    return loss.rows == (loss.end - loss.start) // INDEX_ENTRY_BYTES


def _kind(loss: LossRecord) -> tuple[TopicPartition, str]:
    return loss.partition, loss.loss.value


def _by_place(loss: LossRecord) -> tuple[TopicPartition, str, int, int]:
    return (*_kind(loss), loss.start, loss.end)


def _to_json(loss: LossRecord, origin: Origin) -> dict[str, Any]:
    return {
        "v": VERSION,
        "topic": loss.partition.topic,
        "brokerId": loss.partition.broker_id,
        "partition": loss.partition.partition_id,
        "startOffset": loss.start,
        "endOffset": loss.end,
        "rows": loss.rows,
        "reason": loss.loss.value,
        "consumerGroup": origin.consumer_group,
        "queryId": origin.query_id,
        "batchId": origin.batch_id,
        "origin": origin.key,
    }


def _observation(line: str, source: str) -> Observation:
    def malformed(problem: str) -> LedgerFormatError:
        return LedgerFormatError("TUBEMQ_LEDGER_MALFORMED", source=source, problem=problem)

    return read_record(line, source, VERSION, _from_json, malformed)


def _from_json(data: Mapping[str, Any]) -> Observation:
    partition = TopicPartition(str(data["topic"]), int(data["brokerId"]), int(data["partition"]))
    start, end, rows = int(data["startOffset"]), int(data["endOffset"]), optional_int(data["rows"])
    query, batch = data["queryId"], optional_int(data["batchId"])
    origin = Origin(str(data["consumerGroup"]), str(data["origin"]), query and str(query), batch)
    time = datetime.datetime.fromisoformat(data["time"]).astimezone(datetime.UTC)
    return Observation(LossRecord(Loss(data["reason"]), partition, start, end, rows), origin, time)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS]
