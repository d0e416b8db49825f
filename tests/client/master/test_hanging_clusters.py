"""Heartbeats of one cluster, while the masters of another one hang in every way they can."""

import asyncio
import contextlib
import itertools
import threading
import time

import pytest

from testkit.connections import opened, opened_connections
from tests.client.scripted_master import ScriptedMaster, balance, beat, config_for, meta, registered, token
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.loop import run, submit
from tubemq_spark.protocol.constants import Method

NEVER_MS = 3_600_000
SEVERAL = 4
"""Sessions of the cluster that hangs."""


@pytest.fixture
def connections():
    with opened_connections(NEVER_MS) as connections:
        yield connections


@contextlib.contextmanager
def sessions(connections, master, count=1, **settings):
    """Yield sessions that send heartbeats all the time; they do not leave in the end."""
    config = config_for(master, heartbeat_period_ms=5, rpc_timeout_ms=NEVER_MS, **settings)
    several = [run(balance(config, connections).open()) for _ in range(count)]
    yield several
    for session in several:
        session.stop_heartbeats()


def assert_beating(sound):
    """Wait until ten more heartbeats have come."""
    sound.wait_for(Method.BALANCE_HEARTBEAT, len(sound.of(Method.BALANCE_HEARTBEAT)) + 10)


class Late:
    """An answer that comes when a test says so."""

    def __init__(self, answer):
        self._answer = answer
        self.release = threading.Event()

    def __call__(self, _):
        assert self.release.wait(20)
        return self._answer


def test_masters_that_do_not_answer_cost_another_cluster_no_heartbeat(connections):
    with (
        ScriptedMaster(balance_heartbeat=lambda _: None) as hanging,
        ScriptedMaster() as sound,
        sessions(connections, hanging, SEVERAL),
        sessions(connections, sound),
    ):
        hanging.wait_for(Method.BALANCE_HEARTBEAT, SEVERAL)
        assert_beating(sound)
        assert len(hanging.of(Method.BALANCE_HEARTBEAT)) == SEVERAL, "each waits for its answer"


@pytest.mark.parametrize("silent", ["balance_heartbeat", "consumer_close"])
def test_a_master_that_does_not_answer_holds_up_a_session_that_leaves_for_a_moment_only(connections, silent):
    with ScriptedMaster(**{silent: lambda _: None}) as hanging:
        session = run(balance(config_for(hanging, rpc_timeout_ms=NEVER_MS), connections).open())
        session.refresh_soon()
        hanging.wait_for(Method.BALANCE_HEARTBEAT, 1)
        submit(session.close()).result(20)
        hanging.wait_for(Method.CONSUMER_CLOSE, 1)


def test_names_that_no_resolver_answers_cost_another_cluster_no_heartbeat(connections, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    resolve = addresses.addresses_of

    def hang(endpoint):
        if endpoint.host == "localhost":
            asked.set()
            answer.wait(20)
        return resolve(endpoint)

    with ScriptedMaster() as hanging, ScriptedMaster() as sound:
        name = Endpoint("localhost", hanging.endpoint.port)
        with sessions(connections, name, SEVERAL), sessions(connections, sound):
            monkeypatch.setattr(addresses, "addresses_of", hang)
            hanging.restart_connections()
            assert asked.wait(5)
            assert_beating(sound)
            asking = [thread.name for thread in threading.enumerate() if "look-up" in thread.name]
            assert asking == ["tubemq-look-up-localhost"], "one for all sessions"
            answer.set()


def test_a_session_that_registers_again_costs_others_no_heartbeat(connections):
    """The master that hangs knows the session no more, and does not take it again."""
    asked = []

    def register(_):
        asked.append(1)
        return None if len(asked) > 1 else registered(authorizedInfo=token())

    with (
        ScriptedMaster(balance_heartbeat=beat(411), balance_register=register) as hanging,
        ScriptedMaster() as sound,
        sessions(connections, hanging),
        sessions(connections, sound),
    ):
        hanging.wait_for(Method.BALANCE_REGISTER, 2)
        assert_beating(sound)


def test_a_caller_that_waits_in_a_session_costs_others_no_heartbeat(connections):
    """The heartbeat of that session is due in the meantime, and is sent when the caller has its answer."""
    late = Late(meta())
    with (
        ScriptedMaster(balance_partition_meta=late) as busy,
        ScriptedMaster() as sound,
        sessions(connections, busy) as (session,),
        sessions(connections, sound),
    ):
        asking = submit(session.layout())
        busy.wait_for(Method.BALANCE_PARTITION_META, 1)
        sent = len(busy.of(Method.BALANCE_HEARTBEAT))
        assert_beating(sound)
        assert len(busy.of(Method.BALANCE_HEARTBEAT)) == sent
        late.release.set()
        busy.wait_for(Method.BALANCE_HEARTBEAT, sent + 2)
        assert asking.result(5).partitions == {}


def test_a_heartbeat_that_was_due_is_sent_as_soon_as_the_session_is_free(connections):
    late = Late(meta())
    with ScriptedMaster(balance_partition_meta=late) as master:
        config = config_for(master, heartbeat_period_ms=NEVER_MS, rpc_timeout_ms=NEVER_MS)
        with opened(balance(config, connections)) as session:
            asking = submit(session.layout())
            master.wait_for(Method.BALANCE_PARTITION_META, 1)
            session.refresh_soon()
            late.release.set()
            master.wait_for(Method.BALANCE_HEARTBEAT, 1)
            asking.result(5)
    assert [method for method, _ in master.requests] == [
        Method.BALANCE_REGISTER,
        Method.BALANCE_PARTITION_META,
        Method.BALANCE_HEARTBEAT,
        Method.CONSUMER_CLOSE,
    ]


class HastyLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test puts forward."""

    ahead_s = 0.0

    def time(self):
        return time.monotonic() + self.ahead_s


def test_the_period_of_heartbeats_counts_from_their_beginning():
    """One that was answered late is followed at once, and not a whole period later."""
    late = Late(beat())

    async def answered_late(master):
        config = config_for(master, heartbeat_period_ms=NEVER_MS, rpc_timeout_ms=2 * NEVER_MS)
        loop, connections = asyncio.get_running_loop(), Connections(NEVER_MS)
        async with balance(config, connections) as session:
            session.refresh_soon()
            await asyncio.to_thread(master.wait_for, Method.BALANCE_HEARTBEAT, 1)
            loop.ahead_s += NEVER_MS / 1000
            late.release.set()
            await asyncio.to_thread(master.wait_for, Method.BALANCE_HEARTBEAT, 2)
        await connections.close()

    with (
        ScriptedMaster(balance_heartbeat=[late, beat()]) as master,
        asyncio.Runner(loop_factory=HastyLoop) as runner,
    ):
        runner.run(answered_late(master))


def test_a_heartbeat_that_breaks_down_is_told_and_the_next_one_comes(connections, monkeypatch, caplog):
    answers = itertools.count()
    keep = ProducerSession._keep

    def keep_all_but_one(self, answer):
        if next(answers) == 1:
            raise ZeroDivisionError
        keep(self, answer)

    monkeypatch.setattr(ProducerSession, "_keep", keep_all_but_one)
    with (
        ScriptedMaster() as master,
        opened(ProducerSession(config_for(master, heartbeat_period_ms=5), connections)) as session,
    ):
        master.wait_for(Method.PRODUCER_HEARTBEAT, 3)
    assert f"heartbeat of {session.client_id} failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
