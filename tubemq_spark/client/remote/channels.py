"""The wire to gateways, as ``Gateways`` uses it: a channel to each of them, made when it is first needed.

``GrpcChannels`` has those of gRPC. A channel stands for what was in the files of TLS when it was made. When
these have changed, new calls get a new channel, and calls that are under way keep the old one. A forked child
has none of its parent's.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.errors import GatewayError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error
from tubemq_spark.protocol.gateway.methods import Method

Answer = TypeVar("Answer", bound=Message)
Answered: TypeAlias = Any
"""A message of a type that the method tells."""
Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""


class Stream(Protocol):
    """A call with a stream of answers, and perhaps one of requests; for the loop in which it was begun."""

    def write(self, request: Message) -> None:
        """Send a request after those before; returns at once."""

    def end_writing(self) -> None:
        """End our side; returns at once, and does no harm when that is so already."""

    async def read(self) -> Answered | None:
        """Return the next answer; None at the end."""

    def cancel(self) -> None:
        """End the call, if it has not ended; returns at once."""


class Channel(Protocol):
    """A connection to one gateway, which finds its way again by itself; threads and loops may share it.

    What fails raises ``AwayError`` if another gateway may serve it, otherwise the error of the gateway or of
    TubeMQ.
    """

    async def call(
        self, method: Method, request: Message, answer: type[Answer], metadata: Metadata, timeout_s: float
    ) -> Answer:
        """Return the answer of a call, which is cancelled when its caller is."""

    def begin(self, method: Method, request: Message, metadata: Metadata, timeout_s: float) -> "Future[None]":
        """Begin a call whose answer is not needed; return what is done when it has ended. Needs no loop."""

    def stream(self, method: Method, first: Message, metadata: Metadata, *, parsed: bool) -> Stream:
        """Begin a call with streams, and send its first request; it has no deadline but keepalive."""

    def close(self) -> None:
        """End it, and the calls that use it. Needs no loop, so also when the process exits."""


class Channels:
    """The channels of one ``Gateways``; threads may share them. The lock is held for some lines only."""

    def __init__(self) -> None:
        """Make none."""
        self._refuses = False
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the channels, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._channels: dict[Endpoint, tuple[Channel, object]] = {}
        """Each with what it was made from."""

    def connect(self, gateway: Endpoint, made_from: Any) -> Channel:  # noqa: ANN401 (its own)
        """Return a new channel."""
        raise NotImplementedError

    async def material(self) -> object:
        """Return what a new channel is to be made from: what is in files."""

    def look_again(self) -> None:
        """Look at files before the next call: one has failed, maybe since they have changed."""

    async def reach(self, gateway: Endpoint) -> Channel:
        """Return the channel for a new call to a gateway."""
        if self._refuses:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")
        material = await self.material()
        with self._lock:
            channel, made_from = self._channels.get(gateway, (None, None))
            if channel is None or made_from is not material:
                # The old one lives as long as calls use it.
                channel = self.connect(gateway, material)
                self._channels[gateway] = channel, material
        return channel

    def refuse(self) -> None:
        """Refuse all later calls."""
        self._refuses = True

    def existing(self, gateway: Endpoint) -> Channel | None:
        """Return the channel to a gateway if there is one."""
        return self._channels.get(gateway, (None, None))[0]

    def take_all(self) -> dict[Endpoint, Channel]:
        """Return all channels, which the caller closes; later calls make new ones."""
        with self._lock:
            channels, self._channels = self._channels, {}
        return {gateway: channel for gateway, (channel, _) in channels.items()}


def error_of(status: str, details: str | None, trailers: Mapping[str, Any]) -> Exception:
    """Return what the end of a call means: an error of TubeMQ or the gateway, or that another may do it."""
    if ERROR_TRAILER in trailers:
        failure = parse_error(trailers[ERROR_TRAILER])
        if failure.condition in _ELSEWHERE:
            return AwayError(failure)
        return failure
    what = f"{status}: {details or 'no details'}".rstrip(".")
    if status in _ITS_OWN_FAULT:
        return GatewayError("TUBEMQ_GATEWAY_ERROR", text=what)
    return AwayError(what)
