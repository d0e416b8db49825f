"""Telling users of group consumers which partitions come and go.

Calls are made one after the other, in the order in which partitions came and went, in a short-lived thread
that holds no lock: so a callback may call the consumer, and take its time. What is told of several at once is
one call.

=========  =============================================================================================
partition  what its user can count on
=========  =============================================================================================
comes      no message of it is handed out until ``on_assigned`` has returned (``cache.hold``)
goes       ``on_revoked`` is called when its last batch was confirmed, or had its time, and before it is
           given up; behind that if it was lost
=========  =============================================================================================

A callback that raises is told by the next ``fetch`` (``TUBEMQ_CALLBACK_FAILED``). What has come is given up
then, since its user may not have done what messages need, and comes again. A member at a gateway keeps it: it
cannot give single partitions back.
"""

import collections
import functools
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Final, NamedTuple

from tubemq_spark.client.background import InBackground
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.steps import Blocking, Steps, wait_for
from tubemq_spark.errors import ConsumeError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)

OnChange = Callable[[tuple[TopicPartition, ...]], object]
"""Takes the partitions that have come, or go; sorted."""

_DONE: Final[Future[None]] = Future()
_DONE.set_result(None)


class _News(NamedTuple):
    comes: bool
    partitions: tuple[TopicPartition, ...]
    ended: "Future[None]"


class Callbacks:
    """Makes the calls for one consumer."""

    def __init__(
        self,
        state: ConsumerState,
        on_assigned: OnChange | None,
        on_revoked: OnChange | None,
        *,
        gives_back: bool = True,
    ) -> None:
        """Tell nothing.

        Args:
            state: the consumer's partitions.
            on_assigned: is told what has come, if it is there.
            on_revoked: is told what goes.
            gives_back: whether what has come is given up when ``on_assigned`` fails.
        """
        self._state = state
        self._gives_back = gives_back
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._news: collections.deque[_News] = collections.deque()
        self._here: set[TopicPartition] = set()
        """What has come, and not gone."""
        self._last = _DONE
        self._is_telling = False
        """Whether a rule makes calls; guarded as the state is."""

    @property
    def holds(self) -> bool:
        """Whether what comes is to be held until it was told."""
        return self._on_assigned is not None

    @property
    def settled(self) -> "Future[None]":
        """What is done when all calls were made that are due by now."""
        return self._last

    def assigned(self, partitions: Collection[TopicPartition]) -> "Future[None]":
        """Tell that partitions have come, which are held, in the background; return what is done then."""
        with self._state.guard:
            self._here.update(partitions)
        return _DONE if self._on_assigned is None else self._tell(partitions, comes=True)

    def revoked(self, partitions: Collection[TopicPartition]) -> "Future[None]":
        """Tell that partitions go, or have gone, in the background, once; return what is done then."""
        with self._state.guard:
            going = self._here.intersection(partitions)
            self._here -= going
        return _DONE if self._on_revoked is None else self._tell(going, comes=False)

    def _tell(self, partitions: Collection[TopicPartition], *, comes: bool) -> "Future[None]":
        if not partitions:
            return _DONE
        news = _News(comes, tuple(sorted(partitions)), Future())
        with self._state.guard:
            self._news.append(news)
            self._last = news.ended
            begins, self._is_telling = not self._is_telling, True
        if begins:
            InBackground(self._telling(), f"callbacks of {self._state.client_id}").start()
        return news.ended

    def _telling(self) -> Steps[None]:
        while True:
            with self._state.guard:
                if not self._news:
                    self._is_telling = False
                    return
                several = [self._news.popleft()]
                while self._news and self._news[0].comes is several[0].comes:
                    several.append(self._news.popleft())
            try:
                yield from self._telling_of(
                    several[0].comes, [partition for news in several for partition in news.partitions]
                )
            except Exception:
                # What comes behind is to be told all the same.
                logger.warning("%s could not tell: %s", self._state.client_id, several, exc_info=True)
            finally:
                for news in several:
                    news.ended.set_result(None)

    def _telling_of(self, comes: bool, partitions: list[TopicPartition]) -> Steps[None]:
        name, call = ("on_assigned", self._on_assigned) if comes else ("on_revoked", self._on_revoked)
        error: ConsumeError | None = None
        try:
            if call is not None:
                yield from wait_for(Blocking(functools.partial(call, tuple(sorted(partitions)))))
        except GeneratorExit:
            raise
        except BaseException as cause:  # also sys.exit(), and that no thread could be started
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
            yield from self._letting_go(partitions, error)
        if error is not None:
            self._state.tell(error)

    def _letting_go(self, partitions: list[TopicPartition], error: ConsumeError | None) -> Steps[None]:
        """Hand out messages of partitions that have come from now on; or give them up, after an error."""
        state = self._state
        try:
            if error is not None and self._gives_back:
                yield from state.releasing_all(partitions, error)
        finally:
            with state.guard:
                for name in partitions:
                    state.cache.let_go(name)
                state.changed.notify_all()
