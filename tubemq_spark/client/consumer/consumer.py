"""What group consumers and assigned consumers show to threads: each call is one of the core, in its loop.

Any number of threads may share a consumer. Each waits only for what it has asked for, and only there a signal
can interrupt it: then the call is cancelled, and a batch that did not reach its user comes again. No lock is
held while user code runs, so a signal handler and a callback may call the consumer, too.

The states of a consumer stand in ``core``. A forked child of the process has no part in it: there every call
is refused, and ``close`` does nothing. A consumer that its user drops while it is open is collected, and its
core closes.
"""

import collections
import datetime
import functools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, ParamSpec, Self, TypeVar

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.core import ConsumerCore
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.values import (
    Batch,
    Confirmed,
    ConsumedPosition,
    ConsumeStatus,
    Part,
    checked_limit,
)
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.names.guesses import AnsweringType, answers_guesses
from tubemq_spark.client.reader.records import Record
from tubemq_spark.client.registry import process_registry
from tubemq_spark.errors import ConsumeError, DataLossError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net import loop
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


@answers_guesses
class ConsumerBase(metaclass=AnsweringType):
    """What consumers of all forms show at once, from anywhere."""

    _kind: ClassVar[str]
    """What it is, in words."""

    def __init__(self, core: ConsumerCore) -> None:
        """Take over a core that is not open; clients make consumers."""
        self._core = core
        self._unfinished: collections.deque[Part] = collections.deque()
        """What is left of batches that a limit has cut."""
        self._finalizer: weakref.finalize[..., ConsumerBase] | None = None

    def _close_when_forgotten(self) -> None:
        """Close the core when the user drops this object."""
        name = f"{self._kind} {self.client_id}"
        self._finalizer = weakref.finalize(self, _close_forgotten, name, self._core)
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        """Whether the consumer is not open: it was never opened, or is closed."""
        return self._core.state.life is not Life.OPEN

    def stop(self) -> None:
        """Fetch nothing more; may be called in any line, of a signal handler too, and returns at once.

        Who waits for messages gets the error that the consumer is stopped, so ``run``, ``messages`` and
        iteration end. Batches that are out may be confirmed. Close it after that: a ``with`` block does so.
        """
        self._core.stop()

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
        return self._core.state.client_id

    @property
    def config(self) -> ClientConfig:
        """The settings."""
        return self._core.state.config

    @property
    def subscription(self) -> Subscription:
        """The topics, with the message types that are wanted."""
        return self._core.state.subscription

    def is_filtered(self, topic: str) -> bool:
        """Whether the subscription names message types of a topic."""
        return topic in self.subscription.filtered_topics

    @property
    def connected(self) -> tuple[TopicPartition, ...]:
        """The partitions that are connected now, sorted."""
        return self._call(self._core.state.held)

    def positions(self) -> dict[TopicPartition, ConsumedPosition]:
        """Return the positions of the connected partitions, as this consumer knows them; ask no server."""
        return self._call(self._core.positions)

    def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the group's position in connected partitions, in index bytes; by default in all.

        A reader that takes over begins there. No server is asked: only the one that holds a partition moves
        its position, but for an administrator, of whom the next fetch tells. With ``confirm_locally`` brokers
        hear of a confirmation with the next fetch, and until then it does not count here.

        Raises:
            ConsumeError: a partition is not held.
            OptionError: something else than partitions was given.
        """
        return self._call(self._core.committed, partitions)

    def missed_heartbeats(self) -> dict[Endpoint, int]:
        """Return the brokers that do not renew leases now, each with how many heartbeats in a row it missed.

        A lease ends 30 s after the broker has heard of it last.
        """
        return self._call(self._core.missed_heartbeats)

    def pause(self, partitions: TopicPartition | Iterable[TopicPartition]) -> None:
        """Fetch nothing of one or several partitions until they are resumed, also if they come only later.

        They stay with this consumer. A batch that is out may be confirmed.

        Raises:
            ConsumeError: the consumer is not open.
            OptionError: something else than partitions was given.
        """
        self._call(self._core.pause, partitions)

    def resume(self, partitions: TopicPartition | Iterable[TopicPartition] | None = None) -> None:
        """Fetch one or several partitions again; by default all that were paused.

        Raises:
            ConsumeError: the consumer is not open.
            OptionError: something else than partitions was given.
        """
        self._call(self._core.resume, partitions)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused, also those that are not connected."""
        return self._call(self._core.paused)

    @property
    def consume_status(self) -> ConsumeStatus:
        """Whether messages can be had now, and if not, why."""
        return self._call(self._core.consume_status)

    def _unfinished_part(self) -> Part | None:
        """Return the oldest part that is left of a batch that can still be confirmed."""
        while not self.closed:
            try:
                part = self._unfinished.popleft()
            except IndexError:
                break
            if self._call(self._core.is_out, part.batch):
                return part
        return None

    def _call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        """Call a function of the core, which waits for nothing, and return its result."""
        self._core.check_process()
        return function(*arguments, **named)


@answers_guesses
class Consumer(ConsumerBase):
    """A consumer of either kind; threads may share it."""

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches as they come, until the consumer is closed; each is to be confirmed."""
        self._core.check_process()
        self._core.state.check_open()
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
        self._core.check_process()
        core = self._core
        try:
            loop.run(core.open())
            self._close_when_forgotten()
            process_registry().enter(self, self._kind, closes_at_exit=True)
            if self.closed:  # by a signal handler
                process_registry().leave(self)
        except BaseException:
            if self._finalizer is None and not self.closed:  # a signal came when it was open
                core.begin_to_close()
            raise
        return self

    def close(self, timeout: float | None = None) -> bool:
        """Give everything up and leave the master; batches that are not confirmed count as ``rollback`` says.

        Other threads that fetch get the error that the consumer is closed. Errors of servers are only logged.
        A callback of the consumer does not wait: it closes in the background.

        Args:
            timeout: how many seconds to wait for servers at most. The rest goes on in the background,
                and ends with the process. None: until all were told or did not answer.

        Returns:
            Whether the consumer has closed.
        """
        core = self._core
        if core.inherited:
            return True
        if self._finalizer is not None:
            self._finalizer.detach()
        process_registry().leave(self)
        core.begin_to_close()
        if not core.is_used:
            return True
        if core.user_code.is_current():
            return False
        return loop.run(core.close(timeout))

    # Partitions.

    def wait_until_ready(self, timeout_ms: int) -> bool:
        """Wait until at least one partition is held, -1: for as long as that takes; return whether one is.

        Raises:
            ConsumeError: the consumer is not open.
        """
        self._core.check_process()
        return loop.run(self._core.wait_until_ready(timeout_ms))

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
        self._core.check_process()
        return loop.run(self._core.seek(partition, offset))

    def seek_to_beginning(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on with the first messages that are kept; by default in all partitions that are held.

        They are moved one after the other: after an error, those before it have been.

        Raises:
            TubeMQError: as ``seek``.
            OptionError: something else than partitions was given.
        """
        self._core.check_process()
        return loop.run(self._core.seek_to_edge(Edge.EARLIEST, partitions))

    def seek_to_end(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ConsumedPosition]:
        """Go on behind the last messages; see ``seek_to_beginning``."""
        self._core.check_process()
        return loop.run(self._core.seek_to_edge(Edge.LATEST, partitions))

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
        self._core.check_process()
        return loop.run(self._core.seek_to_time(time, partitions))

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
        self._core.check_process()
        return loop.run(self._core.lag(partitions))

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
        self._core.check_process()
        core = self._core
        fetching = loop.Submitted(core.fetch(timeout_ms, patient=True))
        try:
            return loop.finish(fetching)
        except BaseException:
            fetching.when_done(functools.partial(_put_back, core, fetching))
            raise
        finally:
            del fetching

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
        self._core.check_process()
        context = batch.context if isinstance(batch, Batch) else batch
        return loop.run(self._core.confirm(context, consumed=consumed))

    def messages(self, limit: int | None = None) -> Iterator[Record]:
        """Yield messages one by one, until the consumer is stopped or closed, or there were so many.

        A batch is confirmed when the message behind its last one is asked for, so also when the loop ends by
        itself. All of it comes again after a ``break`` or an exception in the middle of a batch, when the
        consumer is closed there, and when it could not be confirmed, which is logged.

        Args:
            limit: after how many messages to end, which are confirmed then. Of a batch whose records have no
                offsets the rest comes first in the next ``messages``, and it is confirmed behind that.

        Raises:
            OptionError: the limit is not a whole number from 1 on.
            TubeMQError: as ``fetch``.
            DataLossError: as ``confirm``.
        """
        return self._messages(checked_limit(limit))

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
                self._end(Part.of(batch), consumed=consumed)

    # Inside.

    def _messages(self, limit: int | None) -> Iterator[Record]:
        batches, left = iter(self), limit
        while left != 0 and (part := self._unfinished_part() or next(map(Part.of, batches), None)):
            part = part.of_at_most(left)
            left = None if left is None else left - len(part)
            consumed = False
            try:
                yield from part.records
                consumed = True
            finally:
                self._end(part, consumed=consumed)

    def _end(self, part: Part, *, consumed: bool) -> None:
        """Confirm a part of a batch, or roll the batch back, for a loop, which goes on when that fails."""
        if self.closed:
            return
        try:
            if not consumed or not part.rest:
                self.confirm(part.batch, consumed=consumed)
            elif part.end_offset is None:
                self._unfinished.append(part.following())
            else:
                self.seek(part.batch.partition, part.end_offset)
        except TubeMQError as error:
            self._pass_over(part.batch, error, consumed=consumed)

    def _call(
        self, function: Callable[Arguments, Value], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Value:
        self._core.check_process()
        return loop.run(_called(functools.partial(function, *arguments, **named)))


async def _called(function: Callable[[], Value]) -> Value:
    """Call a function in the loop, and return its result."""
    return function()


def _put_back(core: ConsumerCore, fetching: loop.Submitted[Batch | None]) -> None:
    """Take a batch back that did not reach its user, whose thread was interrupted."""
    if (batch := fetching.returned) is not None:
        loop.call_soon(core.put_back, batch)


def _close_forgotten(name: str, core: ConsumerCore) -> None:
    """Close what its user forgot to close, without waiting: the garbage collector calls this anywhere."""
    if not core.inherited:
        core.begin_to_close()
        warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)


class GroupConsumer(Consumer):
    """Reads the partitions that the master gives it; threads may share it.

    It is a member of a group. The master shares partitions out again whenever a member comes or goes.
    The first partitions come with the master's next balancing, up to a minute after ``open``; then they come
    and go with the other members of the group. Batches come from all partitions in turn (``fetch``), one at a
    time from each, and are confirmed (``confirm``).

    **At least once**: what was not confirmed comes again, to this member or to another. Before a partition
    goes to another member its batch has ``rebalance_wait_ms`` to be confirmed.

    **Errors** of one partition do not hold up the others. A partition whose broker is away rests and comes
    back; one that another member has taken is given up, and the master is told.

    As a context manager it opens and closes itself.

        with client.group_consumer("clicks") as consumer:  # or consumer.open() and consumer.close()
            consumer.wait_until_ready(timeout_ms=60_000)
            while (batch := consumer.fetch(timeout_ms=1000)) is not None:
                consumer.confirm(batch)

    With less code, of which the first confirms when the function returns, and the second as it goes on:

        consumer.run(handle_batch)
        for record in consumer.messages(limit=100):
            print(record.text())

    The other calls:

        consumer.positions()
        consumer.committed(partition)
        consumer.lag(partition)
        consumer.seek(partition, 2800)
        consumer.seek_to_beginning(partition)
        consumer.seek_to_end()
        consumer.seek_to_time(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        consumer.pause(partition)
        consumer.resume()
        consumer.is_filtered("clicks")
        consumer.missed_heartbeats()
        consumer.stop()
    """

    _kind = "group consumer"
