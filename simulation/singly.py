"""An asynchronous producer in a simulated world: its single messages, and what their futures tell."""

import asyncio
from typing import Final

import simloom

from simulation import chance
from simulation.sent import Sent
from tubemq_spark.client.aio.producer import AsyncProducer
from tubemq_spark.client.producer.futures import AsyncSendFuture
from tubemq_spark.client.producer.pipeline import Pipeline
from tubemq_spark.errors import ProduceError, TubeMQError

_NOT_ACCEPTED: Final = ["The message was not accepted: it was not sent, and will not be."]
_ACCEPTED: Final = ["The message was accepted: it is sent all the same, and may be stored."]
_OF_NO_MESSAGE: Final = ("TUBEMQ_FLUSH_TIMEOUT", "TUBEMQ_PRODUCER_CLOSED")
"""Errors of ``flush`` that are no message's."""

_SOON_S: Final = 0.001
"""The loop has called the callbacks of futures by then."""


class _CallbackError(Exception):
    """What callbacks raise here."""


class SingleMessages:
    """Sends messages one by one, and asks what became of some of them."""

    def __init__(self, world: simloom.World, pipeline: Pipeline) -> None:
        self._world = world
        self._producer = AsyncProducer(lambda run_user_code: pipeline)  # noqa: ARG005 (the pipeline is there)
        self._futures: list[tuple[Sent, AsyncSendFuture]] = []
        self._unasked: dict[AsyncSendFuture, Sent] = {}
        """Those of which neither the sender nor a flush has asked."""
        self._cancels = chance.happens(30)
        """Whether futures are cancelled, whose outcomes are not known then."""
        asyncio.get_running_loop().set_exception_handler(_pass_over_callbacks)

    async def send(self, message: Sent, *, in_trouble: bool) -> None:
        """Send a message; raise why it is refused."""
        try:
            future = await self._producer.send(
                message.topic,
                message.value,
                block=not (in_trouble and chance.happens(10)),
                attributes={"n": "1"} if message.number % 3 else None,
                message_type=message.message_type,
                message_time=None,
                key=message.key,
                partition=message.named,
            )
        except asyncio.CancelledError as error:
            _check_note(error, _NOT_ACCEPTED)
            message.refused = True
            raise
        except TubeMQError:
            message.refused = True
            raise
        message.accepted_by = self._world.time
        self._futures.append((message, future))
        self._unasked[future] = message
        # As the futures of the library do it: this does not ask for the outcome.
        asyncio.Future.add_done_callback(future, lambda _: self._end(message, future))
        if in_trouble:
            await self._ask(future)

    async def flush(self, timeout: float | None = None) -> None:
        """Flush, which tells of the first failure that was not asked about."""
        before = list(self._futures)
        try:
            await self._producer.flush(timeout)
        except ProduceError as error:
            if error.condition in _OF_NO_MESSAGE:
                raise
            self._take_failures(error)
        else:
            failed = self._unasked_failures()
            assert not failed, f"not told by flush: {failed}"
        assert all(future.done() for _, future in before), "flushed too early"
        await asyncio.sleep(_SOON_S)

    async def close(self, timeout: float) -> None:
        """Close the producer, which waits so long for outcomes, and says how many messages it abandons."""
        abandoned = await self._producer.close(timeout)
        await asyncio.sleep(_SOON_S)
        errors = [message.error for message, _ in self._futures if message.error is not None]
        count = sum(error.condition == "TUBEMQ_MESSAGE_ABANDONED" for error in errors)
        forgotten = sum(message.forgotten for message, _ in self._futures)
        assert count <= abandoned <= count + forgotten, f"{abandoned} abandoned, but {count} told so"

    async def _ask(self, future: AsyncSendFuture) -> None:
        """Ask for an outcome in some way, or not."""
        kind = chance.below(20)
        if kind < 3:
            del self._unasked[future]
            future.add_done_callback(_raise)
        elif kind < 6:
            del self._unasked[future]
            try:
                async with asyncio.timeout(chance.between(0.0, 2.0)):
                    await (future if self._cancels else asyncio.shield(future))
            except TimeoutError as error:
                if self._cancels:
                    simloom.reached("a future was cancelled")
                    _check_note(error.__cause__, _ACCEPTED)
            except TubeMQError as error:
                simloom.reached(error.condition)

    def _end(self, message: Sent, future: AsyncSendFuture) -> None:
        message.ended_at = self._world.time
        if future.cancelled():
            message.forgotten = True
            return
        error = asyncio.Future.exception(future)
        if error is None:
            result = asyncio.Future.result(future)
            message.partition, message.offset = result.partition, result.offset
            message.attempts, message.unanswered = result.attempts, result.unanswered
            if result.message_id is not None:
                message.details = result.message_id, result.append_time_ms or 0
            return
        assert isinstance(error, TubeMQError), repr(error)
        message.fail(error)

    def _take_failures(self, error: ProduceError) -> None:
        """Check that an error is that of the first message that failed; forget all that did."""
        simloom.reached("flush tells of a failure")
        failed = self._unasked_failures()
        first_at = min((ended_at for _, ended_at in failed), default=0.0)
        first = [future for future, ended_at in failed if ended_at == first_at]
        assert any(asyncio.Future.exception(future) is error for future in first), f"{error} of {failed}"
        for future, _ in failed:
            del self._unasked[future]

    def _unasked_failures(self) -> list[tuple[AsyncSendFuture, float]]:
        """Return the failed messages of which was not asked, and when they ended."""
        return [
            (future, self._world.time if message.ended_at is None else message.ended_at)
            for future, message in self._unasked.items()
            if future.done() and not future.cancelled() and asyncio.Future.exception(future) is not None
        ]


def _check_note(error: BaseException | None, notes: list[str]) -> None:
    assert getattr(error, "__notes__", None) == notes, f"{error!r} should say {notes}"


def _raise(future: AsyncSendFuture) -> None:
    raise _CallbackError(repr(future))


def _pass_over_callbacks(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    if not isinstance(context.get("exception"), _CallbackError):
        loop.default_exception_handler(context)
