"""Web calls, and members of groups; each module has its own ``server``."""

import pytest

from tests.embedded.web import ask
from tests.embedded.wire import MasterClient


@pytest.fixture
def web(server):
    """Call the master: ``web(method, **parameters)``."""
    return lambda method, **parameters: ask(server.master_web, method=method, **parameters)


@pytest.fixture
def members(server, closing):
    return closing.enter_context(MasterClient(server.master))
