"""A client of a gateway that knows no more than the .proto file."""

from collections.abc import Iterable
from typing import Any, Final, Self

import grpc
import grpc.aio

from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.methods import METHODS

OPTIONS: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


class Caller:
    """One session over a connection of its own, or of another caller; a context manager that closes it."""

    def __init__(
        self,
        address: str,
        client_id: str,
        *,
        beside: "Caller | None" = None,
        ca: bytes | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            address: the gateway's.
            client_id: the session's.
            beside: the caller whose connection it shares.
            ca: the certificate of the gateway's authority, in PEM; None: no TLS.
        """
        self._owns = beside is None
        if beside is not None:
            self.channel = beside.channel
        elif ca is None:
            self.channel = grpc.insecure_channel(address, OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), OPTIONS)
        self.session = pb.SessionRef(client_id=client_id, epoch=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns:
            self.channel.close()

    def open(self, group: str = "attack", **settings: Any) -> Any:
        """Open the session."""
        return self("OpenSession", settings=pb.SessionSettings(group=group, **settings))

    def request(self, name: str, /, **fields: Any) -> Any:
        """Return a request."""
        kind = METHODS[name].request
        if "session" in kind.DESCRIPTOR.fields_by_name:
            fields.setdefault("session", self.session)
        return kind(**fields)

    def begin(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Begin a call with one request, and return it: a future, or an iterator over answers."""
        return self.send(name, self.request(name, **fields).SerializeToString(), timeout)

    def send(self, name: str, data: bytes | Iterable[bytes], timeout: float = 60) -> Any:
        """Begin a call with requests that are ready."""
        method = METHODS[name]
        kind = ("stream" if method.takes_stream else "unary", "stream" if method.gives_stream else "unary")
        make = getattr(self.channel, "_".join(kind))
        call = make(method.path, response_deserializer=method.response.FromString)
        if method.takes_stream:
            return call(iter([data] if isinstance(data, bytes) else data), timeout=timeout)
        if method.gives_stream:
            return call(data, timeout=timeout)
        return call.future(data, timeout=timeout)

    def __call__(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Return the answer to a call, or the list of its answers.

        Raises:
            grpc.RpcError: it failed.
        """
        call = self.begin(name, timeout=timeout, **fields)
        return list(call) if METHODS[name].gives_stream else call.result()


def status(call: Any) -> str:
    """Wait for the end of a call, and return its status."""
    return str(call.code().name)


class AsyncCaller:
    """One session of many, which share a few connections of an event loop."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str) -> None:
        """Ask nothing yet."""
        self.channel = channel
        self.session = pb.SessionRef(client_id=client_id, epoch=1)

    def __call__(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Begin a call, and return it: to be awaited, or an iterator over answers."""
        method = METHODS[name]
        if "session" in method.request.DESCRIPTOR.fields_by_name:
            fields.setdefault("session", self.session)
        kind = self.channel.unary_stream if method.gives_stream else self.channel.unary_unary
        call = kind(method.path, method.request.SerializeToString, method.response.FromString)
        return call(method.request(**fields), timeout=timeout)

    async def open(self, group: str) -> None:
        """Open the session."""
        await self("OpenSession", settings=pb.SessionSettings(group=group))
