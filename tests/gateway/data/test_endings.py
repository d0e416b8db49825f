"""Consumers whose sessions have ended: closing is never refused, and comes to its end."""

import contextlib
import threading

import pytest

from tests.gateway.fleet import attach
from tests.gateway.running import PlainClient, RefusedError, gateway, tubemq
from tests.waiting import wait_until
from tubemq_spark.gateway.sessions import LOST
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

_SESSIONS = 20
STORE = pb.Store(topic="demo", broker_id=1, store=0)


@pytest.fixture
def server():
    with tubemq(demo=(1, 1)) as running:
        yield running


def counts(server):
    """How many members there are, and how many leases at brokers that run."""
    found = server.overview()
    return found.consumers, found.leases


def refusal_of(client):
    with pytest.raises(RefusedError) as caught:
        client("QueryBounds", stores=[STORE])
    return caught.value.condition


def lose(served, name):
    """End the sessions of clients that are silent."""
    sessions = served.server._sessions
    lost = [one for one in sessions if one.client_id.startswith(name)]
    loop.call_soon(lambda: [sessions.close(one, LOST) for one in lost])


@contextlib.contextmanager
def clients_of(served, count, name):
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(PlainClient(served.address, f"{name}{number}")) for number in range(count)
        ]
        for client in made:
            client.open(group=client.session.client_id)
        yield made


def test_consumers_of_lost_clients_close_while_all_queues_are_full_and_a_broker_hangs(server, monkeypatch):
    """With one thread and one place to wait for it, no member, lease or thread is left in the end."""
    monkeypatch.setattr(GatewaySettings, "questions", 1)
    with (
        gateway(server, waiting_calls=1, queue_ms=60_000) as served,
        contextlib.ExitStack() as stack,
    ):
        consuming = served.server._consuming
        with clients_of(served, _SESSIONS, "lost") as lost:
            for client in lost:
                assert attach(client, "demo", 1)[0].WhichOneof("result") == "offset"
        others = stack.enter_context(clients_of(served, 3, "stays"))
        assert attach(others[0], "demo", 2)[0].WhichOneof("result") == "offset"
        assert counts(server) == (_SESSIONS + 1, _SESSIONS + 1)
        threads = threading.active_count()
        server.faults.freeze_broker(1)
        calls = [
            client.method("QueryBounds").future(client.request("QueryBounds", stores=[STORE]), timeout=60)
            for client in others[:2]
        ]
        wait_until(lambda: served.server._admission.waiting == 1)
        assert refusal_of(others[2]) == "TUBEMQ_GATEWAY_BUSY", "all is full"
        lose(served, "lost")
        wait_until(lambda: len(consuming) == 1, 20)
        wait_until(lambda: "tubemq_gateway_endings 0.0" in served.server.metrics.text(), 20)
        wait_until(lambda: counts(server)[0] == 1)  # the one that stays
        assert threading.active_count() <= threads + 5
        server.faults.start_broker(1)
        for call in calls:
            call.exception(30)


def test_a_session_that_ends_while_its_consumer_opens_leaves_no_member(server):
    with gateway(server) as served, PlainClient(served.address, "short") as client:
        client.open()
        with server.faults.hold(Method.BALANCE_REGISTER, carried_out=True) as held:
            wanted = client.request("AttachPartitions", topics=["demo"])
            call = client.method("AttachPartitions").future(wanted, timeout=20)
            assert held.wait_for_hits()
            call.cancel()
            client("CloseSession")
            consuming = served.server._consuming
            assert (len(consuming), consuming.endings) == (0, 1), "it opens first"
        wait_until(lambda: consuming.endings == 0, 10)
        assert counts(server)[0] == 0
