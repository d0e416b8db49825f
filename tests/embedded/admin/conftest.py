"""A server with a topic of two stores, unless a module has its own; web calls, and members of groups."""

import pytest

from tests.embedded.web import ask
from tests.embedded.wire import MasterClient
from tubemq_spark.client.metadata.admin import MasterAdmin


@pytest.fixture
def server(start):
    return start(topics={"demo": (2, 3)})


@pytest.fixture
def master_admin(server):
    return MasterAdmin(server.master_web, token="abc")


@pytest.fixture
def web(server):
    """Call the master: ``web(method, **parameters)``."""
    return lambda method, **parameters: ask(server.master_web, method=method, **parameters)


@pytest.fixture
def members(server, closing):
    return closing.enter_context(MasterClient(server.master))
