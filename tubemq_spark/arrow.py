"""Messages as Arrow's record batches without Spark: what ``TubeMQClient.read_arrow`` does.

It stands on Spark's source: the options, the plan, the ranges and the columns are the same. Only there are no
tasks. The ranges are read one after the other, in the thread of who asks for a batch, and nothing is fetched
before it is asked for.
"""

import contextlib
import dataclasses
import datetime
import json
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from tubemq_spark.client.reader.selection import Selection
from tubemq_spark.client.reader.topic_reader import chosen_partitions
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.net.retry import Interruptible, Wait
from tubemq_spark.offsets.ledger import Origin, batch_read
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, LossRecorder
from tubemq_spark.offsets.notation import write_offsets
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.options import OptionSet, ReadOptions
from tubemq_spark.source.arrow import schema_of
from tubemq_spark.source.batch_driver import plan_batch
from tubemq_spark.source.loss_ledger import LossesOfTask, LossLedger, Work, loss_policy
from tubemq_spark.source.schema import default_columns, message_columns, unknown_column
from tubemq_spark.source.task import builder, ranges

_NOTHING: Final = memoryview(b"")
_OPTIONS_OF: Final = {
    argument: (f"{argument}ingOffsets", f"{argument}ingTimestamp", f"{argument}ingOffsetsByTimestamp")
    for argument in ("start", "end")
}
_OF_TOPICS: Final = ("assign", "subscribe", "subscribePattern")
_IF_NONE: Final = "startingOffsetsByTimestampStrategy"


class ArrowReader(pa.ipc.RecordBatchStreamReader):  # type: ignore[misc]  # PyArrow has no types
    """Messages as record batches, each of which is read when it is asked for; a ``RecordBatchReader``.

    It belongs to a ``with`` block, or is closed: that ends the read, gives back its lease at the broker, and
    makes it an error to ask for more. The end of its client closes it too. Threads must not share it.

    PyArrow's own reader of an iterator cannot be closed, and one that goes through Arrow's C interface
    loses the types of errors. A stream of messages has neither fault, and costs one copy of each batch.

        with client.read_arrow("clicks", columns=["value", "timestamp"]) as reader:
            for batch in reader:
                print(batch.num_rows)
        reader.close()  # what the end of the block has done
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Generator[pa.RecordBatch, None, None],
        end: Interruptible,
        policy: LossPolicy,
    ) -> None:
        """Read these batches until ``end``; ``policy`` has taken, and takes, what is lost."""
        self._batches = batches
        self._end = end
        self._policy = policy
        super().__init__(_BatchStream(schema, batches, end))

    @property
    def losses(self) -> list[LossRecord]:
        """What ``failOnDataLoss=false`` has passed over so far, at most the last thousand gaps."""
        return self._policy.records if isinstance(self._policy, LossRecorder) else []

    def close(self) -> None:
        """End the read; it may have ended already, and another thread may be waiting for a batch."""
        self._end.end()
        with contextlib.suppress(ValueError):  # another thread is in it, and ends it
            self._batches.close()


class _BatchStream:
    """Record batches as a file: each is read, and written down, when a byte of it is asked for."""

    closed = False
    """PyArrow asks files for it."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], end: Interruptible) -> None:
        self._batches = batches
        self._end = end
        self._left = memoryview(schema.serialize())

    def read(self, size: int) -> memoryview:
        """Return so many bytes, or none at the end; PyArrow asks for no more than a message has."""
        self._end.check()
        if not self._left:
            batch = next(self._batches, None)
            self._left = _NOTHING if batch is None else memoryview(batch.serialize())
        part, self._left = self._left[:size], self._left[size:]
        return part


def read_arrow(
    transport: Transport,
    client: UrlSettings,
    topics: tuple[str, ...] | None,
    columns: Iterable[str] | None,
    options: Mapping[str, object],
    selection: Selection,
) -> ArrowReader:
    """Return a reader of messages; see ``TubeMQClient.read_arrow``.

    Args:
        transport: the client's way to the cluster, of the process's loop.
        client: its settings.
        topics: the topics; None: the options say what to read.
        columns: the columns to read, in their order; None: the usual ones.
        options: those of Spark's source, by name.
        selection: which records are read, as far as the options do not say it.
    """
    masters = client.config.masters
    config = dataclasses.replace(client.config, masters=() if client.gateways else masters)
    access = ClusterConfig(config, gateways=client.gateways, gateway_token=client.gateway_token)
    texts = {name: _text(name, value) for name, value in options.items() if value is not None}
    texts |= _selected(transport, selection, texts)
    if topics is not None and selection.partitions is None:
        if "subscribe" in map(str.lower, texts):
            raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="topics", other="subscribe")
        texts["subscribe"] = ",".join(topics)
    parsed = OptionSet.parse(texts, of_client=access)
    if not parsed.of_messages:
        expected = "messages, since other views are read with Spark"
        raise OptionError("TUBEMQ_OPTION_VALUE", option="view", value=parsed.view.value, expected=expected)
    # Ranges are cut for tasks, and here is none.
    read = dataclasses.replace(
        parsed.for_batch_read(), min_partitions=None, max_records_per_partition=None, max_ranges_per_task=None
    )
    schema = _schema(parsed, columns)
    changed = dataclasses.replace(read.cluster.client, masters=masters)
    cluster = TransportCluster(transport.with_config(changed, read.cluster.web))
    origin, policy = batch_read(read.cluster.client.group, uuid.uuid4().hex), loss_policy(read)
    tasks = plan_batch(read, schema.names, origin, policy, cluster)
    end = Interruptible(lambda: TubeMQError("TUBEMQ_ARROW_READER_CLOSED"))
    batches = _batches(tasks, read, schema, cluster, policy, origin, end)
    if selection.limit is not None:
        batches = _first(batches, selection.limit)
    return ArrowReader(schema, batches, end, policy)


def _first(
    batches: Generator[pa.RecordBatch, None, None], limit: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the first rows of all batches."""
    with contextlib.closing(batches):
        for batch in batches:
            yield batch.slice(0, limit)
            limit -= batch.num_rows
            if limit <= 0:
                return


def _batches(
    tasks: Iterable[Work],
    options: ReadOptions,
    schema: pa.Schema,
    cluster: Cluster,
    policy: LossPolicy,
    origin: Origin,
    wait: Wait,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of all tasks."""
    ledger, rows = LossLedger(options), builder(options, schema)
    for task in tasks:
        ledger.write(task.lost, origin)
    requests = [request for task in tasks for request in task.requests]
    losses = LossesOfTask(policy, ledger, origin)
    with contextlib.closing(ranges(requests, options, cluster, losses, wait)) as each:
        for fetches, exact_offsets in each:
            for fetched in fetches:
                yield from rows.add(fetched, exact_offsets=exact_offsets)
    yield from rows.finish()


def _selected(transport: Transport, selection: Selection, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's source that say what is selected.

    Raises:
        OptionError: an option says it, too.
        TubeMQError: no master answers, or a topic does not exist.
    """
    given = {name.lower(): name for name in options}
    texts: dict[str, str] = {}
    for argument, place, edge in ("start", selection.start, -2), ("end", selection.end, -1):
        for name in _OPTIONS_OF[argument]:
            if place is not None and name.lower() in given:
                raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=argument, other=given[name.lower()])
        if isinstance(place, int):
            texts[f"{argument}ingTimestamp"] = str(place)
        elif place is not None:
            layout = loop.run(transport.layout(selection.topics))
            offsets = {**dict.fromkeys(chosen_partitions(layout, selection), edge), **place}
            texts[f"{argument}ingOffsets"] = json.dumps(write_offsets(offsets))
    if isinstance(selection.start, int) and _IF_NONE.lower() not in given:
        texts[_IF_NONE] = Edge.LATEST.value
    if selection.partitions is not None:
        for name in _OF_TOPICS:
            if name.lower() in given:
                raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option="partitions", other=given[name.lower()])
        texts["assign"] = json.dumps(_by_topic(selection.partitions))
    return texts


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.local_id)
    return topics


def _schema(options: OptionSet, names: Iterable[str] | None) -> pa.Schema:
    """Return the columns to read.

    Raises:
        OptionError: there is no such column, or none is named.
    """
    if names is None:
        return schema_of(
            default_columns(include_attributes=options.include_attributes, payload=options.payload)
        )
    columns = message_columns(options.payload)
    chosen = [names] if isinstance(names, str) else list(names)
    if not chosen:
        raise OptionError("TUBEMQ_SCHEMA_EMPTY", known=", ".join(columns))
    for name in chosen:
        if name not in columns:
            raise unknown_column(name, columns)
    options.warn_of_schema(chosen)
    return schema_of(columns[name] for name in chosen)


def _text(name: str, value: object) -> str:
    """Return a value as the text that Spark's option has."""
    match value:
        case bool():
            return str(value).lower()
        case datetime.datetime():
            if value.tzinfo is None:
                expected = "a time with its zone, such as datetime(2026, 1, 1, tzinfo=timezone.utc)"
                raise OptionError("TUBEMQ_OPTION_VALUE", option=name, value=value, expected=expected)
            return str(round(value.timestamp() * 1000))
        case Mapping():
            return json.dumps(value)
        case list() | tuple():
            return ",".join(map(str, value))
    return str(value)
