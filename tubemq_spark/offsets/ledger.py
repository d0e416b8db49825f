"""The ledger of losses: what its files say, how they are named, and which gaps they add up to.

Losses are *observed*, by the driver or by tasks, and every observation goes to a file. One gap may be
observed several times: by the attempts of a task, by its speculative twin, by a micro-batch that is repeated
after a restart. Some of these see the same, and their files have the same name. Others do not: retention has
gone on, or a broker's answers end elsewhere. So the files hold observations, and ``gaps`` makes gaps of them:

- Observations are of one gap if they have the same *origin*, partition and reason, and overlap or touch.
- An origin is a micro-batch (the query's id and the batch's number, where a task knows them), the offset that
  a micro-batch begins at (in the driver, which does not know these), or a batch read.
- What an attempt observed stays in the ledger although another attempt succeeded: nobody can tell which of
  them Spark took. A gap is the union of all observations.
- Attempts may see different reasons too: what a broker passed over for one had expired for the next. Of an
  origin and a partition, what is lost as a whole for one reason is left out of the others (``_WHOLE``).

``gaps`` does not depend on the order of its arguments, nor on how often each is there.
"""

import bisect
import dataclasses
import datetime
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tubemq_spark.errors import LedgerFormatError
from tubemq_spark.files.json_records import canonical, optional_int, read_record
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES

VERSION: Final = 1
_WHOLE: Final = (Loss.EXPIRED, Loss.TRUNCATED, Loss.PARTITION_REMOVED, Loss.TOPIC_REMOVED)
"""Reasons for which all records between two offsets are lost, the one that tells most first."""
_IN_PARTS: Final = (Loss.SKIPPED, Loss.CORRUPT)
"""Reasons for which some are; a fetch may have both."""
_NAME_DIGITS: Final = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """Who passed over a loss: the same for all who repeat the same work."""

    consumer_group: str
    """The user's group."""
    key: str
    """Distinguishes what reads under this group: a micro-batch or a batch read."""
    query_id: str | None = None
    """Spark's id of the streaming query; None where nobody knows it."""
    batch_id: int | None = None
    """The number of the micro-batch; None where nobody knows it."""


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
    """Return the origin of what the driver passes over when it plans a micro-batch that starts at an offset.

    Args:
        consumer_group: the user's group.
        start: the offset as JSON; a restarted query plans from the same one.
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
    """Return what a file says.

    Args:
        text: the file's text.
        source: its name, for errors.

    Raises:
        LedgerFormatError: the text is not that of a ledger, or of one of a later release.
    """
    return [
        _observation(line, f"{source}, line {number}") for number, line in enumerate(text.splitlines(), 1)
    ]


def gaps(observations: Iterable[Observation]) -> list[Observation]:
    """Return each gap once, ordered by time and place; its time is the earliest of its observations."""
    by_place: dict[tuple[Origin, TopicPartition], dict[Loss, list[Observation]]] = {}
    for observation in observations:
        place = by_place.setdefault((observation.origin, observation.loss.partition), {})
        place.setdefault(observation.loss.loss, []).append(observation)
    found = [gap for observed in by_place.values() for gap in _gaps_of_place(observed)]
    return sorted(found, key=lambda gap: (gap.time, *_by_place(gap.loss), gap.origin.key))


def _gaps_of_place(observed: Mapping[Loss, Sequence[Observation]]) -> Iterator[Observation]:
    """Yield the gaps of one origin and partition, each record in one of them."""
    covered: list[tuple[int, int]] = []
    for reason in (*_WHOLE, *_IN_PARTS, Loss.MOVED_BACK):
        # What was read before a log went back is not lost unread.
        cuts = [] if reason is Loss.MOVED_BACK else covered
        left = [piece for one in observed.get(reason, ()) for piece in _outside(one, cuts)]
        found = [_gap(same) for same in _overlapping(left)]
        yield from found
        if reason in _WHOLE:
            covered += [(gap.loss.start, gap.loss.end) for gap in found]


def _outside(observation: Observation, covered: Iterable[tuple[int, int]]) -> Iterator[Observation]:
    """Yield what of an observation is outside some intervals, which do not overlap."""
    whole = observation.loss
    if whole.start == whole.end:
        yield observation
        return
    pieces, at = [], whole.start
    for start, end in sorted(covered):
        if start < whole.end and end > at:
            pieces.append((at, start))
            at = end
    pieces.append((at, whole.end))
    for start, end in pieces:
        if start < end:
            rows = whole.rows if (start, end) == (whole.start, whole.end) else None
            if _is_dense(whole):
                rows = (end - start) // INDEX_ENTRY_BYTES
            loss = dataclasses.replace(whole, start=start, end=end, rows=rows)
            yield dataclasses.replace(observation, loss=loss)


def _overlapping(observed: Iterable[Observation]) -> Iterator[list[Observation]]:
    """Yield the observations of each gap."""
    together: list[Observation] = []
    reached = 0
    for observation in sorted(observed, key=lambda one: (one.loss.start, one.loss.end)):
        if together and observation.loss.start > reached:
            yield together
            together = []
        reached = max(observation.loss.end, reached) if together else observation.loss.end
        together.append(observation)
    if together:
        yield together


def _gap(observed: Sequence[Observation]) -> Observation:
    first = observed[0]
    losses = [one.loss for one in observed]
    end = max(loss.end for loss in losses)
    loss = dataclasses.replace(first.loss, end=end, rows=_rows(losses))
    return Observation(loss, first.origin, min(one.time for one in observed))


def _rows(losses: Sequence[LossRecord]) -> int | None:
    """Return how many rows the union of some losses has, which overlap or touch; None if that is not known.

    If all rows of all losses are lost, the offsets tell. Otherwise an attempt that was not interrupted has
    observed all lost rows in losses that do not overlap, and nobody has observed more: that is the most rows
    in losses that do not overlap. A loss whose rows are not known adds nothing where those of others are.
    """
    counted = [loss for loss in losses if loss.rows is not None]
    if not _cover(counted, [loss for loss in losses if loss.rows is None]):
        return None
    if all(map(_is_dense, counted)):
        return (max(loss.end for loss in losses) - losses[0].start) // INDEX_ENTRY_BYTES
    ends, most = [losses[0].start], [0]
    # The most rows in losses that end at ends[i] or before, for each i.
    for loss in sorted(counted, key=lambda one: one.end):
        before = most[bisect.bisect_right(ends, loss.start) - 1]
        ends.append(loss.end)
        most.append(max(most[-1], before + (loss.rows or 0)))
    return most[-1]


def _cover(losses: Sequence[LossRecord], others: Sequence[LossRecord]) -> bool:
    """Tell whether the others lie within the union of some losses, sorted by their start."""
    spans: list[tuple[int, int]] = []
    for loss in losses:
        if spans and loss.start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(loss.end, spans[-1][1])
        else:
            spans.append((loss.start, loss.end))
    return all(any(start <= other.start and other.end <= end for start, end in spans) for other in others)


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
