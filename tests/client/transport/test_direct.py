"""The way without gateways: calls of the administration API take no longer than a request may."""

import socket

import pytest

from testkit.connections import opened_connections
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop


@pytest.mark.parametrize("ask", [DirectTransport.topics, DirectTransport.stored_offsets])
def test_a_web_server_that_hangs_is_given_up(ask):
    with socket.create_server(("127.0.0.1", 0)) as silent, opened_connections() as connections:
        endpoint = Endpoint(*silent.getsockname())
        transport = DirectTransport(
            ClientConfig((endpoint,), "test", rpc_timeout_ms=50), connections, web=lambda: (endpoint,)
        )
        with pytest.raises(TubeMQConnectionError, match=r"no whole answer came within 0\.05 s"):
            loop.run(ask(transport))
