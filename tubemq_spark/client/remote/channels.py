"""gRPC's channels to gateways: one to each, made when it is first needed.

It is made from what is in the files of TLS then. When these have changed, new calls get a new channel, and
calls that are under way keep the old one. Whether they have is looked at every ``_LOOK_S`` at most, and
before the next call after one for which there was no connection. A forked child has none of its parent's.

The lock is held for some lines only, and never while a file is read: event loops take it too.
"""

import asyncio
import functools
import importlib
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeAlias, TypeVar

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote import credentials
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.deadline import Clock

Call: TypeAlias = Any
"""An object of gRPC, which has no types."""
Result = TypeVar("Result")

_KEEPALIVE_MS: Final = 10_000
_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_LONGEST_RECONNECT_MS: Final = 1_000
_LOOK_S: Final = 1.0
"""For how long files of TLS count as they were."""


def grpc_module() -> ModuleType:
    """Return gRPC.

    Raises:
        OptionError: it is not installed.
    """
    # Otherwise each gateway that stops is a line on stderr. A value of the user stays.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        return importlib.import_module("grpc")
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package="grpcio") from None


class Channel:
    """A channel to one gateway."""

    def __init__(self, calls: Call, context: object) -> None:
        self.calls = calls
        """Makes calls; an object of gRPC."""
        self.context = context
        """Stands for the content of the files of TLS; None without TLS."""
        self.served = False
        """Whether a gateway has answered on it."""

    def close(self) -> None:
        """End it, and the calls that use it."""
        self.calls.close()


class Channels:
    """The channels of one ``Gateways``; threads may share them."""

    def __init__(self, grpc: ModuleType, config: ClientConfig, clock: Clock) -> None:
        """Make none.

        Raises:
            OptionError: a file of TLS cannot be used.
        """
        self._grpc = grpc
        self._tls = config.tls
        self._timeout_ms = config.connect_timeout_ms
        self._clock = clock
        if config.tls is not None:
            credentials.credentials(grpc, config.tls.validate())
        self._ended = False
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the channels, which belong to the parent process; for a forked child."""
        self._lock = threading.Lock()
        self._channels: dict[Endpoint, Channel] = {}
        self._context: object = None
        """That of TLS, as it was when files were looked at last."""
        self._look_at = float("-inf")
        """When files are to be looked at next."""

    def refuse(self) -> None:
        """Refuse all later calls."""
        self._ended = True

    async def reach(self, gateway: Endpoint) -> Channel:
        """As ``get``, for coroutines: a thread looks at files.

        Raises:
            AwayError: that takes longer than connecting may.
            TubeMQError: as ``get``, or no thread is left.
        """
        channel = self._at_hand(gateway)
        if channel is not None:
            return channel
        if self._tls is None:
            return self.get(gateway)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await in_thread(functools.partial(self.get, gateway), "tubemq-tls-gateway")
        except TimeoutError:
            raise AwayError("the files of TLS were not read in time") from None

    def get(self, gateway: Endpoint) -> Channel:
        """Return the channel for a new call to a gateway; may read files of TLS.

        Raises:
            TubeMQConnectionError: calls are refused.
            OptionError: a file of TLS cannot be used.
        """
        channel = self._at_hand(gateway)
        if channel is not None:
            return channel
        self._look_at = self._clock() + _LOOK_S  # first: other calls need not look too
        self._context = context = None if self._tls is None else self._tls.context()
        channel = self._channels.get(gateway)
        if channel is not None and channel.context is context:
            return channel
        new = Channel(self._connect(gateway), context)
        with self._lock:
            channel = self._channels.get(gateway)
            if channel is None or channel.context is not context:
                # The old one lives as long as calls use it.
                channel = self._channels[gateway] = new
        if channel is not new:  # another thread was faster
            new.close()
        return channel

    def look_again(self) -> None:
        """Look at files before the next call: one has failed, maybe since they have changed."""
        self._look_at = float("-inf")

    def existing(self, gateway: Endpoint) -> Channel | None:
        """Return the channel to a gateway if there is one."""
        return self._channels.get(gateway)

    def take_all(self) -> dict[Endpoint, Channel]:
        """Return all channels, which the caller closes; later calls make new ones."""
        with self._lock:
            channels, self._channels = self._channels, {}
        return channels

    def _at_hand(self, gateway: Endpoint) -> Channel | None:
        """Return the channel for a new call if no file needs to be looked at for it."""
        if self._ended:
            raise TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED")
        channel = self._channels.get(gateway)
        if channel is None or channel.context is not self._context:
            return None
        return channel if self._tls is None or self._clock() < self._look_at else None

    def _connect(self, gateway: Endpoint) -> Call:
        options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.max_reconnect_backoff_ms", _LONGEST_RECONNECT_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.enable_http_proxy", 0),
            # Each Gateways has its own connection, which it may close.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        tls = self._tls
        if tls is None:
            return self._grpc.insecure_channel(str(gateway), options=options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        shown = credentials.credentials(self._grpc, tls)
        return self._grpc.secure_channel(str(gateway), shown, options=options)


async def in_thread(call: Callable[[], Result], name: str) -> Result:
    """Return what a function returns that reads files, or connects, in a thread of its own.

    Raises:
        TubeMQConnectionError: no thread is left.
    """
    try:
        return await loop.in_thread(call, name)
    except RuntimeError as error:
        raise TubeMQConnectionError("TUBEMQ_PROCESS_EXHAUSTED", cause=error) from error
