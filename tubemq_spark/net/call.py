"""Calls to a peer in flight, whichever way their answers are received."""

import abc
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    TlsError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock, Deadline
from tubemq_spark.net.retry import CHECK_S, Wait
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.errcodes import TEMPORARY_EXCEPTIONS

AnyMessage = TypeVar("AnyMessage", bound=ProtobufMessage)
Cause = str | OSError | TubeMQError
"""Why a connection was lost; an error also becomes the ``__cause__`` of the errors its calls raise."""


class Channel(Protocol):
    """A connection to a peer, by which requests are sent."""

    @property
    def endpoint(self) -> Endpoint:
        """The peer."""

    @property
    def closed(self) -> bool:
        """Whether the connection was lost or closed."""

    def start(
        self,
        service: ServiceType,
        method: Method,
        request: ProtobufMessage,
        *,
        timeout_ms: int,
        during: str,
        wait: Wait | None = None,
    ) -> "Call":
        """Send a request and return at once.

        Args:
            service: the peer's service.
            method: the method.
            request: the request.
            timeout_ms: how long the answer may take.
            during: what is being done, for the text of an error.
            wait: its ``check`` is called several times per second while the answer is awaited; what it raises
                ends that wait.

        Raises:
            TubeMQConnectionError: the connection is lost or closed.
            LocalProtocolError: a required field is not set, the time-out is not positive, or the
                request is longer than a frame can be.
        """


class CallOwner(Protocol):
    """The channel of a call."""

    @property
    def endpoint(self) -> Endpoint:
        """The peer."""

    def forget(self, call: "Call") -> None:
        """Drop the answer of a call if it arrives later."""

    def give_up(self, call: "Call") -> None:
        """Forget a call that timed out."""


class Call(abc.ABC):
    """A call in flight; ask for its answer once, or forget it."""

    def __init__(
        self, channel: CallOwner, timeout_ms: int, wait: Wait | None = None, clock: Clock | None = None
    ) -> None:
        self._channel = channel
        self._wait = wait
        self._timeout_ms = timeout_ms
        self._deadline = Deadline.after_ms(timeout_ms, clock)
        self._outcome: rpc.Response | rpc.Failure | Cause = ""
        # At most one; the thread that pops it calls it, so it is called once.
        self._listeners: list[Callable[[], object]] = []
        self.serial_no = 0

    @property
    @abc.abstractmethod
    def done(self) -> bool:
        """Whether the answer has arrived, or the connection was lost."""

    @property
    def remaining_s(self) -> float:
        """For how many seconds the answer may still come; then waiting for it raises an error at once."""
        return self._deadline.remaining()

    def when_done(self, listener: Callable[[], object]) -> None:
        """Call a function once when this is ``done``: who receives the answer does, or this call.

        For callers that must not wait. It must return at once and raise nothing. May be used once.
        """
        self._listeners.append(listener)
        if self.done:
            self._tell()

    def body(self, during: str) -> bytes | memoryview:
        """Wait for the answer and return its body, the serialised response message.

        Raises:
            TubeMQTimeoutError: no answer arrived within the call's time-out, counted from its start.
            TubeMQConnectionError: the connection was lost first.
            RpcError: the peer answered with an exception (``TUBEMQ_REMOTE_EXCEPTION``).
        """
        if not self._wait_for_answer():
            self._channel.give_up(self)
            raise TubeMQTimeoutError(
                "TUBEMQ_TIMEOUT", endpoint=self._channel.endpoint, timeout_ms=self._timeout_ms, during=during
            )
        if isinstance(self._outcome, rpc.Response):
            return self._outcome.body
        if isinstance(self._outcome, rpc.Failure):
            raise _remote_exception(self._outcome, self._channel.endpoint, during)
        if isinstance(self._outcome, LocalProtocolError):
            raise self._outcome
        raise lost(self._channel.endpoint, during, self._outcome)

    def result(self, response_type: type[AnyMessage], during: str) -> AnyMessage:
        """Wait for the answer and parse it.

        Raises:
            RemoteProtocolError: the answer is not such a message.
            TubeMQError: as ``body``.
        """
        body = self.body(during)
        try:
            return rpc.parse_message(response_type, body)
        except RemoteProtocolError as error:
            raise self.bad_answer(during, error.parameters["what"]) from error

    def bad_answer(self, during: str, what: object) -> RemoteProtocolError:
        """Return the error for an answer that cannot be used; the connection can."""
        endpoint = self._channel.endpoint
        return RemoteProtocolError("TUBEMQ_BAD_ANSWER", endpoint=endpoint, during=during, what=what)

    def forget(self) -> None:
        """Stop waiting; if the answer arrives later, it is dropped."""
        self._channel.forget(self)

    def settle(self, outcome: rpc.Response | rpc.Failure | Cause) -> None:
        """Set the answer, or why there will be none; called once, when the call leaves flight."""
        self._outcome = outcome
        self._mark_done()
        self._tell()

    @abc.abstractmethod
    def _mark_done(self) -> None:
        """Make ``done`` true."""

    @abc.abstractmethod
    def _wait_at_most(self, seconds: float) -> bool:
        """Wait until this is ``done``, not much longer than some seconds; return whether it is."""

    def _wait_for_answer(self) -> bool:
        """Wait until the deadline or until ``wait.check`` raises; return whether the call was settled."""
        if self._wait is None:
            return self._wait_at_most(self._deadline.remaining())
        try:
            while not self._wait_at_most(min(CHECK_S, self._deadline.remaining())):
                if self._deadline.expired:
                    return False
                self._wait.check()
        except BaseException:
            self.forget()
            raise
        return True

    def _tell(self) -> None:
        if self._listeners:
            with contextlib.suppress(IndexError):  # the other one was first
                self._listeners.pop()()


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
