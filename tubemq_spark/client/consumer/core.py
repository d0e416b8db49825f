"""What consumers of all kinds do, as coroutines of one event loop; their faces are the public classes.

Who fetches and confirms is a subclass: ``engine`` at brokers, ``client/remote/consumers.py`` at gateways.

A consumer is in one of these states; it never goes back:

========  ====================================================================================================
state     meaning
========  ====================================================================================================
new       made; nothing was asked of any server. ``open`` may be tried again when it failed
open      registered at the master, which knows its topics and what it holds; ``stop`` ends only fetching
closed    given up everything; every call but ``close`` is refused
========  ====================================================================================================

Invariants:

- The loop is the one in which the consumer was opened. Only ``stop`` and ``begin_to_close`` may be called
  from elsewhere: they leave a mark, and a note for the loop.
- A core owns its tasks: upkeep, fetches, confirmations, moves, and its closing, which waits for all others.
- What a user has asked for goes on when its caller waits no more (``carry_out``), but a wait for messages.
- ``closing`` is one task. When the loop ends before it has begun, as ``asyncio.run`` does with what its
  coroutine has left open, the upkeep is cancelled, and closes the consumer as its last act.
- Faces hold the core, and it never holds them: one that its user drops is collected, and closes the core.
"""

import abc
import asyncio
import dataclasses
import datetime
import functools
import logging
import os
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from tubemq_spark.client.config import ClientConfig, check_consumer_group
from tubemq_spark.client.consumer.life import ConsumerLife, Life, not_held
from tubemq_spark.client.consumer.user_code import OnChange, UserCode
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, ConsumeStatus
from tubemq_spark.client.consumer.waiting import WaitingLine
from tubemq_spark.client.consumer_config import WITHOUT_LIMIT, Node, Subscription
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.reader.times import offsets_of_time
from tubemq_spark.client.tasks import OwnedTasks, UsersLoop, is_cancelled
from tubemq_spark.errors import ConsumeError
from tubemq_spark.model import Endpoint, TopicPartition, TopicsLayout, require_aligned, rows_between
from tubemq_spark.offsets.loss import LossPolicy, LossRecord, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.settings.fields import bad_setting

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerSetup:
    """What a new consumer is to read, and for whom; how it reaches TubeMQ, its transport knows."""

    config: ClientConfig
    subscription: Subscription
    user_code: UserCode
    """Where ``on_loss`` and callbacks are called."""
    on_loss: LossPolicy = fail_on_loss
    on_assigned: OnChange | None = None
    """As ``on_revoked``, for members of a group."""
    on_revoked: OnChange | None = None
    node: Node | None = None
    """Which of how many assigned consumers of the group it is, if that was given."""
    follow_resets: bool = False
    """Whether an assigned consumer goes behind the last messages when an administrator wants its group to."""
    client_id: str | None = None
    """That of one that has gone, or holds partitions still, which it takes over; None: a new one."""


class Partitions(Protocol):
    """The partitions of a consumer, as far as it knows."""

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What the user has paused, held or not."""

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch nothing of partitions until they are resumed."""

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Fetch partitions again; by default all that were paused."""

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the group stands in the partitions that are held."""

    def status(self) -> ConsumeStatus:
        """Return whether messages can be had now."""


class ConsumerCore(abc.ABC):
    """A consumer of either kind, directly or through gateways."""

    line: WaitingLine
    """Those who wait for its batches."""

    def __init__(
        self, setup: ConsumerSetup, questions: Questions, state: ConsumerLife, partitions: Partitions
    ) -> None:
        """Reach no server; may be called in any thread. ``questions`` asks about the logs of partitions."""
        config = setup.config
        check_consumer_group(config.group, config.reader_groups)
        self.state = state
        self._partitions = partitions
        self.questions = questions
        self.user_code = setup.user_code
        self.tasks = OwnedTasks()
        self._on_loss = setup.on_loss
        self._loop = UsersLoop(
            lambda: ConsumeError("TUBEMQ_CONSUMER_LOOP", code=int(ErrCode.BAD_REQUEST), group=config.group)
        )
        self._open_lock = asyncio.Lock()
        self._upkeep: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Life.

    @property
    def is_used(self) -> bool:
        """Whether the consumer belongs to a loop, which it does from ``open`` on."""
        return self._loop.is_known

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that the consumer belongs to."""
        return os.getpid() != self.state.owner

    def check_process(self) -> None:
        """Raise an error in a fork of the process that the consumer belongs to."""
        if self.inherited:
            raise ConsumeError(
                "TUBEMQ_CONSUMER_FORKED",
                code=int(ErrCode.CLIENT_SHUTDOWN),
                owner=self.state.owner,
                process=os.getpid(),
            )

    def enter(self) -> None:
        """Bind the consumer to the loop that runs; raise an error if another one was first."""
        self._loop.enter()

    async def open(self) -> None:
        """Register at the master, and begin to keep what is held; when it is cancelled, nothing is left."""
        self.enter()
        self.user_code.name = self.state.client_id
        async with self._open_lock:
            if self.state.life is not Life.NEW:
                raise self.state.refusal()
            await self._start()
            if self._closing is not None:  # begun in between
                await self._leave()
                raise self.state.refusal()
            self.state.life = Life.OPEN
            self._upkeep = asyncio.create_task(self._keep(), name=f"upkeep of {self.state.client_id}")

    def stop(self) -> None:
        """Fetch nothing more, and wake those that wait for batches; any code may call it."""
        self.state.stopped = True
        self._loop.call_soon_threadsafe(self.state.changes.note)

    def begin_to_close(self) -> None:
        """Close the consumer in its loop; returns at once, any code may call it."""
        self.state.stopped = True
        if not self.is_used:
            self.state.life = Life.CLOSED
        self._loop.call_soon_threadsafe(self._begin_to_close)

    async def close(self, timeout: float | None = None) -> bool:
        """Give everything up and leave the master; return whether that has ended in time.

        When it is cancelled, or its time is over, closing goes on. A callback of the consumer does not wait.
        """
        if not self.is_used:
            self.state.life = Life.CLOSED
            return True
        self.enter()
        closing = self._begin_to_close()
        if self.user_code.is_current():
            return False
        await asyncio.wait([closing], timeout=timeout)
        return closing.done()

    def _begin_to_close(self) -> "asyncio.Task[None]":
        if self._closing is None:
            name = f"closing {self.state.client_id}"
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=name)
        return self._closing

    async def _close(self) -> None:
        self.state.stopped = True
        self.state.end()
        if self._upkeep is None:
            return  # ``open`` ends what it has begun
        try:
            if self._upkeep is not asyncio.current_task():
                self._upkeep.cancel()
                await asyncio.wait([self._upkeep])
            await self._give_up()
        except Exception:
            # The master is to be left all the same.
            logger.warning("%s could not give everything up", self.state.client_id, exc_info=True)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """End all that is left, and tell the master or the gateway."""
        await self.tasks.cancel()
        await self._end()
        await self.user_code.end()

    async def _keep(self) -> None:
        """Do what a consumer does beside its user's calls, until it closes."""
        try:
            await self._maintain()
        finally:
            if self.state.life is Life.OPEN:
                # The loop ends. It begins no task any more, ``closing`` neither, and waits for this one.
                self._closing = asyncio.current_task()
                await self._close()

    @abc.abstractmethod
    async def _start(self) -> None:
        """Register; after an error or a cancellation, as if never called."""

    @abc.abstractmethod
    async def _maintain(self) -> None:
        """Renew leases and do what else is due each period; cancelled when the consumer closes."""

    @abc.abstractmethod
    async def _give_up(self) -> None:
        """End what else goes on, and give up all partitions; nothing is fetched any more."""

    @abc.abstractmethod
    async def _end(self) -> None:
        """Leave the master or the gateway; errors are only logged."""

    async def carry_out(self, coroutine: Coroutine[Any, Any, Value], name: str) -> Value:
        """Run a coroutine to its end, also if its caller is cancelled, and return its result.

        After the consumer was closed in between, raise that.
        """
        task = self.tasks.start(coroutine, name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self.state.life is Life.CLOSED and not is_cancelled():
                raise self.state.refusal() from None
            raise

    # What is known without waiting.

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the partitions that are held stand, as this consumer has heard."""
        return self._partitions.positions()

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return where the group stands in partitions that are held, in index bytes; by default in all."""
        positions = self.positions()
        names = positions if partitions is None else several(partitions)
        for partition in names:
            if partition not in positions:
                raise not_held(partition)
        return {partition: positions[partition].offset for partition in names}

    def pause(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Fetch nothing of one or several partitions until they are resumed, also if they come only later."""
        self.state.check_open()
        self._partitions.pause(several(partitions))
        self.state.changes.note()

    def resume(self, partitions: TopicPartition | Iterable[TopicPartition] | None = None) -> None:
        """Fetch one or several partitions again; by default all that were paused."""
        self.state.check_open()
        self._partitions.resume(None if partitions is None else several(partitions))
        self.state.changes.note()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions, also those that are not connected."""
        return self._partitions.paused

    def missed_heartbeats(self) -> dict[Endpoint, int]:
        """Return the brokers that do not renew leases now, each with how many heartbeats it missed."""
        return dict(self.state.missed)

    def consume_status(self) -> ConsumeStatus:
        """Return whether messages can be had now, and if not, why."""
        return self._partitions.status()

    # Messages.

    async def fetch(self, timeout_ms: int | None, *, patient: bool = False) -> Batch | None:
        """Return the next batch; None: there was none in time. Cancelling it loses nothing.

        ``patient``: wait a moment longer while a partition is fetched that was not looked at.
        """
        self.state.check_fetch()
        if timeout_ms is None:
            timeout_ms = self.state.config.consumer.ready_wait_ms
        timeout_s = None if timeout_ms == WITHOUT_LIMIT else timeout_ms / 1000
        return await self.line.fetch(timeout_s, patient=patient)

    @abc.abstractmethod
    def is_out(self, batch: Batch) -> bool:
        """Return whether a batch that was handed out may still be confirmed."""

    @abc.abstractmethod
    def put_back(self, batch: Batch) -> None:
        """Take a batch back that did not reach its user; it comes again."""

    async def confirm(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; that is carried out also when its caller waits no more."""
        self.state.check_open()
        return await self.carry_out(self._confirm(context, consumed=consumed), f"confirming {context}")

    @abc.abstractmethod
    async def _confirm(self, context: str, *, consumed: bool) -> Confirmed:
        """Confirm a batch or roll it back; see ``Consumer.confirm``."""

    # Partitions.

    async def wait_until_ready(self, timeout_ms: int) -> bool:
        """Wait until at least one partition is held, -1: for as long as that takes; return whether one is."""
        state = self.state

        def is_ready() -> bool:
            state.check_running()
            return bool(state.connected)

        try:
            async with asyncio.timeout(None if timeout_ms == WITHOUT_LIMIT else timeout_ms / 1000):
                await state.changes.until(is_ready)
        except TimeoutError:
            return is_ready()
        return True

    async def seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition that is held; that is carried out also when its caller waits no more."""
        self.state.check_open()
        if not isinstance(target, Edge):
            require_aligned(target, str(partition))
        return await self.carry_out(self._seek(partition, target), f"moving {partition}")

    @abc.abstractmethod
    async def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        """Move a partition; see ``Consumer.seek``."""

    async def seek_all(
        self, targets: Mapping[TopicPartition, int | Edge]
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Move partitions, one after the other."""
        return {partition: await self.seek(partition, target) for partition, target in targets.items()}

    async def seek_to_edge(
        self, edge: Edge, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Move partitions to an end of their logs; by default all that are held."""
        return await self.seek_all(dict.fromkeys(self.committed(partitions), edge))

    async def seek_to_time(
        self,
        time: datetime.datetime | int,
        partitions: TopicPartition | Iterable[TopicPartition] | None,
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Move partitions to the messages of a time and later."""
        self.state.check_open()
        return await self.seek_all(await offsets_of_time(self.questions, self._layout_of(partitions), time))

    async def lag(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages follow the group's position; None: the broker does not answer."""
        self.state.check_open()
        layout, positions = self._layout_of(partitions), self.committed()
        ends = (await self.questions.bounds(layout)).by_store
        return {
            partition: rows_between(
                positions[partition], max(positions[partition], ends[partition.store_id].latest)
            )
            if partition.store_id in ends
            else None
            for partition in layout.partitions
        }

    def _layout_of(self, partitions: TopicPartition | Iterable[TopicPartition] | None) -> TopicsLayout:
        """Return where partitions are that are held."""
        brokers = {partition: self.state.endpoint_of(partition) for partition in self.committed(partitions)}
        places = {partition: endpoint for partition, endpoint in brokers.items() if endpoint is not None}
        return TopicsLayout(places, self._visit_token)

    @property
    def _visit_token(self) -> int:
        """What shows brokers that a master was asked; through gateways it is not needed."""
        return 0

    async def tell_loss(self, loss: LossRecord) -> None:
        """Ask ``on_loss`` what to do about records that are gone or damaged; what it raises is passed on."""
        if self._on_loss is fail_on_loss:
            fail_on_loss(loss)
        else:
            await self.user_code.call("on_loss", functools.partial(self._on_loss, loss))


def several(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return one or several partitions as a tuple."""
    # A partition is a tuple itself, and a text is something to iterate over.
    names = (partitions,) if isinstance(partitions, TopicPartition | str) else tuple(partitions)
    for name in names:
        if not isinstance(name, TopicPartition):
            raise bad_setting("partitions", repr(name), "partitions, each a TopicPartition")
    return names
