"""Calling functions of a consumer's user: ``on_loss``, ``on_assigned`` and ``on_revoked``.

They never run in the event loop of the process. Those of a consumer for threads are called in threads of that
consumer, those of a consumer for coroutines in the loop of their user, where they may be coroutine functions.
Both have two lines, in which a call waits for the one before it: one for ``on_loss`` and one for the others,
since what those ask for, such as a ``seek``, may find a loss. A function that never returns holds up its
consumer, of which one warning tells.

**Callbacks** tell users of group consumers which partitions come and go: one after the other, in that order,
by a task that holds no lock. So a callback may call the consumer, and take its time. What is told of several
at once is one call.

=========  =============================================================================================
partition  what its user can count on
=========  =============================================================================================
comes      no message of it is handed out until ``on_assigned`` has returned (``cache.hold``)
goes       ``on_revoked`` is called when its last batch was confirmed, or had its time, and before it is
           given up; behind that if it was lost
=========  =============================================================================================

A callback that raises is told by the next ``fetch`` (``TUBEMQ_CALLBACK_FAILED``). What has come is given up
then, since its user may not have done what messages need, and comes again. A member at a gateway keeps it: it
cannot give single partitions back. What holds the partitions decides that (``ConsumerLife.let_go``).
"""

import asyncio
import collections
import contextlib
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, NamedTuple, Protocol

from tubemq_spark.client.consumer.life import ConsumerLife
from tubemq_spark.client.tasks import CallbackThread, OwnedTasks, is_cancelled
from tubemq_spark.errors import ConsumeError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

_SLOW_S: Final = 10.0
"""After how long a warning names a function that has not returned."""
_calls_for: contextvars.ContextVar["UserLoop | None"] = contextvars.ContextVar("calls_for", default=None)
OnChange = Callable[[tuple[TopicPartition, ...]], object]
"""Takes the partitions that have come, or go; sorted."""


class UserCode(Protocol):
    """Where functions of the user are called."""

    name: str
    """That of the consumer, for warnings."""

    def is_current(self) -> bool:
        """Return whether a function of the user calls this."""

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function, and wait for its end; what it raises is passed on."""

    async def end(self) -> None:
        """Call no functions any more."""


class UserThread:
    """Calls functions in threads, each of which is started for its first function."""

    def __init__(self) -> None:
        """Start no thread."""
        self._threads = {"losses": CallbackThread(), "callbacks": CallbackThread()}
        self.name = ""

    def is_current(self) -> bool:
        """Return whether a function of the user calls this."""
        return any(thread.is_current() for thread in self._threads.values())

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function in its thread, and wait for its end; what it raises is passed on."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def make() -> None:
            error: BaseException | None = None
            try:
                function()
            except StopIteration as raised:  # no future may have it
                error = RuntimeError(f"{name} raised {raised!r}")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 (the caller gets it, also sys.exit())
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, error)

        thread = self._threads[_line_of(name)]
        thread.name = f"tubemq-{_line_of(name)}-{self.name}"
        thread.start()
        thread.call_soon(make)
        await _warned_of(ended, f"{name} of {self.name}")

    async def end(self) -> None:
        """End the threads when they have made their calls; return at once."""
        for thread in self._threads.values():
            thread.end()


class UserLoop:
    """Calls functions, and coroutine functions, in the loop that runs."""

    def __init__(self) -> None:
        """Call nothing."""
        self.name = ""
        self._call_locks = {"losses": asyncio.Lock(), "callbacks": asyncio.Lock()}

    def is_current(self) -> bool:
        """Return whether a function of the user calls this, or a task that it has begun."""
        return _calls_for.get() is self

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function, and await what it returns; what it raises is passed on."""
        async with self._call_locks[_line_of(name)]:
            token = _calls_for.set(self)
            try:
                result = function()
                if inspect.isawaitable(result):
                    await _warned_of(asyncio.ensure_future(result), f"{name} of {self.name}")
            finally:
                _calls_for.reset(token)

    async def end(self) -> None:
        """Do nothing."""


def _line_of(name: str) -> str:
    return "losses" if name == "on_loss" else "callbacks"


async def _warned_of(ended: Awaitable[object], what: str) -> None:
    """Wait for the end of a function; warn once when it takes long."""
    warning = asyncio.get_running_loop().call_later(
        _SLOW_S, logger.warning, "%s has not returned for %d s, and holds up its consumer", what, _SLOW_S
    )
    try:
        await ended
    finally:
        warning.cancel()


class _News(NamedTuple):
    comes: bool
    partitions: tuple[TopicPartition, ...]
    ended: "asyncio.Future[None]"


class Callbacks:
    """Makes the calls for one consumer."""

    def __init__(
        self,
        holder: ConsumerLife,
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
        """Queue news of partitions for the user's functions; return when these are done."""
        if not partitions:
            return _done()
        self._last = asyncio.get_running_loop().create_future()
        self._news.append(_News(comes, tuple(sorted(partitions)), self._last))
        self._begin()
        return self.settled

    def _begin(self) -> None:
        """Begin to call the user's functions, unless they are being called."""
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
