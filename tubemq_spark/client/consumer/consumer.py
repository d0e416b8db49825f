"""What group consumers and assigned consumers have in common: their life, and the way of a batch.

A consumer is in one of these states; it never goes back:

========  ====================================================================================================
state     meaning
========  ====================================================================================================
new       made; nothing was asked of any server. ``open`` may be tried again when it failed
open      registered at the master, which knows its topics and what it holds; ``stop`` ends only fetching
closed    given up everything; every call but ``close`` is refused
========  ====================================================================================================

A forked child of the process has no part in it: there every call is refused, and ``close`` does nothing.

The consumer holds its parts, and none of them holds the consumer: one that its user drops while it is open is
collected, and its upkeep closes what is left of it.
"""

import abc
import datetime
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import ClassVar, Final, Protocol, Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.fetching import Fetching, not_held
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.questions import Questions, offsets_of_time
from tubemq_spark.client.consumer.state import ConsumerState, Life
from tubemq_spark.client.consumer.values import Batch, Confirmed, ConsumedPosition, ConsumeStatus
from tubemq_spark.client.consumer.waiting import FetchingThreads
from tubemq_spark.client.consumer_config import WITHOUT_LIMIT
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.reader_names import check_consumer_group
from tubemq_spark.client.reentry import called_from_inside
from tubemq_spark.client.registry import process_registry
from tubemq_spark.client.steps import run
from tubemq_spark.client.subscription import Subscription
from tubemq_spark.errors import ConsumeError, DataLossError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.offsets.units import require_aligned, rows_between
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.settings.fields import bad_setting

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
"""How often a wait for partitions looks whether the consumer was stopped."""


class Keeping(Protocol):
    """What goes on for a consumer beside its user's calls; see ``upkeep``."""

    ended: "Future[None]"
    """Done when the consumer has closed."""

    def start(self) -> object:
        """Begin."""

    def close(self) -> object:
        """Close the consumer in the background; returns at once, takes no lock, and may be repeated."""

    def join(self, timeout: float | None) -> bool:
        """Wait until the consumer has closed, so many seconds at most; return whether it has."""


class ConsumerBase:
    """What consumers of all forms show without waiting."""

    _state: ConsumerState

    @property
    def closed(self) -> bool:
        """Whether the consumer is not open: not yet, or not any more."""
        return self._state.life is not Life.OPEN

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that the consumer belongs to."""
        return os.getpid() != self._state.owner

    def check_open(self) -> None:
        """Do nothing as long as the consumer can be used.

        Raises:
            ConsumeError: it is not open, or belongs to the process of which this one is a fork.
        """
        self.check_process()
        self._state.check_open()

    def stop(self) -> None:
        """Fetch nothing more; may be called in any line, of a signal handler too, and returns at once.

        Who waits for messages gets the error that the consumer is stopped, so ``run``, ``messages`` and
        iteration end. Batches that are out may be confirmed. Close it after that: a ``with`` block does so.
        """
        self._state.stop()

    def check_process(self) -> None:
        """Do nothing in the process that the consumer belongs to.

        Raises:
            ConsumeError: this is another one.
        """
        if self.inherited:
            raise ConsumeError(
                "TUBEMQ_CONSUMER_FORKED",
                code=int(ErrCode.CLIENT_SHUTDOWN),
                owner=self._state.owner,
                process=os.getpid(),
            )

    def _pass_over(self, batch: Batch, error: TubeMQError, *, consumed: bool) -> None:
        """Log why a batch could not be confirmed or rolled back; raise a loss that was found with it.

        What has ended the loop, such as Ctrl-C, is never replaced: then nothing was consumed.
        """
        if consumed and isinstance(error, DataLossError):
            raise error
        if not self.closed and error.condition != "TUBEMQ_CONFIRM_SOUGHT":
            logger.warning("a batch of %s comes again: %s", batch.partition, error)

    @property
    def client_id(self) -> str:
        """The name under which servers know this consumer."""
        return self._state.client_id

    @property
    def config(self) -> ClientConfig:
        """The settings."""
        return self._state.config

    @property
    def subscription(self) -> Subscription:
        """The topics, with the message types that are wanted."""
        return self._state.subscription

    def is_filtered(self, topic: str) -> bool:
        """Whether only some message types of a topic are wanted."""
        return topic in self._state.subscription.filtered_topics

    @property
    def connected(self) -> tuple[TopicPartition, ...]:
        """What is held now, sorted."""
        self.check_process()
        return self._state.held()

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return where the partitions that are held stand, as this consumer has heard; asks no server."""
        self.check_process()
        with self._state.changed:
            return self._state.cache.positions()

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return where the group stands in partitions that are held, in index bytes; by default in all.

        A reader that takes over begins there. No server is asked: only the one that holds a partition moves
        its position, but for an administrator, of whom the next fetch tells. With ``confirm_locally`` brokers
        hear of a confirmation with the next fetch, and until then it does not count here.

        Raises:
            ConsumeError: a partition is not held.
            OptionError: something else than partitions was given.
        """
        positions = self.positions()
        names = positions if partitions is None else _several(partitions)
        for partition in names:
            if partition not in positions:
                raise not_held(partition)
        return {partition: positions[partition].offset for partition in names}

    def _held(self, partitions: TopicPartition | Iterable[TopicPartition] | None) -> list[TopicPartition]:
        """Return some of the partitions that are held; by default all."""
        return list(self.committed(partitions))

    def missed_heartbeats(self) -> dict[Endpoint, int]:
        """Return the brokers that do not renew leases now, each with how many heartbeats in a row it missed.

        A lease ends 30 s after the broker has heard of it last.
        """
        self.check_process()
        with self._state.changed:
            return dict(self._state.missed)

    def pause(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Fetch nothing of one or several partitions until they are resumed, also if they come only later.

        They stay with this consumer. A batch that is out may be confirmed.

        Raises:
            ConsumeError: the consumer is not open.
            OptionError: something else than partitions was given.
        """
        self.check_open()
        with self._state.changed:
            self._state.cache.pause(_several(partitions))
            self._state.changed.notify_all()

    def resume(self, partitions: TopicPartition | Iterable[TopicPartition] | None = None) -> None:
        """Fetch one or several partitions again; by default all that were paused.

        Raises:
            ConsumeError: the consumer is not open.
            OptionError: something else than partitions was given.
        """
        self.check_open()
        with self._state.changed:
            self._state.cache.resume(None if partitions is None else _several(partitions))
            self._state.changed.notify_all()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What was paused, whether it is held or not."""
        self.check_process()
        with self._state.changed:
            return self._state.cache.paused

    @property
    def consume_status(self) -> ConsumeStatus:
        """Whether messages can be had now, and if not, why."""
        self.check_process()
        with self._state.changed:
            return self._state.cache.status()


class Consumer(ConsumerBase, abc.ABC):
    """A consumer of either kind; threads may share it."""

    kind: ClassVar[str]
    closes_at_exit: ClassVar[bool] = True
    _upkeep: Keeping
    _questions: Questions

    def __init__(
        self,
        config: ClientConfig,
        subscription: Subscription,
        fetching: Callable[[ConsumerState], Fetching] = Fetching,
    ) -> None:
        check_consumer_group(config.group, config.reader_groups)
        self._control = FlowControl()
        self._state = ConsumerState(config, subscription, self._control)
        self._finalizer: weakref.finalize[..., Self] | None = None
        self.fetching = fetching(self._state)
        """What the asynchronous form shares; not for users."""
        self._threads = FetchingThreads(self.fetching)
        self._state.changed.listener = self._threads.turns.wake
        self._life = threading.Lock()
        """Held while the state changes."""

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches as they come, until the consumer is closed; each is to be confirmed."""
        self.check_open()
        while True:
            try:
                batch = self.fetch()
            except ConsumeError as error:
                if error.code == ErrCode.CLIENT_SHUTDOWN:
                    return
                raise
            if batch is not None:
                yield batch

    # Life.

    def open(self) -> Self:
        """Register at the master, and begin to keep what is held.

        Raises:
            RpcError: the master refuses: an unknown topic (431), a group that may not read it (450, 455),
                other members with other settings (424 to 430), or wrong credentials (415).
            TubeMQConnectionError: no master answered.
            ConsumeError: the consumer is open already, or closed.
        """
        self.check_process()
        with self._life:
            if self._state.life is not Life.NEW:
                raise self._state.refusal()
            self._start()
            self._finalizer = weakref.finalize(
                self, _close_forgotten, f"{self.kind} {self.client_id}", self._upkeep, self._state.owner
            )
            self._finalizer.atexit = False
            process_registry().enter(self)
        return self

    def close(self, timeout: float | None = None) -> bool:
        """Give everything up and leave the master; batches that are not confirmed count as ``rollback`` says.

        Other threads that fetch get the error that the consumer is closed. Errors of servers are only logged.

        In a signal handler or a callback that runs on top of a call of this client, this returns at once: the
        thread may hold what closing needs. The consumer stops, and closes in the background.

        Args:
            timeout: how many seconds to wait for servers at most. The rest goes on in the background,
                and ends with the process. None: until all were told or did not answer.

        Returns:
            Whether the consumer has closed.
        """
        if self.inherited:
            return True
        self._state.stop()
        if called_from_inside():
            self._upkeep.close()
            return False
        deadline = None if timeout is None else Deadline.after_ms(int(timeout * 1000))
        if not self._life.acquire(timeout=-1 if deadline is None else deadline.remaining()):
            return False
        try:
            self._begin_to_close()
        finally:
            self._life.release()
        return self._upkeep.join(None if deadline is None else deadline.remaining())

    def begin_to_close(self) -> "Future[None]":
        """Close as ``close`` does, and return at once what is done when the consumer has closed.

        For event loops; not while another thread opens it.
        """
        with self._life:
            self._begin_to_close()
            if self._upkeep.join(0) and not self._upkeep.ended.done():  # it was never open
                self._upkeep.ended.set_result(None)
        return self._upkeep.ended

    def _begin_to_close(self) -> None:
        """Refuse everything from now on, and begin to close; hold ``_life``."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._state.end()
        process_registry().leave(self)
        self._upkeep.close()

    # Partitions.

    def wait_until_ready(self, timeout_ms: int) -> bool:
        """Wait until at least one partition is held, -1: for as long as that takes; return whether one is.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self.check_open()
        state = self._state
        deadline = None if timeout_ms == WITHOUT_LIMIT else Deadline.after_ms(timeout_ms)
        with state.changed:
            while not state.connected and not (deadline and deadline.expired):
                # A signal handler that stops the consumer cannot wake this.
                state.changed.wait(min(_LOOK_S, deadline.remaining()) if deadline else _LOOK_S)
                state.check_running()
            state.check_running()
            return bool(state.connected)

    # Where it reads.

    def seek(self, partition: TopicPartition, offset: int) -> ConsumedPosition:
        """Go on elsewhere in a partition that is held; the group's position is there from then on.

        A batch of it that is out cannot be confirmed any more (``TUBEMQ_CONFIRM_SOUGHT``), which ``run`` and
        ``messages`` pass over. After an error the partition goes on where it stood, and that batch comes
        again; a member of a group whose broker did not answer may have been moved all the same.

        May be called by any thread at any time, but not by ``on_loss`` or a signal handler.

        Args:
            partition: a partition that is held.
            offset: where to go on, in index bytes.

        Returns:
            Where it stands now.

        Raises:
            ConsumeError: the partition is not held (404); the consumer is not open (420), or is a member of a
                group through gateways, whose protocol has no such call.
            OffsetFormatError: the offset is negative or not a multiple of 28.
            DataLossError: the offset is not in the log, by ``on_loss``.
            TubeMQError: the broker does not answer, or refuses.
        """
        require_aligned(offset, str(partition))
        return self._seek(partition, offset)

    def seek_to_beginning(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the first messages that are kept; by default in all partitions that are held.

        They are moved one after the other: after an error, those before it have been.

        Raises:
            TubeMQError: as ``seek``.
            OptionError: something else than partitions was given.
        """
        return self._seek_all(dict.fromkeys(self._held(partitions), Edge.EARLIEST))

    def seek_to_end(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on behind the last messages; see ``seek_to_beginning``."""
        return self._seek_all(dict.fromkeys(self._held(partitions), Edge.LATEST))

    def seek_to_time(
        self,
        time: datetime.datetime | int,
        partitions: TopicPartition | Iterable[TopicPartition] | None = None,
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the messages of a time and later, or behind the last one if there are none.

        Messages carry the minute that their producer gave them, in ``message_time_zone``. All messages before
        the position are earlier, as far as some looks into the log tell; behind it there may be earlier ones.
        It takes some 25 fetches per partition.

        Args:
            time: with a time zone, or in milliseconds since 1970.
            partitions: where; by default in all that are held.

        Raises:
            OptionError: the time is not one, or the messages of a partition carry none.
            TubeMQError: as ``seek_to_beginning``.
        """
        return self._seek_all(self.offsets_of_time(time, partitions))

    def offsets_of_time(
        self,
        time: datetime.datetime | int,
        partitions: TopicPartition | Iterable[TopicPartition] | None = None,
    ) -> dict[TopicPartition, int | Edge]:
        """Return where ``seek_to_time`` goes; what the asynchronous form shares, not for users."""
        self.check_open()
        places = self._places(partitions)
        return offsets_of_time(self._questions, places, time, self.config.message_time_zone)

    def lag(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return how many messages follow the group's position in partitions that are held; by default all.

        Brokers are asked where their logs end now. Where partitions share a store, those of the others count
        too.
        None: the broker does not answer.

        Raises:
            ConsumeError: a partition is not held, or the consumer is not open.
            OptionError: something else than partitions was given.
            TubeMQError: no gateway answered.
        """
        self.check_open()
        places, positions = self._places(partitions), self.committed()
        ends = self._questions.bounds(
            {partition.store_id: endpoint for partition, endpoint in places.items()}
        ).by_store
        return {
            partition: rows_between(
                positions[partition], max(positions[partition], ends[partition.store_id].latest)
            )
            if partition in positions and partition.store_id in ends
            else None
            for partition in places
        }

    def _places(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, Endpoint]:
        """Return the brokers of partitions that are held."""
        brokers = {partition: self._state.endpoint_of(partition) for partition in self._held(partitions)}
        return {partition: endpoint for partition, endpoint in brokers.items() if endpoint is not None}

    def _seek(self, partition: TopicPartition, target: int | Edge) -> ConsumedPosition:
        self.check_open()
        return run(self.fetching.seeking(partition, target))

    def _seek_all(
        self, targets: Mapping[TopicPartition, int | Edge]
    ) -> dict[TopicPartition, ConsumedPosition]:
        return {partition: self._seek(partition, target) for partition, target in targets.items()}

    # Messages.

    def fetch(self, timeout_ms: int | None = None) -> Batch | None:
        """Return messages of the partition that has waited longest; None when there were none in time.

        ``consume_status`` says why there are none.

        Args:
            timeout_ms: how long to wait; 0: only until each partition was asked once, -1: until there are
                some. By default ``ready_wait_ms``. A broker that is silent prolongs it by 0.2 s at most.

        Raises:
            ConsumeError: the consumer is not open, or was stopped or closed while this waited (420).
            DataLossError: records are gone or damaged, by ``on_loss``. Their partition was given up.
            RpcError: a broker refuses a partition for good. It was given up. Or the master does not take this
                member of a group any more.
        """
        self.check_process()
        self._state.check_fetch()
        if timeout_ms is None:
            timeout_ms = self.config.consumer.ready_wait_ms
        return self._threads.fetch(timeout_ms)

    def confirm(self, batch: Batch | str, *, consumed: bool = True) -> Confirmed:
        """Confirm a batch: the group's position moves behind it. Or roll it back, so that it comes again.

        Args:
            batch: the batch, or its ``context``.
            consumed: False rolls it back.

        Raises:
            ConsumeError: the batch was confirmed before, or not in time (400), or its partition was given up
                (404); the consumer is not open (420).
            OptionError: the context is not one.
            DataLossError: the broker passed over records, by ``on_loss``; the batch is confirmed.
            TubeMQError: the broker did not confirm it, as far as is known. It comes again; to a member of a
                group only if the broker has not carried the request out, of which just the answer was lost.
        """
        self.check_open()
        context = batch.context if isinstance(batch, Batch) else batch
        return self.fetching.confirm(context, consumed=consumed)

    def messages(self) -> Iterator[Record]:
        """Yield messages one by one, until the consumer is closed.

        A batch is confirmed when the message behind its last one is asked for. All of it comes again
        after a stop or an exception in the middle of a batch, and when it could not be confirmed, which is
        logged.

        Raises:
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        for batch in self:
            consumed = False
            try:
                yield from batch
                consumed = True
            finally:
                self._end(batch, consumed=consumed)

    def run(self, handle: Callable[[Batch], object]) -> None:
        """Call a function with each batch, until the consumer is closed, for example by that function.

        The batch is confirmed when the function returns, and rolled back when it raises; the exception is
        passed on. When a batch could not be confirmed, because its broker was away, the function took longer
        than ``confirm_timeout_ms``, or another member has the partition now, that is logged, and its messages
        come again. Several threads may run at once: a partition's batches still come one after the other.

        Raises:
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        for batch in self:
            consumed = False
            try:
                handle(batch)
                consumed = True
            finally:
                self._end(batch, consumed=consumed)

    # Inside.

    def _end(self, batch: Batch, *, consumed: bool) -> None:
        """Confirm a batch or roll it back for a loop, which goes on when that fails."""
        if self.closed:
            return
        try:
            self.confirm(batch, consumed=consumed)
        except TubeMQError as error:
            self._pass_over(batch, error, consumed=consumed)

    @abc.abstractmethod
    def _start(self) -> None:
        """Register, open the state, and start the threads; or raise, as if never called."""


def _several(partitions: TopicPartition | Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    # A partition is a tuple itself, and a text is something to iterate over.
    several = (partitions,) if isinstance(partitions, TopicPartition | str) else tuple(partitions)
    for one in several:
        if not isinstance(one, TopicPartition):
            raise bad_setting("partitions", repr(one), "partitions, each a TopicPartition")
    return several


def _close_forgotten(name: str, upkeep: Keeping, owner: int) -> None:
    """Close what its user forgot to close, without waiting: the garbage collector calls this anywhere."""
    if os.getpid() == owner:
        upkeep.close()
        warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)
