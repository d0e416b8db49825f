"""Connections in the process's loop as threads see them: their ends, forks, and the exit."""

import subprocess
import sys

import pytest

from testkit.children import forks, in_child
from testkit.connections import opened_connections, submit_call
from tests.net.test_connection import FOREVER_MS, REQUEST, echo, ok, silent
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.process_connections import close_connections, process_connections
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2


def connected(connections, endpoint):
    return loop.run(connections.get(endpoint))


def call(connection):
    types = ServiceType.MASTER, Method.PRODUCER_CLOSE, REQUEST, master_pb2.CloseResponseM2P
    return submit_call(connection, *types, timeout_ms=FOREVER_MS).result()


def test_closing_is_for_good_and_may_be_repeated():
    with RpcServer(echo) as server:
        with opened_connections() as connections:
            connection = connected(connections, server.endpoint)
        assert connection.closed
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            connected(connections, server.endpoint)
        close_connections(connections)


def test_the_process_shares_connections():
    assert process_connections() is process_connections()


def test_those_that_are_dropped_end_with_a_warning():
    with RpcServer(echo) as server:
        connections = Connections()
        connection = connected(connections, server.endpoint)
        with pytest.warns(ResourceWarning, match=f"{server.endpoint} were not closed"):
            del connections
        wait_until(connection.ended.is_set)


def test_those_that_are_dropped_closed_say_nothing(recwarn):
    with RpcServer(echo) as server:
        with opened_connections() as connections:
            connected(connections, server.endpoint)
        del connections
    assert not [warning for warning in recwarn if "were not closed" in str(warning.message)]


@forks
def test_a_child_has_none_and_leaves_the_parents_alone():
    with RpcServer(echo) as server, opened_connections() as connections:
        connection, number = connected(connections, server.endpoint), []

        async def private():
            async with connections.private(FOREVER_MS, None) as user:
                number.append((await user.to(server.endpoint)).number)

        loop.run(private())

        def check():
            assert connection.closed
            assert connections.shared() == []
            assert call(connected(connections, server.endpoint)) == ok("me")
            close_connections(connections)

        in_child(check)
        assert call(connection) == ok("me")
        assert connected(connections, server.endpoint) is connection
        loop.run(private())
        assert number[0] == number[1]


EXITS = """
import atexit, sys, threading
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.process_connections import close_connections, process_connections
{use}
print([thread.name for thread in threading.enumerate() if thread.name == "tubemq-loop"])
sys.stdout.flush()
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
"""
USE = "connection = loop.run({connections}.get(Endpoint('127.0.0.1', {port})))"


def run_process(code, *options):
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.process
@pytest.mark.parametrize("use", ["", USE])
def test_a_process_exits_with_open_connections_and_without_any(use):
    with RpcServer(silent) as server:
        use = use.format(connections="process_connections()", port=server.endpoint.port)
        ended = run_process(EXITS.format(use=use), "-W", "error")
    assert ("tubemq-loop" in ended.stdout) is bool(use)
    assert ended.stderr == ""


@pytest.mark.process
def test_users_code_at_the_exit_may_still_close_its_connections():
    code = "import atexit\nowners = []\natexit.register(lambda: close_connections(owners[0]))\n"
    with RpcServer(silent) as server:
        use = USE.format(connections="owners[0]", port=server.endpoint.port)
        ended = run_process(code + EXITS.format(use="owners.append(Connections())\n" + use))
    assert ended.stderr == ""
