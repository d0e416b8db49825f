"""The view ``lag``: how far a streaming query, or a consumer group, is behind the end of what it reads.

The position of the query or the group comes from a checkpoint or from the brokers' administration API, the
bounds of the stores from the brokers, and the age of the next message from reading it. Each of them may be
unknown on its own.

TubeMQ tells neither how old the next message is nor how much data there is. So the first messages are read,
one fetch per partition: they carry the minute in which their producer says they were made, and the answer
says how much data follows.
"""

import dataclasses
import datetime
import zoneinfo
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.cluster.peek import peek, waiting_at_most
from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreId, TopicPartition, TopicsLayout, rows_between
from tubemq_spark.net.side_by_side import answers_and_errors
from tubemq_spark.offsets.audit import Audit, audit
from tubemq_spark.offsets.loss import Evidence, Loss, LossRecord, data_loss
from tubemq_spark.offsets.marks import Mark, Place
from tubemq_spark.offsets.message_time import minutes_of
from tubemq_spark.offsets.subscription import Topics, TopicSubscription
from tubemq_spark.options import ViewOptions
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns
from tubemq_spark.source.checkpoints import CheckpointFiles
from tubemq_spark.source.marks import evidence_in, records_of
from tubemq_spark.source.views import Row, named
from tubemq_spark.source.views.places import DETAILS, PLACE, Places, look
from tubemq_spark.spark.columns import Column

_RECORD_OVERHEAD_BYTES: Final = 52
"""What a message takes in the broker's log besides its payload (``DataStoreUtils.STORE_DATA_HEADER_LEN``)."""


REMOVED: Final = "removed"

COLUMNS: Final = (
    *PLACE,
    Column("rows", "bigint", read="How many messages are not read yet.", nullable=True),
    Column(
        "bytes",
        "bigint",
        read="About how many bytes these take in the broker's log.",
        nullable=True,
    ),
    Column(
        "nextTime",
        "timestamp",
        read="The message time of the next message, to the minute. Null where it has none or may mean two "
        "times, or none waits.",
        nullable=True,
    ),
    Column("ageSeconds", "bigint", read="How long ago that was.", nullable=True),
    Column(
        "rowsUntilExpiry",
        "bigint",
        read="How many older messages the log still holds, which retention takes first. It removes whole "
        "files, so this number falls in jumps. At 0 the next ones to go are not read yet. Where partitions "
        "share a store, it counts entries of the index, and there are at most so many messages.",
        nullable=True,
    ),
    Column(
        "rowsExpired",
        "bigint",
        read="How many messages retention has taken that were not read. They are data loss. Where partitions "
        "share a store, at least so many entries are gone.",
        nullable=True,
    ),
    Column(
        "rowsUnderWay",
        "bigint",
        read="How many of `rows` are in a micro-batch that has begun and not finished. Null for a group.",
        nullable=True,
    ),
    Column(
        "offset",
        "bigint",
        read="The next offset to read: after the last finished micro-batch, or as the group has committed. "
        "Null in a partition that is new to the query or the group.",
        nullable=True,
    ),
    Column("earliest", "bigint", read="The first offset in the store's index.", nullable=True),
    Column("latest", "bigint", read="Where the store ends.", nullable=True),
    Column(
        "source",
        "string",
        read="Which source of the query: its number in the query, from 0 on, or its name. Null for a group.",
        nullable=True,
    ),
    Column(
        "batch",
        "bigint",
        read="The number of the last finished micro-batch. Null before the first, and for a group.",
        nullable=True,
    ),
    *DETAILS,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _LagSubject:
    """Whose lag it is: a source of a query, or a group."""

    subscription: TopicSubscription
    """What it reads."""
    reached: Mapping[TopicPartition, int]
    """Where it stands, in index bytes; only of what it reads."""
    planned: Mapping[TopicPartition, int] | None
    """Where its micro-batch under way ends; None for a group."""
    unknown: Mapping[int, str]
    """Why it is not known where it stands on a broker, by the broker's id."""
    new_were_there: bool = False
    """Whether partitions that are new to it were there before."""
    marks: tuple[Mark, ...] = ()
    """Records that its logs had."""


class Next(NamedTuple):
    """What is known of the messages from an offset on."""

    time: datetime.datetime | None = None
    """When the first was made, to the minute; None when it does not say, or may mean two times, or there is
    none."""
    bytes: int | None = None
    """How much the broker's log has of them, and of those of the store's other partitions."""
    error: str | None = None
    """Why they could not be read."""


def rows(options: ViewOptions) -> Iterator[Row]:
    """Read the checkpoint, or ask for the group, and then ask the brokers."""
    return _rows_of_checkpoint(options, options.checkpoint) if options.checkpoint else _rows_of_group(options)


def _rows_of_checkpoint(options: ViewOptions, location: FolderUri) -> Iterator[Row]:
    """Yield the rows of each source of the query that has a checkpoint."""
    checkpoint = CheckpointFiles(location).progress()
    cluster = open_cluster(options.cluster)
    for source, progress in checkpoint.sources.items():
        subject = _subject(options.subscription, progress.reached, progress.planned, {})
        if subject is not None:
            marks = tuple(mark for mark in progress.marks if mark.partition in subject.reached)
            subject = dataclasses.replace(subject, new_were_there=progress.partial, marks=marks)
            for row in _rows(cluster, subject, options):
                yield {**row, "source": source, "batch": checkpoint.finished}


def _rows_of_group(options: ViewOptions) -> Iterator[Row]:
    """Yield the rows of a consumer group, or raise the error of a broker if none knows its positions."""
    # Asking for the layout under the group itself would get in the way of its consumers.
    client = options.cluster.client
    visitor = dataclasses.replace(client, group=client.reader_groups[0])
    cluster = open_cluster(dataclasses.replace(options.cluster, client=visitor))
    stored = cluster.stored_offsets(options.group)
    if not stored.offsets:
        for error in stored.failures.values():
            raise error
        raise OptionError("TUBEMQ_GROUP_UNKNOWN", group=options.group)
    reached = {offset.partition: offset.committed for offset in stored.offsets}
    unknown = {broker_id: str(error) for broker_id, error in stored.failures.items()}
    subject = _subject(options.subscription, reached, None, unknown)
    return iter(()) if subject is None else _rows(cluster, subject, options)


def _subject(
    subscription: TopicSubscription | None,
    reached: Mapping[TopicPartition, int],
    planned: Mapping[TopicPartition, int] | None,
    unknown: Mapping[int, str],
) -> _LagSubject | None:
    """Return whose lag the options ask for; None if it reads nothing that they subscribe to."""
    if subscription is None:
        topics = sorted({partition.topic for partition in reached})
        return _LagSubject(Topics(tuple(topics)), reached, planned, unknown) if topics else None
    others = set(subscription.others(reached.keys()))
    positions = {partition: offset for partition, offset in reached.items() if partition not in others}
    return _LagSubject(subscription, positions, planned, unknown) if positions else None


def _rows(cluster: Cluster, subject: _LagSubject, options: ViewOptions) -> Iterator[Row]:
    """Ask the brokers, and yield a row for each partition that it has reached or that exists now."""
    places = look(cluster, subject.subscription, missing_ok=True, silent=subject.unknown.keys())
    spans = places.bounds.by_store
    patience_ms = options.cluster.client.fetch_timeout_ms
    wanted = options.wants("rowsUntilExpiry", "rowsExpired")
    begins = _first_readable(cluster, places, patience_ms) if wanted else {}
    readable = {
        store: span._replace(earliest=begins.get(store, span.earliest)) for store, span in spans.items()
    }
    known = [mark for mark in subject.marks if mark.partition.store_id in spans]
    records, _ = records_of(cluster, places.layout, known, patience_ms)
    replaced = {mark.place: evidence for mark, evidence in evidence_in(records).items()}
    audited = _audit(subject, places, readable, replaced)
    waiting = {
        partition: (position, span.latest)
        for partition, position in audited.positions.items()
        if (span := spans.get(partition.store_id)) is not None and position < span.latest
    }
    zone = zoneinfo.ZoneInfo(options.message_time_zone)
    looked_at = waiting if options.wants("bytes", "nextTime", "ageSeconds") else {}
    first = next_messages(cluster, places.layout, looked_at, zone, patience_ms)
    losses = {loss.partition: loss for loss in audited.losses}
    now = datetime.datetime.now(datetime.UTC)
    for partition in sorted(subject.reached.keys() | places.layout.partitions.keys()):
        loss, next_message = losses.get(partition), first.get(partition, Next())
        trouble = next_message.error or subject.unknown.get(partition.broker_id)
        yield {
            "error": trouble if loss is None else str(data_loss(loss)),
            **_place_columns(places, partition),
            **_position_columns(subject, partition),
            **_distance_columns(
                audited.positions.get(partition),
                spans.get(partition.store_id),
                begins.get(partition.store_id),
                loss,
            ),
            **_message_columns(next_message, now),
        }


def _first_readable(cluster: Cluster, places: Places, patience_ms: int) -> dict[StoreId, int]:
    """Return where stores of one partition can be read from, as far as their brokers tell.

    Retention may take the data of messages long before their entries in the index.
    """
    layout, spans = places.layout, places.bounds.by_store
    alone = {
        partition: spans[store]
        for store, partition in layout.alone_in_store.items()
        if store in spans and spans[store].earliest < spans[store].latest
    }

    def ask(partition: TopicPartition) -> int:
        span = alone[partition]
        wait = waiting_at_most(patience_ms, OffsetRange(partition, *span))
        return cluster.first_readable(layout, {partition: span}, wait)[partition]

    offsets, _ = answers_and_errors(ask, alone)
    return {partition.store_id: offset for partition, offset in offsets.items()}


def _audit(
    subject: _LagSubject,
    places: Places,
    bounds: Mapping[StoreId, OffsetBounds],
    replaced: Mapping[Place, Evidence],
) -> Audit:
    """Compare where it stands with the bounds; only a query's new partitions count, not a group's."""
    partitions = set(places.layout.partitions)
    if subject.planned is None:
        partitions &= subject.reached.keys()
    return audit(
        subject.reached,
        partitions,
        bounds,
        new_were_there=subject.new_were_there or subject.subscription.chosen_one_by_one,
        replaced=replaced,
    )


def _place_columns(places: Places, partition: TopicPartition) -> Row:
    """Return the columns about a partition's place."""
    if partition in places.layout.partitions:
        return {name: value for name, value in places.place(partition).items() if value is not None}
    return {**named(partition), "state": REMOVED, "store": partition.store_id.store}


def _position_columns(subject: _LagSubject, partition: TopicPartition) -> Row:
    """Return the columns about where the query or the group stands in a partition."""
    offset = subject.reached.get(partition)
    if offset is None or subject.planned is None:
        return {"offset": offset}
    return {"offset": offset, "rowsUnderWay": rows_between(offset, subject.planned.get(partition, offset))}


def _distance_columns(
    position: int | None, span: OffsetBounds | None, begin: int | None, loss: LossRecord | None
) -> Row:
    """Return the columns about both ends of a store, whose first readable offset is ``begin`` if known."""
    if span is None:
        return {}
    ends = {"earliest": span.earliest, "latest": span.latest}
    if position is None:
        return ends
    expired = 0 if loss is None or loss.loss is not Loss.EXPIRED else rows_between(loss.start, loss.end)
    return {
        **ends,
        "rows": rows_between(position, span.latest),
        "rowsUntilExpiry": rows_between(span.earliest if begin is None else begin, position),
        "rowsExpired": expired,
    }


def _message_columns(next_message: Next, now: datetime.datetime) -> Row:
    """Return the columns about the next message and those behind it."""
    age = None if next_message.time is None else int((now - next_message.time).total_seconds())
    return {"bytes": next_message.bytes, "nextTime": next_message.time, "ageSeconds": age}


def next_messages(
    cluster: Cluster,
    layout: TopicsLayout,
    unread: Mapping[TopicPartition, tuple[int, int]],
    zone: zoneinfo.ZoneInfo,
    patience_ms: int,
) -> dict[TopicPartition, Next]:
    """Read the first messages of several partitions at once; an error is part of the answer."""

    def look(partition: TopicPartition) -> Next:
        range_ = OffsetRange(partition, *unread[partition])
        with peek(cluster, layout, range_, patience_ms) as batches:
            batch = next(batches, None)
        if batch is None:
            return Next()
        return Next(_time(batch.columns, zone), _bytes_from(range_.start, batch))

    messages, errors = answers_and_errors(look, unread)
    return messages | {partition: Next(error=str(error)) for partition, error in errors.items()}


def _time(columns: MessageColumns, zone: zoneinfo.ZoneInfo) -> datetime.datetime | None:
    minutes = minutes_of(columns.message(0).message_time, zone)
    if minutes is None or not minutes.certain:
        return None
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(minutes=minutes.first)


def _bytes_from(start: int, batch: FetchedBatch) -> int | None:
    """Return what the messages take, those of other partitions between them, and all that follow."""
    if batch.bytes_behind is None:
        return None
    count = len(batch.columns)
    each = batch.columns.nbytes / count + _RECORD_OVERHEAD_BYTES
    return batch.bytes_behind + round(each * rows_between(start, batch.next))
