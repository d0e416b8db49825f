"""Telling users of group consumers which partitions come and go.

Calls are made one after the other, in the order in which partitions came and went, by a task that holds no
lock (``user_code``): so a callback may call the consumer, and take its time. What is told of several at once
is one call.

=========  =============================================================================================
partition  what its user can count on
=========  =============================================================================================
comes      no message of it is handed out until ``on_assigned`` has returned (``cache.hold``)
goes       ``on_revoked`` is called when its last batch was confirmed, or had its time, and before it is
           given up; behind that if it was lost
=========  =============================================================================================

A callback that raises is told by the next ``fetch`` (``TUBEMQ_CALLBACK_FAILED``). What has come is given up
then, since its user may not have done what messages need, and comes again. A member at a gateway keeps it: it
cannot give single partitions back. What holds the partitions decides that (``Holder.let_go``).
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from tubemq_spark.client.consumer.user_code import UserCode
from tubemq_spark.client.tasks import OwnedTasks, is_cancelled
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

OnChange = Callable[[tuple[TopicPartition, ...]], object]
"""Takes the partitions that have come, or go; sorted."""


class Holder(Protocol):
    """What holds the partitions of a consumer."""

    client_id: str
    """The name under which servers know the consumer."""

    @property
    def tell(self) -> Callable[[TubeMQError], object]:
        """Make a fetch raise an error."""

    async def let_go(self, partitions: Collection[TopicPartition], error: TubeMQError | None) -> None:
        """Hand out messages of partitions that have come from now on; ``error``: their call has failed."""


class _News(NamedTuple):
    comes: bool
    partitions: tuple[TopicPartition, ...]
    ended: "asyncio.Future[None]"


class Callbacks:
    """Makes the calls for one consumer."""

    def __init__(
        self,
        holder: Holder,
        tasks: OwnedTasks,
        user_code: UserCode,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
    ) -> None:
        """Tell nothing."""
        self._holder = holder
        self._tasks = tasks
        self._user_code = user_code
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._news: collections.deque[_News] = collections.deque()
        self._here: set[TopicPartition] = set()
        """What has come, and not gone."""
        self._last: asyncio.Future[None] | None = None
        self._is_telling = False
        """Whether a task makes calls."""

    @property
    def holds(self) -> bool:
        """Whether what comes is to be held until it was told."""
        return self._on_assigned is not None

    @property
    def settled(self) -> "asyncio.Future[None]":
        """What is done when all calls were made that are due by now; who waits for it may be cancelled."""
        return _done() if self._last is None else asyncio.shield(self._last)

    def assigned(self, partitions: Collection[TopicPartition]) -> "asyncio.Future[None]":
        """Tell that partitions have come, which are held, in the background; return what is done then."""
        self._here.update(partitions)
        return _done() if self._on_assigned is None else self._tell(partitions, comes=True)

    def revoked(self, partitions: Collection[TopicPartition]) -> "asyncio.Future[None]":
        """Tell that partitions go, or have gone, in the background, once; return what is done then."""
        going = self._here.intersection(partitions)
        self._here -= going
        return _done() if self._on_revoked is None else self._tell(going, comes=False)

    def _tell(self, partitions: Collection[TopicPartition], *, comes: bool) -> "asyncio.Future[None]":
        if not partitions:
            return _done()
        self._last = asyncio.get_running_loop().create_future()
        self._news.append(_News(comes, tuple(sorted(partitions)), self._last))
        self._begin()
        return self.settled

    def _begin(self) -> None:
        if self._news and not self._is_telling:
            self._is_telling = True
            telling = self._tasks.start(
                self._tell_all(), f"callbacks of {self._holder.client_id}", alone=True
            )
            telling.add_done_callback(self._end)

    def _end(self, _: "asyncio.Task[None]") -> None:
        self._is_telling = False
        self._begin()  # when it was cancelled, the others are to be told all the same

    async def _tell_all(self) -> None:
        while self._news:
            several = [self._news.popleft()]
            while self._news and self._news[0].comes is several[0].comes:
                several.append(self._news.popleft())
            try:
                await self._tell_of(
                    [partition for news in several for partition in news.partitions], comes=several[0].comes
                )
            except Exception:
                # What comes behind is to be told all the same.
                logger.warning("%s could not tell: %s", self._holder.client_id, several, exc_info=True)
            finally:
                for news in several:
                    news.ended.set_result(None)

    async def _tell_of(self, partitions: list[TopicPartition], *, comes: bool) -> None:
        name, call = ("on_assigned", self._on_assigned) if comes else ("on_revoked", self._on_revoked)
        error: ConsumeError | None = None
        try:
            if call is not None:
                await self._user_code.call(name, functools.partial(call, tuple(sorted(partitions))))
        except BaseException as cause:  # also sys.exit(), and that no thread could be started
            if is_cancelled():
                raise
            logger.warning("%s failed for %s", name, partitions, exc_info=True)
            error = ConsumeError(
                "TUBEMQ_CALLBACK_FAILED",
                code=int(ErrCode.BAD_REQUEST),
                callback=name,
                cause=repr(cause),
                partitions=", ".join(map(str, partitions)),
            )
            error.__cause__ = cause
        if comes:
            await self._holder.let_go(partitions, error)
        if error is not None:
            self._holder.tell(error)


def _done() -> "asyncio.Future[None]":
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
