"""Heartbeats of one cluster, while the masters of another one hang in every way they can."""

import contextlib
import threading

import pytest

from tests.client.scripted_master import ScriptedMaster, balance, beat, config_for, registered, token
from tests.waiting import wait_until
from tubemq_spark.client.background import InBackground
from tubemq_spark.client.master.producers import ProducerSession
from tubemq_spark.model import Endpoint
from tubemq_spark.net import addresses
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.scheduler import process_scheduler
from tubemq_spark.protocol.constants import Method

NEVER_MS = 3_600_000
SEVERAL = 4
"""Sessions of the cluster that hangs."""


@pytest.fixture
def pool():
    with ChannelPool(NEVER_MS) as made:
        yield made


@contextlib.contextmanager
def sessions(pool, master, count=1, **settings):
    """Yield sessions that send heartbeats all the time; they do not leave in the end."""
    config = config_for(master, heartbeat_period_ms=5, rpc_timeout_ms=NEVER_MS, **settings)
    opened = [balance(config, pool).open() for _ in range(count)]
    yield opened
    for session in opened:
        session._heartbeats.cancel()


def test_masters_that_do_not_answer_cost_another_cluster_no_heartbeat(pool):
    with (
        ScriptedMaster(balance_heartbeat=lambda _: None) as hanging,
        ScriptedMaster() as sound,
        sessions(pool, hanging, SEVERAL),
        sessions(pool, sound),
    ):
        hanging.wait_for(Method.BALANCE_HEARTBEAT, SEVERAL)
        beats = len(sound.of(Method.BALANCE_HEARTBEAT))
        sound.wait_for(Method.BALANCE_HEARTBEAT, beats + 10)
        assert len(hanging.of(Method.BALANCE_HEARTBEAT)) == SEVERAL, "each waits for its answer"


def test_a_master_that_does_not_answer_holds_up_a_session_that_leaves_for_a_moment_only(pool):
    with ScriptedMaster(consumer_close=lambda _: None) as hanging:
        session = balance(config_for(hanging, rpc_timeout_ms=NEVER_MS), pool).open()
        leaving = threading.Thread(target=session.close, daemon=True)
        leaving.start()
        leaving.join(20)
        assert not leaving.is_alive()
        hanging.wait_for(Method.CONSUMER_CLOSE, 1)


def test_names_that_no_resolver_answers_cost_another_cluster_no_heartbeat(pool, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    resolve = addresses.addresses_of

    def hang(endpoint):
        if endpoint.host == "localhost":
            asked.set()
            answer.wait(20)
        return resolve(endpoint)

    with ScriptedMaster() as hanging, ScriptedMaster() as sound:
        name = Endpoint("localhost", hanging.endpoint.port)
        with sessions(pool, name, SEVERAL), sessions(pool, sound):
            monkeypatch.setattr(addresses, "addresses_of", hang)
            hanging.restart_connections()
            assert asked.wait(5)
            beats = len(sound.of(Method.BALANCE_HEARTBEAT))
            sound.wait_for(Method.BALANCE_HEARTBEAT, beats + 10)
            opening = [thread.name for thread in threading.enumerate() if "tubemq-connect" in thread.name]
            assert opening == [f"tubemq-connect-{name}"], "one for all sessions"
            answer.set()


def test_a_session_that_registers_again_costs_others_no_heartbeat(pool):
    """The master that hangs knows the session no more, and does not take it again."""
    asked = []

    def register(_):
        asked.append(1)
        return None if len(asked) > 1 else registered(authorizedInfo=token())

    with (
        ScriptedMaster(balance_heartbeat=beat(411), balance_register=register) as hanging,
        ScriptedMaster() as sound,
        sessions(pool, hanging),
        sessions(pool, sound),
    ):
        hanging.wait_for(Method.BALANCE_REGISTER, 2)
        beats = len(sound.of(Method.BALANCE_HEARTBEAT))
        sound.wait_for(Method.BALANCE_HEARTBEAT, beats + 10)


def test_a_caller_that_waits_in_a_session_costs_others_no_heartbeat(pool):
    """The heartbeat of that session is due while its lock is held, and is sent when it is given back."""
    with (
        ScriptedMaster() as busy,
        ScriptedMaster() as sound,
        sessions(pool, busy) as (waits,),
        sessions(pool, sound),
    ):
        with waits._exclusively():
            wait_until(lambda: waits._heartbeat_due)
            sent = len(busy.of(Method.BALANCE_HEARTBEAT))
            beats = len(sound.of(Method.BALANCE_HEARTBEAT))
            sound.wait_for(Method.BALANCE_HEARTBEAT, beats + 10)
            assert len(busy.of(Method.BALANCE_HEARTBEAT)) == sent
        busy.wait_for(Method.BALANCE_HEARTBEAT, sent + 2)


def test_a_heartbeat_that_was_due_is_sent_as_soon_as_the_session_is_free(pool):
    with ScriptedMaster() as master:
        config = config_for(master, heartbeat_period_ms=NEVER_MS)
        with balance(config, pool) as session:
            with session._exclusively():
                session.refresh_soon()
                wait_until(lambda: session._heartbeat_due)
                assert master.of(Method.BALANCE_HEARTBEAT) == []
            master.wait_for(Method.BALANCE_HEARTBEAT, 1)


def test_the_period_of_heartbeats_counts_from_their_beginning(pool):
    """One that was answered late is followed at once, and not a whole period later."""
    answer = threading.Event()

    def late(_):
        answer.wait(20)
        return beat()

    with ScriptedMaster(balance_heartbeat=[late, beat()]) as master:
        config = config_for(master, heartbeat_period_ms=NEVER_MS, rpc_timeout_ms=NEVER_MS)
        with balance(config, pool) as session:
            session.refresh_soon()
            master.wait_for(Method.BALANCE_HEARTBEAT, 1)
            session._heartbeats.began_at -= NEVER_MS / 1000
            answer.set()
            master.wait_for(Method.BALANCE_HEARTBEAT, 2)


def test_a_heartbeat_that_breaks_down_is_told_and_the_next_one_comes(pool, monkeypatch, caplog):
    broken = iter([True])
    keep = ProducerSession._keep

    def sometimes(self, answer):
        if threading.current_thread().name == "tubemq-scheduler" and next(broken, False):
            raise ZeroDivisionError
        keep(self, answer)

    monkeypatch.setattr(ProducerSession, "_keep", sometimes)
    with ScriptedMaster() as master, ProducerSession(config_for(master, heartbeat_period_ms=5), pool):
        master.wait_for(Method.PRODUCER_HEARTBEAT, 3)
    assert "failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_what_runs_in_the_background_uses_the_scheduler_of_the_process():
    ran_in = []

    def rule():
        ran_in.append(threading.current_thread().name)
        yield from ()

    ended = threading.Event()
    InBackground(rule(), "a rule").start().when_done(ended.set)
    assert ended.wait(5)
    assert ran_in == ["tubemq-scheduler"]
    wait_until(lambda: process_scheduler()._thread is None)
