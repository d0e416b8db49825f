"""The pipelines through which clients publish, and their batches there.

There is one pipeline for all streams of equal settings, as long as some use it.
"""

import asyncio
import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import numpy as np

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.client.producer.futures import BatchOutcome
from tubemq_spark.client.producer.outgoing import OutgoingBatch, outgoing_batch, refused_message
from tubemq_spark.client.registry import abandon_in_child
from tubemq_spark.errors import ProduceError, TubeMQError
from tubemq_spark.gateway.admission import busy
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.fair_quota import FairQuota, Owner
from tubemq_spark.protocol.gateway import failures, gateway_pb2 as pb, sends, values
from tubemq_spark.protocol.gateway.batches import INT32, INT64, pack
from tubemq_spark.protocol.send_batch import SendBatch
from tubemq_spark.receipts import Receipt

_MOST_ERRORS: Final = 1_000
"""How many different errors an answer has."""
_IDLE_S: Final = 30.0
"""A pipeline that no stream uses is kept for so long, with its connections: longer than most pauses."""


@dataclasses.dataclass(slots=True, eq=False)
class PipelineEntry:
    """A pipeline, and how many streams use it."""

    pipeline: BrokerPipeline
    owner: Owner
    """The client for which it was opened."""
    users: int = 0
    closing: asyncio.TimerHandle | None = None
    left: dict[BatchOutcome, OutgoingBatch] = dataclasses.field(default_factory=dict)
    """The outcomes and batches of streams that have ended; they are given up together."""

    def give_up_soon(self, batches: Mapping[BatchOutcome, OutgoingBatch]) -> None:
        """Give up batches in the next turn of the loop, together with those of streams that end now too."""
        if not self.left:
            asyncio.get_running_loop().call_soon(self._give_up)
        self.left.update(batches)

    def _give_up(self) -> None:
        batches, self.left = self.left, {}
        self.pipeline.give_up(*batches.values())
        closed = ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self.pipeline.unacknowledged)
        for outcome in batches:
            # The messages that the pipeline has not accepted.
            outcome.abandon(lambda _: closed)


class Pipelines:
    """The pipelines of a gateway, one for equal settings, in its event loop.

    One that no stream has used for a while is closed. One with an error of its own is closed when its last
    user leaves. ``publishes`` limits their number.
    """

    def __init__(self, settings: GatewaySettings, quota: FairQuota) -> None:
        """Open no pipeline; ``quota`` limits how many there are."""
        self._gateway = settings.name
        self._most = settings.most["max_in_flight"], settings.most["max_in_flight_bytes"]
        self._connections = Connections(settings.client_config().connect_timeout_ms)
        self._quota = quota
        self._entries: dict[tuple[ClientConfig, bool], PipelineEntry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        abandon_in_child(self)

    @property
    def connections(self) -> int:
        """How many connections to masters they share."""
        return len(self._connections.shared())

    @property
    def closing(self) -> int:
        """How many are being closed."""
        return len(self._closing)

    def take(self, config: ClientConfig, owner: Owner, *, detailed: bool) -> PipelineEntry:
        """Return the pipeline for some settings; ``give_back`` must follow."""
        key = config, detailed
        entry = self._entries.get(key)
        if entry is not None and entry.pipeline.error is not None:
            del self._entries[key]
            entry = None
        if entry is None:
            if not self._quota.take(owner):
                for idle in [other for other in self._entries.values() if not other.users]:
                    self._begin_to_close(idle)
                if not self._quota.take(owner):
                    what = f"clients publish with {self._quota.used} different settings"
                    raise busy(self._gateway, what, self._quota.retry_after_ms)
            pipeline = BrokerPipeline(
                config,
                self._connections,
                detailed=detailed,
                run_user_code=lambda call: call(),  # clients have none here
                most=self._most,
            )
            entry = self._entries[key] = PipelineEntry(pipeline, owner)
        entry.users += 1
        if entry.closing is not None:
            entry.closing.cancel()
            entry.closing = None
        return entry

    def give_back(self, entry: PipelineEntry) -> None:
        """Count a stream less that uses a pipeline; the last one closes it, after a while or at an error."""
        entry.users -= 1
        if entry.users:
            return
        if entry.pipeline.error is not None:
            self._begin_to_close(entry)
        else:
            entry.closing = asyncio.get_running_loop().call_later(_IDLE_S, self._begin_to_close, entry)

    async def close(self, patience_s: float) -> None:
        """Close all pipelines, and wait so long for that."""
        for entry in list(self._entries.values()):
            self._begin_to_close(entry)
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._connections.close()

    def abandon(self) -> None:
        """Drop connections to brokers without closing them: in a forked child they belong to the parent."""
        error = ProduceError("TUBEMQ_PRODUCER_FORKED", owner=os.getppid(), process=os.getpid())
        for entry in self._entries.values():
            entry.pipeline.abandon(error)

    def _begin_to_close(self, entry: PipelineEntry) -> None:
        """Take a pipeline out, and close it in a task of its own, for which ``close`` waits."""
        if entry.closing is not None:
            entry.closing.cancel()
        self._entries = {key: value for key, value in self._entries.items() if value is not entry}
        self._quota.give(entry.owner)
        task = asyncio.create_task(entry.pipeline.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def read_batch(
    message: pb.MessageBatch, sender: str, *, checksums: bool
) -> tuple[SendBatch, OutgoingBatch, dict[int, TubeMQError]]:
    """Return the messages of a batch, how they are written, and why some cannot be, by their rows."""
    messages = sends.from_proto(message)
    batch, unwritable = outgoing_batch(messages, checksums=checksums)
    batch.sender = sender
    refused = {row: refused_message(error, batch.describe(row, sender)) for row, error in unwritable.items()}
    return messages, batch, dict(refused)


async def refusals_of(
    pipeline: BrokerPipeline, messages: SendBatch
) -> dict[tuple[int, int | None], TubeMQError]:
    """Ask where messages go, as long as it may help; return why not, by codes of topics and partitions."""
    topics, partitions = messages.topics, messages.partitions
    refusals: dict[tuple[int, int | None], TubeMQError] = {}
    for topic, name in enumerate(topics.values):
        if (error := await _refusal(pipeline, name, None)) is not None:
            refusals[topic, None] = error
    if partitions is not None:
        count = len(partitions.values)
        for pair in np.unique(topics.codes * count + partitions.codes).tolist():
            topic, place = divmod(pair, count)
            named = partitions.values[place]
            if named is None or (topic, None) in refusals:
                continue
            if (error := await _refusal(pipeline, topics.values[topic], named)) is not None:
                refusals[topic, place] = error
    return refusals


async def _refusal(
    pipeline: BrokerPipeline, topic: str, partition: tuple[int, int] | None
) -> TubeMQError | None:
    if pipeline.place_now(topic, partition) is None:
        try:
            await pipeline.place(topic, partition)
        except TubeMQError as error:
            return error
    return None


def refused_rows(
    messages: SendBatch, refusals: Mapping[tuple[int, int | None], TubeMQError]
) -> dict[int, TubeMQError]:
    """Return why messages are refused, by their rows."""
    refused: dict[int, TubeMQError] = {}
    for (topic, place), error in refusals.items():
        rows = messages.topics.codes == topic
        if place is not None and messages.partitions is not None:
            rows &= messages.partitions.codes == place
        refused |= dict.fromkeys(np.flatnonzero(rows).tolist(), error)
    return refused


def accepted_stretches(count: int, refused: Collection[int]) -> list[list[int]]:
    """Return where rows begin and end that follow one another and are not refused."""
    accepted = np.zeros(count + 2, np.int8)
    accepted[1:-1] = 1
    accepted[np.fromiter(refused, np.int64, len(refused)) + 1] = 0
    borders: list[list[int]] = np.flatnonzero(np.diff(accepted)).reshape(-1, 2).tolist()
    return borders


def answer_of(
    number: int, outcome: BatchOutcome, receipts: Iterable[Receipt], *, per_message: bool
) -> pb.PublishStreamResponse:
    """Return the answer to a batch."""
    answer = pb.PublishStreamResponse(number=number, receipts=values.receipts_to_proto(receipts))
    for error, rows in _grouped(outcome.errors):
        answer.failures.add(error=failures.to_proto(error), rows=pack(np.array(rows), INT32))
    if per_message:
        columns, outcomes = outcome.columns(), answer.outcomes
        outcomes.partitions.extend(map(values.partition_to_proto, columns.partitions))
        stored = columns.places >= 0
        outcomes.partition_codes = pack(columns.places, INT32)
        outcomes.offsets = pack(np.where(stored, columns.offsets, 0), INT64)
        for name, column in (("message_ids", columns.message_ids), ("append_times_ms", columns.append_times)):
            if column.any():
                told = np.where(stored & (column == 0), -1, column)
                setattr(outcomes, name, pack(told, INT64))
        if (columns.attempts > 1).any():
            outcomes.attempts = pack(columns.attempts, INT32)
        if columns.unanswered.any():
            outcomes.unanswered = pack(columns.unanswered, INT32)
    return answer


def _grouped(errors: Mapping[int, TubeMQError]) -> Iterable[tuple[TubeMQError, list[int]]]:
    """Return errors with the rows that they are about.

    Beyond the first ``_MOST_ERRORS`` of them, rows have the last error of the same condition: an answer must
    not be longer than its batch.
    """
    groups: dict[int, tuple[TubeMQError, list[int]]] = {}
    latest: dict[str, list[int]] = {}
    for row, error in sorted(errors.items()):
        group = groups.get(id(error))
        if group is None:
            if len(groups) >= _MOST_ERRORS and error.condition in latest:
                latest[error.condition].append(row)
                continue
            group = groups[id(error)] = (error, [])
        latest[error.condition] = group[1]
        group[1].append(row)
    return groups.values()
