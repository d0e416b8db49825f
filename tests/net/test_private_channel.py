"""What a channel for one user does differently from a shared one; ``test_channel`` has what both do."""

import contextlib
import socket
import time

import pytest

from tests.net.test_channel import call, echo, ok, over, silent, start
from tests.net.test_receive_buffer import in_chunks
from tests.net.test_scheduler import wait_until
from tests.rpc_server import RpcServer
from tubemq_spark.errors import TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.net.private_channel import PrivateChannel
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import master_pb2


def test_a_call_without_an_answer_ends_the_connection():
    with RpcServer(silent) as server, over(server, PrivateChannel) as channel:
        other = start(channel)
        with pytest.raises(TubeMQTimeoutError, match="within 50 ms while closing"):
            call(channel, timeout_ms=50)

        assert channel.closed
        with pytest.raises(TubeMQConnectionError, match="was not answered"):
            other.body("closing")


def test_the_time_out_counts_from_when_the_answer_is_asked_for():
    held = []
    with RpcServer(held.append) as server, over(server, PrivateChannel) as channel:
        pending = start(channel, timeout_ms=400)
        wait_until(lambda: held)
        time.sleep(0.45)
        assert not pending.done
        held[0].answer(ok("late"))

        assert pending.result(master_pb2.CloseResponseM2P, "closing") == ok("late")


def test_no_thread_receives():
    with RpcServer(echo) as server, over(server, PrivateChannel) as channel:
        pending = start(channel)
        wait_until(lambda: not channel.quiet and channel._socket.recv(1, socket.MSG_PEEK))
        assert not pending.done
        assert pending.result(master_pb2.CloseResponseM2P, "closing") == ok("me")


@pytest.mark.parametrize("size", [10, 20_000, 700_000, 5_000_000])
def test_answers_of_any_size_come_whole(size):
    def answer(exchange):
        exchange.answer(ok("x" * size))

    with RpcServer(answer) as server, over(server, PrivateChannel) as channel:
        for _ in range(3):
            assert call(channel) == ok("x" * size)


@pytest.mark.parametrize("sizes", [[8192, 100], [100, 8192], [8192, 0, 8192], [8192] * 30 + [5_000]])
def test_an_answer_in_unusual_chunks_comes_without_waiting_for_the_time_out(sizes):
    answer = ok("x" * 300_000).SerializeToString()
    stream = rpc.answer_head(Method.PRODUCER_CLOSE, len(answer)) + answer

    def in_unusual_chunks(exchange):
        exchange.send_bytes(in_chunks(exchange.request.serial_no, stream, sizes))

    with RpcServer(in_unusual_chunks) as server, over(server, PrivateChannel) as channel:
        for _ in range(2):
            assert call(channel, timeout_ms=600_000) == ok("x" * 300_000)


def test_a_quiet_connection_is_told_from_others():
    held = []
    with RpcServer(held.append) as server:
        with over(server, PrivateChannel) as channel:
            assert channel.quiet
            pending = start(channel)
            assert not channel.quiet  # a call is in flight
            pending.forget()
            assert channel.quiet
            wait_until(lambda: held)
            held[0].answer(ok())
            wait_until(lambda: not channel.quiet)  # an answer that nobody waits for
        assert not channel.quiet
        with over(server, PrivateChannel) as channel:
            wait_until(lambda: len(server.accepted) == 2)
            server.drop_connections()
            wait_until(lambda: not channel.quiet)


def test_a_child_drops_the_socket_and_the_peer_hears_nothing():
    with RpcServer(echo) as server:
        channel = PrivateChannel.connect(server.endpoint, 1_000)
        with contextlib.closing(socket.socket(fileno=channel._socket.detach())) as parents:
            channel.abandon()
            assert channel.closed
            with pytest.raises(TubeMQConnectionError, match="the parent process"):
                start(channel)
            parents.setblocking(False)
            with pytest.raises(BlockingIOError):
                parents.recv(1)
