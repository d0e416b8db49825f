"""Calls to a peer in flight."""

import asyncio
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import (
    RemoteProtocolError,
    RpcError,
    TlsError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS

AnyMessage = TypeVar("AnyMessage", bound=ProtobufMessage)
Cause = str | OSError | TubeMQError
"""Why a connection was lost; an error also becomes the ``__cause__`` of the errors its calls raise."""


class CallOwner(Protocol):
    """The connection of a call."""

    @property
    def endpoint(self) -> Endpoint:
        """The peer."""

    def forget(self, call: "Call") -> None:
        """Drop the answer of a call if it arrives later."""

    def give_up(self, call: "Call") -> None:
        """Forget a call that timed out."""


class Call:
    """A call in flight; ``await`` it, and then ask for its answer once, or forget it."""

    def __init__(self, owner: CallOwner, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._timeout_ms = timeout_ms
        self._ends_at = self._loop.time() + timeout_ms / 1000
        self._outcome: rpc.Response | rpc.Failure | Cause | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.serial_no = 0

    @property
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""
        return self._outcome is not None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until it is done, or its time is over; forget it when the wait is cancelled."""
        if self.done:
            return
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_at(self._ends_at, self._wake)
        try:
            yield from waiter
        except BaseException:
            self.forget()
            raise
        finally:
            timer.cancel()
            self._waiter = None

    def body(self, during: str) -> bytes | memoryview:
        """Return the body of the answer that was awaited, the serialised response message."""
        endpoint = self._owner.endpoint
        if self._outcome is None:
            self._owner.give_up(self)
            raise TubeMQTimeoutError(
                "TUBEMQ_TIMEOUT", endpoint=endpoint, timeout_ms=self._timeout_ms, during=during
            )
        if isinstance(self._outcome, rpc.Response):
            return self._outcome.body
        if isinstance(self._outcome, rpc.Failure):
            raise _remote_exception(self._outcome, endpoint, during)
        raise lost(endpoint, during, self._outcome)

    def result(self, response_type: type[AnyMessage], during: str) -> AnyMessage:
        """Parse the answer that was awaited."""
        body = self.body(during)
        try:
            return rpc.parse_message(response_type, body)
        except RemoteProtocolError as error:
            raise self.bad_answer(during, error.parameters["what"]) from error

    def bad_answer(self, during: str, what: object) -> RemoteProtocolError:
        """Return the error for an answer that cannot be used; the connection can."""
        endpoint = self._owner.endpoint
        return RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)

    def forget(self) -> None:
        """Stop waiting; if the answer arrives later, it is dropped."""
        self._owner.forget(self)

    def settle(self, outcome: rpc.Response | rpc.Failure | Cause) -> None:
        """Set the answer, or why there will be none; called once, when the call leaves flight."""
        self._outcome = outcome
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def lost(endpoint: Endpoint, during: str, cause: Cause) -> TubeMQConnectionError:
    """Return the error of a call whose connection was lost."""
    if isinstance(cause, TlsError):
        return TlsError(cause.condition, **cause.parameters)
    text = str(cause).rstrip(".")
    error = TubeMQConnectionError("TUBEMQ_CONNECTION_LOST", endpoint=endpoint, during=during, cause=text)
    error.__cause__ = None if isinstance(cause, str) else cause
    return error


def _remote_exception(failure: rpc.Failure, endpoint: Endpoint, during: str) -> RpcError:
    error = RpcError(
        "TUBEMQ_REMOTE_EXCEPTION",
        peer=endpoint,
        during=during,
        exception=failure.exception_class,
        text=failure.text.strip() or "no text",
    )
    # FATAL means that the peer cannot understand the request: repeating it does not help.
    error.retriable = failure.status is not Status.FATAL or failure.exception_class in TEMPORARY_EXCEPTIONS
    return error
