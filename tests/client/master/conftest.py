"""A master that answers as a test says, for sessions with one."""

import pytest

from tests.client.scripted_master import ScriptedMaster


@pytest.fixture
def master():
    with ScriptedMaster() as master:
        yield master
