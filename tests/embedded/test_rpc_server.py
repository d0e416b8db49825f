"""What the master and a broker have in common: a port, an interceptor, periodic tasks."""

import threading

import pytest

from testkit.connections import connected, submit_call
from tests.embedded.wire import TIMEOUT_S
from tubemq_spark.embedded.dispatch import RpcServer
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Reply
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2

SAID = master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg="handled")
INTERCEPTED = master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg="intercepted")


class Server(RpcServer):
    """Answers everything alike."""

    def __init__(self):
        self.ran = threading.Event()
        super().__init__("test", "127.0.0.1", 0)
        self._scheduler.every(1, self.ran.set, "running")

    def serve(self, requests):
        return [SAID.SerializeToString() for _ in requests]


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


def answer_of(server):
    request = master_pb2.CloseRequestP2M(clientId="c")
    types = ServiceType.MASTER, Method.PRODUCER_CLOSE, request, master_pb2.CloseResponseM2P
    with connected(Endpoint("127.0.0.1", server.port), 3_000) as connection:
        return submit_call(connection, *types, timeout_ms=3_000).result().errMsg


def test_requests_go_to_serve_or_to_the_interceptor(server):
    assert answer_of(server) == "handled"
    server.intercept(lambda _request, _handle: Reply(INTERCEPTED.SerializeToString()))
    assert answer_of(server) == "intercepted"
    server.intercept(None)
    assert answer_of(server) == "handled"


def test_tasks_run_until_it_is_closed(server):
    assert server.ran.wait(TIMEOUT_S)
    port = server.port
    server.close()
    with pytest.raises(TubeMQConnectionError), connected(Endpoint("127.0.0.1", port), 3_000):
        pass
    server.ran.clear()
    assert not server.ran.wait(0.05)
