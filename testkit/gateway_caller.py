"""A client of a gateway that knows no more than the .proto file."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final, Self, cast

import grpc
import grpc.aio
import psutil  # type: ignore[import-untyped]

from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import METHODS, SESSION_KEY

OPTIONS: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


def session_of(client_id: str) -> pb.SessionRef:
    """Return a session with a secret of its own."""
    return pb.SessionRef(client_id=client_id, epoch=1, secret=os.urandom(32))


def opening(session: pb.SessionRef, **settings: Any) -> dict[str, Any]:
    """Return the fields of the request that opens a session."""
    who = {"client_id": session.client_id, "epoch": session.epoch, "secret": session.secret}
    return {"settings": pb.SessionSettings(**settings), **who}


def metadata_of(session: pb.SessionRef) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata of calls in a session."""
    return ((SESSION_KEY, session.SerializeToString()),)


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
        """Prepare calls; the first one connects."""
        self._owns = beside is None
        if beside is not None:
            self.channel = beside.channel
        elif ca is None:
            self.channel = grpc.insecure_channel(address, OPTIONS)
        else:
            self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), OPTIONS)
        self.session = session_of(client_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns:
            self.channel.close()

    def open(self, group: str = "attack", **settings: Any) -> Any:
        """Open the session."""
        return self("OpenSession", **opening(self.session, group=group, **settings))

    def begin(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Begin a call with one request, and return it: a future, or an iterator over answers."""
        return self.send(name, METHODS[name].request(**fields).SerializeToString(), timeout)

    def send(self, name: str, data: bytes | Iterable[bytes], timeout: float = 60) -> Any:
        """Begin a call with requests that are ready."""
        method = METHODS[name]
        kind = ("stream" if method.takes_stream else "unary", "stream" if method.gives_stream else "unary")
        make = getattr(self.channel, "_".join(kind))
        call = make(method.path, response_deserializer=method.response.FromString)
        metadata = metadata_of(self.session)
        if method.takes_stream:
            requests = iter([data] if isinstance(data, bytes) else data)
            return call(requests, timeout=timeout, metadata=metadata)
        if method.gives_stream:
            return call(data, timeout=timeout, metadata=metadata)
        return call.future(data, timeout=timeout, metadata=metadata)

    def __call__(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Return the answer to a call, or the list of its answers."""
        call = self.begin(name, timeout=timeout, **fields)
        return list(call) if METHODS[name].gives_stream else call.result()


def status(call: Any) -> str:
    """Wait for the end of a call, and return its status."""
    return str(call.code().name)


class AsyncCaller:
    """One session of many, which share a few connections of an event loop."""

    def __init__(self, channel: grpc.aio.Channel, client_id: str) -> None:
        self.channel = channel
        self.session = session_of(client_id)

    def __call__(self, name: str, /, *, timeout: float = 60, **fields: Any) -> Any:
        """Begin a call, and return it: to be awaited, or an iterator over answers."""
        method = METHODS[name]
        kind = self.channel.unary_stream if method.gives_stream else self.channel.unary_unary
        call = kind(method.path, method.request.SerializeToString, method.response.FromString)
        return call(method.request(**fields), timeout=timeout, metadata=metadata_of(self.session))

    async def open(self, group: str) -> None:
        """Open the session."""
        await self("OpenSession", **opening(self.session, group=group))


_STOP_S: Final = 60


class GatewayProcess:
    """A gateway before a server; a context manager that ends it."""

    def __init__(self, master: str, *flags: str, web: str | None = None, log: Path | None = None) -> None:
        """Start it and wait until it serves."""
        command = [sys.executable, "-m", "tubemq_spark", "gateway"]
        command += ["--master-servers", master, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *flags]
        if web is not None:
            command += ["--master-web", web]
        self.log = log
        errors = None if log is None else log.open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        if errors is not None:
            errors.close()
        self._output = cast("IO[str]", self._process.stdout)
        self.address = self._read(r"serves at (\S+)")
        self.metrics = self._read(r"metrics at http://([^/\s]+)")
        """Where metrics and the status page are."""
        self.process = psutil.Process(self._process.pid)

    def _read(self, pattern: str) -> str:
        line = self._output.readline()
        match = re.search(pattern, line)
        if match is None:
            self._process.kill()
            self._process.wait()
            self._output.close()
            raise RuntimeError(f"the gateway did not start: {line!r}")
        return match[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, if it runs: it drains before."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._output.close()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    @property
    def cpu_s(self) -> float:
        """Processor time it has used, user and system, in seconds."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        """How much memory it has resident."""
        return int(self.process.memory_info().rss)

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return int(self.process.num_threads())

    def log_bytes(self) -> int:
        """Return how long its log is."""
        return 0 if self.log is None else self.log.stat().st_size

    def upstream(self, address: str) -> int:
        """Return how many connections it has to the host of a server, those of its clients left out."""
        own = int(self.address.rpartition(":")[2])
        host = address.rpartition(":")[0]
        return sum(
            1
            for one in self.process.net_connections("tcp")
            if one.raddr and one.laddr.port != own and one.raddr.ip == host
        )
