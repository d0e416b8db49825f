import gc
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.children import in_child
from tests.rpc_server import RpcServer
from tests.waiting import wait_until
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import channel as channel_module, pool as pool_module
from tubemq_spark.net.pool import ChannelPool, process_pool
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import master_pb2


def echo(exchange):
    exchange.answer(master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg="fine"))


def call(channel):
    return channel.call(
        ServiceType.MASTER,
        Method.PRODUCER_CLOSE,
        master_pb2.CloseRequestP2M(clientId="me"),
        master_pb2.CloseResponseM2P,
        timeout_ms=5_000,
        during="closing",
    ).errMsg


def test_a_peer_has_one_channel():
    with RpcServer(echo) as first, RpcServer(echo) as second, ChannelPool(1_000) as pool:
        channel = pool.get(first.endpoint)

        assert pool.get(first.endpoint) is channel
        assert pool.get(second.endpoint) is not channel
        assert call(channel) == "fine"


def test_a_lost_channel_is_replaced():
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        channel = pool.get(server.endpoint)
        channel.close()

        assert pool.get(server.endpoint) is not channel
        assert call(pool.get(server.endpoint)) == "fine"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def let_silence_last(monkeypatch, seconds):
    later = time.monotonic() + seconds
    monkeypatch.setattr(channel_module, "time", types.SimpleNamespace(monotonic=lambda: later))


def test_whoever_asks_for_a_channel_has_those_closed_that_are_idle(monkeypatch):
    clock = Clock()
    with RpcServer(echo) as first, RpcServer(echo) as second, ChannelPool(1_000, clock) as pool:
        idle, other = pool.get(first.endpoint), pool.get(second.endpoint)
        let_silence_last(monkeypatch, 180)
        assert call(other) == "fine"  # and so it was heard just now

        clock.now = 19.9
        assert pool.get(second.endpoint) is other
        assert not idle.closed, "nobody looks so often"

        clock.now = 20.0
        assert pool.get(second.endpoint) is other
        assert idle.closed
        assert pool.connected(first.endpoint) is None
        assert call(pool.get(first.endpoint)) == "fine"

        let_silence_last(monkeypatch, 360)
        clock.now = 39.9
        assert pool.get(second.endpoint) is other, "nobody has looked again"


def test_a_channel_is_idle_only_after_a_long_silence(monkeypatch):
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        channel = pool.get(server.endpoint)
        let_silence_last(monkeypatch, 179)
        pool.sweep()
        assert not channel.closed


def test_a_channel_with_calls_under_way_is_not_idle(monkeypatch):
    answer_now = threading.Event()

    def slow(exchange):
        assert answer_now.wait(60)
        echo(exchange)

    with RpcServer(slow) as server, ChannelPool(1_000) as pool, ThreadPoolExecutor(1) as other:
        channel = pool.get(server.endpoint)
        answer = other.submit(call, channel)
        wait_until(lambda: channel.traffic.requests)
        let_silence_last(monkeypatch, 180)
        pool.sweep()
        answer_now.set()
        assert answer.result() == "fine"


def test_a_sweep_does_not_wait_for_connections_that_are_being_made(monkeypatch):
    under_way, given_up = threading.Event(), threading.Event()

    def connect_in_the_end(endpoint, timeout_ms, tls=None):
        under_way.set()
        assert given_up.wait(60)
        raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause="timed out")

    monkeypatch.setattr(pool_module.RpcChannel, "connect", connect_in_the_end)
    with ChannelPool(5_000) as pool, ThreadPoolExecutor(1) as other:
        failed = other.submit(pool.get, Endpoint("10.1.2.3", 8123))
        assert under_way.wait(60)
        pool.sweep()
        assert not failed.done()
        given_up.set()
        with pytest.raises(TubeMQConnectionError):
            failed.result()


def test_a_sweep_forgets_channels_that_were_lost():
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        lost = weakref.ref(pool.get(server.endpoint))
        lost().close()
        pool.sweep()
        gc.collect()
        assert lost() is None


def test_closing_the_pool_closes_its_channels_for_good():
    with RpcServer(echo) as server:
        with ChannelPool(1_000) as pool:
            channel = pool.get(server.endpoint)
        assert channel.closed
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            pool.get(server.endpoint)
        pool.close()


def test_closing_the_pool_waits_for_no_connection_and_ends_those_that_are_made_later(monkeypatch):
    under_way, made = threading.Event(), threading.Event()
    connect, opened = pool_module.RpcChannel.connect, []

    def connect_in_the_end(*arguments):
        under_way.set()
        assert made.wait(60)
        opened.append(connect(*arguments))
        return opened[-1]

    monkeypatch.setattr(pool_module.RpcChannel, "connect", connect_in_the_end)
    pool = ChannelPool(5_000)
    with RpcServer(echo) as server, ThreadPoolExecutor(1) as other:
        late = other.submit(pool.get, server.endpoint)
        assert under_way.wait(60)
        pool.close()
        made.set()
        with pytest.raises(TubeMQConnectionError, match="pool of connections is closed"):
            late.result()
    assert opened[0].closed


def test_threads_that_ask_together_get_the_same_channel():
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        together = threading.Barrier(8)
        found = []

        def ask():
            together.wait()
            found.append(pool.get(server.endpoint))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(set(map(id, found))) == 1
        wait_until(lambda: server.accepted)
        assert len(server.accepted) == 1


def test_an_unreachable_peer_does_not_keep_others_waiting(monkeypatch):
    """Others are served while one connection is still being made."""
    slow = Endpoint("10.1.2.3", 8123)
    connect = pool_module.RpcChannel.connect
    under_way, given_up = threading.Event(), threading.Event()

    def connect_in_the_end(endpoint, timeout_ms, tls=None):
        if endpoint == slow:
            under_way.set()
            assert given_up.wait(60)
            raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause="timed out")
        return connect(endpoint, timeout_ms)

    monkeypatch.setattr(pool_module.RpcChannel, "connect", connect_in_the_end)
    with RpcServer(echo) as server, ChannelPool(5_000) as pool, ThreadPoolExecutor(1) as other:
        failed = other.submit(pool.get, slow)
        assert under_way.wait(60)
        assert call(pool.get(server.endpoint)) == "fine"
        assert not failed.done()
        given_up.set()
        with pytest.raises(TubeMQConnectionError):
            failed.result()


def test_threads_that_ask_together_for_a_peer_that_is_away_fail_together(monkeypatch):
    attempts, asking = [], []

    def slow_failure(endpoint, timeout_ms, tls=None):
        attempts.append(endpoint)
        wait_until(lambda: len(asking) == 8)
        time.sleep(0.1)  # the last of them asks
        raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint=endpoint, cause="timed out")

    monkeypatch.setattr(pool_module.RpcChannel, "connect", slow_failure)
    together = threading.Barrier(8)
    errors = []
    with ChannelPool(1_000) as pool:

        def ask():
            together.wait()
            asking.append(1)
            try:
                pool.get(Endpoint("10.1.2.3", 8123))
            except TubeMQConnectionError as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len({str(error) for error in errors}) == 1
        assert len(errors) == 8
        assert len(attempts) < 3

        with pytest.raises(TubeMQConnectionError):
            pool.get(Endpoint("10.1.2.3", 8123))
        assert len(attempts) > 1


def test_a_peer_that_comes_back_is_reached_again():
    with ChannelPool(1_000) as pool:
        with RpcServer(echo) as server:
            pool.get(server.endpoint)
        while not refused(pool, server.endpoint):
            time.sleep(0.001)
        with RpcServer(echo, server.endpoint.port) as again:
            assert call(pool.get(again.endpoint)) == "fine"


def test_a_peer_that_was_not_reached_is_known_for_a_while():
    with ChannelPool(1_000) as pool:
        with RpcServer(echo) as server:
            assert not pool.failed_lately(server.endpoint, None, 10), "nobody has asked for it"
            pool.get(server.endpoint)
            assert not pool.failed_lately(server.endpoint, None, 10)
        wait_until(lambda: refused(pool, server.endpoint))
        assert pool.failed_lately(server.endpoint, None, 10)
        assert not pool.failed_lately(server.endpoint, None, 0)
        with RpcServer(echo, server.endpoint.port) as again:
            pool.get(again.endpoint)
            assert not pool.failed_lately(server.endpoint, None, 10)


def refused(pool, endpoint):
    try:
        pool.get(endpoint)
    except TubeMQConnectionError:
        return True
    return False


def test_the_process_has_one_pool():
    assert isinstance(process_pool(), ChannelPool)
    assert process_pool() is process_pool()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_finds_the_pool_empty_and_leaves_the_parents_channels_alone():
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        channel = pool.get(server.endpoint)

        def check():
            mine = pool.get(server.endpoint)
            assert mine is not channel
            assert channel.closed
            assert call(mine) == "fine"
            pool.close()

        (slot,) = pool._slots.values()
        with pool._lock, slot.lock:  # as other threads may hold them
            in_child(check)
        assert pool.get(server.endpoint) is channel
        assert call(channel) == "fine"
        assert len(server.accepted) == 2


def test_a_dropped_pool_ends_its_connections_with_a_warning():
    with RpcServer(echo) as server:
        pool = ChannelPool(1_000)
        channel = pool.get(server.endpoint)
        with pytest.warns(ResourceWarning, match=f"{server.endpoint} were not closed"):
            del pool
        wait_until(lambda: channel.closed and not channel._reader.is_alive())


def test_a_dropped_pool_without_connections_says_nothing(recwarn):
    with RpcServer(echo) as server:
        pool = ChannelPool(1_000)
        pool.get(server.endpoint).close()
        del pool
    assert not recwarn


def test_callers_that_must_not_wait_get_a_channel_later_one_thread_for_each_peer(monkeypatch):
    resolve, answer = pool_module.RpcChannel.connect, threading.Event()

    def hang(*args):
        answer.wait(5)
        return resolve(*args)

    monkeypatch.setattr(pool_module.RpcChannel, "connect", hang)
    with RpcServer(echo) as server, ChannelPool(1_000) as pool:
        first, second = pool.start(server.endpoint, 60_000), pool.start(server.endpoint, 60_000)
        opening = [thread for thread in threading.enumerate() if "tubemq-connect" in thread.name]
        assert len(opening) == 1
        told = threading.Event()
        second.when_done(told.set)
        answer.set()
        assert told.wait(5)
        assert first.result() is second.result() is pool.start(server.endpoint).result()
        assert call(first.result()) == "fine"

        there = []
        pool.start(server.endpoint).when_done(lambda: there.append("at once"))
        assert there == ["at once"]

        first.result().close()
        again = pool.start(server.endpoint).result()
        assert again is not first.result()
        assert call(again) == "fine"


def test_a_channel_that_does_not_come_in_time_is_an_error(monkeypatch):
    answer = threading.Event()

    def fail_late(*_):
        answer.wait()
        raise TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="127.0.0.1:1", cause="late")

    monkeypatch.setattr(pool_module.RpcChannel, "connect", fail_late)
    with ChannelPool(1_000) as pool:
        with pytest.raises(TubeMQConnectionError, match=r"127\.0\.0\.1:1.*timed out"):
            pool.start(Endpoint("127.0.0.1", 1), 1).result()
        answer.set()


def test_a_channel_that_cannot_be_opened_is_an_error_for_all_that_wait():
    with RpcServer(echo) as server:
        gone = server.endpoint
    with ChannelPool(1_000) as pool:
        for started in [pool.start(gone), pool.start(gone)]:
            with pytest.raises(TubeMQConnectionError, match="refused"):
                started.result()
