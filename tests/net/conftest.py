"""What tests share: an authority, what clients and servers need of it, and an address without answers."""

import contextlib
import socket

import pytest

from testkit.certificates import Authority
from tubemq_spark.net.tls import ServerTls, TlsConfig


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def client_tls(authority):
    return TlsConfig(str(authority.cert))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("server")


@pytest.fixture(scope="module")
def server_tls(pair):
    return ServerTls(str(pair.cert), str(pair.key))


@pytest.fixture
def full():
    """An address whose backlog is full: it answers nothing, as if packets were dropped."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()
