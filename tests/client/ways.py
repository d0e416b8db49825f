"""The two ways to a TubeMQ: tests of what users see run over both."""

import contextlib

import pytest

from tests.gateway.running import gateway
from tubemq_spark.client import TubeMQClient
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.model import Endpoint

TOPIC = "demo"
WAYS = ["direct", "gateways"]

only_direct = pytest.mark.parametrize("server", ["direct"], indirect=True)
"""For tests that look inside, or whose rule is another one through gateways (which the pages say)."""

through_gateways_by_night = pytest.mark.parametrize(
    "server", ["direct", pytest.param("gateways", marks=pytest.mark.nightly)], indirect=True
)
"""For tests of many consumers or of many moments, whose calls through gateways others make one by one."""


@contextlib.contextmanager
def reached(server, way, **settings):
    """Make clients of this server go that way."""
    if way == "direct":
        yield server
        return
    settings = {"poll_ms": 20, **settings}
    with gateway(server, **settings) as first, gateway(server, **settings) as second:
        server.gateways = [first, second]
        try:
            yield server
        finally:
            del server.gateways


def served(*, stores=1, partitions=1, brokers=3, ways=None, **settings):
    """Return a fixture: a server whose topic has so many stores at each of its brokers."""

    @pytest.fixture(params=ways)
    def server(request):
        topics = {TOPIC: (stores, partitions)}
        with (
            EmbeddedTubeMQ(topics=topics, brokers=brokers, settings=EmbeddedSettings(**settings)) as running,
            reached(running, getattr(request, "param", "direct")),
        ):
            yield running

    return server


def address_of(server):
    """Return what ``connect`` and ``from_url`` take to go that way."""
    gateways = getattr(server, "gateways", ())
    return "gateway://" + ",".join(running.address for running in gateways) if gateways else server.master


def client_by_its_way(server, group, **settings):
    gateways = getattr(server, "gateways", ())
    if not gateways:
        return TubeMQClient(ClientConfig((Endpoint.parse(server.master),), group, **settings))
    addresses = tuple(Endpoint.parse(running.address) for running in gateways)
    return TubeMQClient(ClientConfig((), group, **settings), gateways=addresses)
