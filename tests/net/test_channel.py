"""Calls over one connection, and everything that may happen instead of an answer."""

import contextlib
import socket
import threading
import time

import pytest
from tubemq_spark.net.private_channel import PrivateChannel

from tests.rpc_server import RpcServer
from tubemq_spark.errors import (
    HttpAnswerError,
    LocalProtocolError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQTimeoutError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net import stream
from tubemq_spark.net.pool import RpcChannel
from tubemq_spark.net.retry import SLEEP, Sleep
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.pb import master_pb2

REQUEST = master_pb2.CloseRequestP2M(clientId="me")


def ok(text="fine"):
    return master_pb2.CloseResponseM2P(success=True, errCode=200, errMsg=text)


def call(channel, timeout_ms=5_000, request=REQUEST, wait=None):
    pending = channel.start(
        ServiceType.MASTER,
        Method.PRODUCER_CLOSE,
        request,
        timeout_ms=timeout_ms,
        during="closing",
        wait=wait,
    )
    return pending.result(master_pb2.CloseResponseM2P, "closing")


def start(channel, timeout_ms=5_000):
    return channel.start(
        ServiceType.MASTER, Method.PRODUCER_CLOSE, REQUEST, timeout_ms=timeout_ms, during="closing"
    )


@pytest.fixture(params=[RpcChannel, PrivateChannel], ids=["shared", "private"])
def kind(request):
    """A kind of channel, for what holds of both."""
    return request.param


def over(server, kind=RpcChannel):
    return contextlib.closing(kind.connect(server.endpoint, 1_000))


def echo(exchange):
    exchange.answer(ok(exchange.parse(master_pb2.CloseRequestP2M).clientId))


def silent(exchange):
    pass


def test_a_call_brings_the_answer(kind):
    with RpcServer(echo) as server, over(server, kind) as channel:
        assert call(channel) == ok("me")
        assert not channel.closed
    assert channel.closed


def test_a_call_can_wait_for_its_answer():
    with RpcServer(echo) as server, over(server) as channel:
        answer = channel.call(
            ServiceType.MASTER,
            Method.PRODUCER_CLOSE,
            REQUEST,
            master_pb2.CloseResponseM2P,
            timeout_ms=5_000,
            during="closing",
        )
        assert answer == ok("me")


def test_a_connection_tells_what_it_was_used_for(caplog):
    caplog.set_level("DEBUG", logger="tubemq_spark.net.channel")
    with RpcServer(echo) as server, over(server) as first, over(server) as second:
        unused = second.traffic
        call(first)
        call(first)
        used = first.traffic
        assert (first.heard, second.heard) == (True, False)
    assert (unused.requests, unused.frames) == (0, 0)
    assert (used.requests, used.frames) == (2, 2)
    assert 0 <= used.silent_s < used.age_s
    assert unused.silent_s == unused.age_s
    assert first.number != second.number
    told = [record.getMessage() for record in caplog.records]
    for channel, count in ((first, 2), (second, 0)):
        start = f"connection {channel.number} to {server.endpoint} ended: it was closed ({count} requests"
        assert any(text.startswith(start) for text in told), told


def test_the_request_travels_whole(kind):
    seen = []

    def note(exchange):
        seen.append(exchange.request)
        echo(exchange)

    with RpcServer(note) as server, over(server, kind) as channel:
        call(channel, timeout_ms=1234)

    (request,) = seen
    assert (request.service, request.method, request.timeout_ms) == (1, 3, 1234)
    assert request.body == REQUEST.SerializeToString()


class InPieces(socket.socket):
    """A socket with little room: what is long goes in pieces, and other threads run in between."""

    def sendall(self, data):
        for start in range(0, len(data), 10_000):
            super().sendall(data[start : start + 10_000])
            time.sleep(0)


def test_big_requests_and_answers_of_many_threads_do_not_mix():
    with RpcServer(echo) as server, InPieces() as connected:
        connected.connect((server.endpoint.host, server.endpoint.port))
        channel = RpcChannel(server.endpoint, connected)
        results = {}

        def run(number):
            name = f"{number}-" + "x" * (number * 40_000)
            results[number] = call(channel, request=master_pb2.CloseRequestP2M(clientId=name)).errMsg == name

        threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        channel.close()

    assert results == dict.fromkeys(range(16), True)


def test_answers_may_come_in_any_order(kind):
    waiting = []

    def backwards(exchange):
        waiting.append(exchange)
        if len(waiting) == 3:
            for number, held in reversed(list(enumerate(waiting))):
                held.answer(ok(str(number)))

    with RpcServer(backwards) as server, over(server, kind) as channel:
        calls = [start(channel) for _ in range(3)]
        answers = [pending.result(master_pb2.CloseResponseM2P, "closing").errMsg for pending in calls]

    assert answers == ["0", "1", "2"]


def test_a_listener_is_told_once_of_an_answer_before_and_after_it_came():
    held = []
    with RpcServer(held.append) as server, over(server) as channel:
        early, told = start(channel), []
        early.when_done(lambda: told.append(early.done))
        assert 0 < early.remaining_s <= 5
        assert told == []
        while not held:
            time.sleep(0.001)
        held[0].answer(ok())
        while not told:
            time.sleep(0.001)
        early.when_done(lambda: told.append("late"))
        assert told == [True, "late"]


def test_a_listener_is_told_of_a_lost_connection(kind):
    with RpcServer(silent) as server, over(server, kind) as channel:
        pending, told = start(channel), []
        pending.when_done(lambda: told.append(pending.done))
        channel.close()
        assert told == [True]


def test_an_answer_that_came_in_time_is_good_however_late_it_is_asked_for():
    with RpcServer(echo) as server, over(server) as channel:
        pending = start(channel, timeout_ms=200)
        while not pending.done:
            time.sleep(0.001)
        time.sleep(0.25)

        assert pending.result(master_pb2.CloseResponseM2P, "closing") == ok("me")


def test_a_request_without_answer_times_out_and_the_connection_stays():
    def only_second(exchange, count=[0]):  # noqa: B006 - a counter
        count[0] += 1
        if count[0] > 1:
            echo(exchange)

    with RpcServer(only_second) as server, over(server) as channel:
        with pytest.raises(TubeMQTimeoutError, match="within 50 ms while closing") as caught:
            call(channel, timeout_ms=50)
        assert caught.value.parameters["endpoint"] == str(server.endpoint)

        assert call(channel) == ok("me")
        assert len(server.accepted) == 1


def test_a_late_answer_is_dropped():
    held = []

    def late(exchange):
        held.append(exchange)
        if len(held) == 2:
            held[0].answer(ok("late"))
            held[1].answer(ok("in time"))

    with RpcServer(late) as server, over(server) as channel:
        with pytest.raises(TubeMQTimeoutError):
            call(channel, timeout_ms=30)

        assert call(channel) == ok("in time")


def test_a_connection_that_only_swallows_requests_is_given_up():
    with RpcServer(silent) as server, over(server) as channel:
        third = start(channel, timeout_ms=5_000)
        for _ in range(2):
            with pytest.raises(TubeMQTimeoutError):
                call(channel, timeout_ms=20)

        assert channel.closed
        with pytest.raises(TubeMQConnectionError, match="were not answered"):
            third.body("closing")


def test_bytes_between_two_timeouts_show_that_the_peer_lives():
    count = 0

    def every_other(exchange):
        nonlocal count
        count += 1
        if count % 2 == 0:
            echo(exchange)

    with RpcServer(every_other) as server, over(server) as channel:
        for _ in range(3):
            with pytest.raises(TubeMQTimeoutError):
                call(channel, timeout_ms=20)
            call(channel)

        assert not channel.closed


def test_a_forgotten_call_leaves_nothing_behind(kind):
    held = []
    with RpcServer(held.append) as server, over(server, kind) as channel:
        pending = start(channel)
        pending.forget()
        while not held:
            time.sleep(0.001)
        held[0].answer(ok())
        second = start(channel)
        while len(held) < 2:
            time.sleep(0.001)
        held[1].answer(ok("second"))

        assert second.result(master_pb2.CloseResponseM2P, "closing") == ok("second")
        assert not pending.done


class NotWantedError(Exception):
    pass


def test_a_wait_for_an_answer_ends_when_the_caller_gives_up(kind):
    asked = []

    def three_times():
        asked.append(1)
        if len(asked) == 3:
            raise NotWantedError

    held = []
    with RpcServer(held.append) as server, over(server, kind) as channel:
        pending = channel.start(
            ServiceType.MASTER,
            Method.PRODUCER_CLOSE,
            REQUEST,
            timeout_ms=600_000,
            during="closing",
            wait=Sleep(check=three_times),
        )
        with pytest.raises(NotWantedError):
            pending.body("closing")
        assert asked == [1, 1, 1]

        held[0].answer(ok())
        second = start(channel)
        while len(held) < 2:
            time.sleep(0.001)
        held[1].answer(ok("second"))
        assert second.result(master_pb2.CloseResponseM2P, "closing") == ok("second")
        assert not pending.done


def test_a_wait_that_is_wanted_ends_with_the_answer_or_the_time_out(kind):
    with RpcServer(echo) as server, over(server, kind) as channel:
        assert call(channel, wait=SLEEP) == ok("me")
    with RpcServer(silent) as server, over(server, kind) as channel, pytest.raises(TubeMQTimeoutError):
        call(channel, timeout_ms=150, wait=SLEEP)


def test_a_lost_connection_fails_all_calls_under_way(kind):
    held = []
    with RpcServer(held.append) as server, over(server, kind) as channel:
        calls = [start(channel) for _ in range(3)]
        while len(held) < len(calls):
            time.sleep(0.001)
        server.drop_connections()
        for pending in calls:
            with pytest.raises(TubeMQConnectionError, match="was lost while closing") as caught:
                pending.body("closing")
            assert caught.value.retriable

        assert channel.closed
        with pytest.raises(TubeMQConnectionError, match="was lost while closing"):
            start(channel)


def test_closing_fails_all_calls_under_way(kind):
    with RpcServer(silent) as server:
        channel = kind.connect(server.endpoint, 1_000)
        pending = start(channel)
        channel.close()
        channel.close()

        with pytest.raises(TubeMQConnectionError, match="it was closed"):
            pending.body("closing")


def test_an_idle_connection_is_kept(kind, monkeypatch):
    monkeypatch.setattr(stream, "IO_TIMEOUT_S", 0.02)
    with RpcServer(echo) as server, over(server, kind) as channel:
        time.sleep(0.08)

        assert call(channel) == ok("me")


def test_a_peer_that_takes_no_bytes_is_given_up(kind, monkeypatch):
    monkeypatch.setattr(stream, "IO_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        endpoint = Endpoint("127.0.0.1", deaf.getsockname()[1])
        with contextlib.closing(kind.connect(endpoint, 1_000)) as channel:
            huge = master_pb2.CloseRequestP2M(clientId="x" * (20 << 20))
            with pytest.raises(TubeMQConnectionError, match="timed out"):
                call(channel, request=huge)
            assert channel.closed


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"\xff\x7f\xf4\xfe\x00\x00\x00\x01\x00\x00\x00\x00", id="a frame without chunks"),
        pytest.param(
            b"\xff\x7f\xf4\xfe\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\xff\xff",
            id="an unreadable answer",
        ),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_hung_up_on(kind, garbage):
    with (
        RpcServer(lambda exchange: exchange.send_bytes(garbage)) as server,
        over(server, kind) as channel,
    ):
        with pytest.raises(TubeMQConnectionError, match="broke the protocol"):
            call(channel)
        assert channel.closed


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"<!DOCTYPE html><html></html>"])
def test_an_http_server_is_recognised(kind, answer):
    with (
        RpcServer(lambda exchange: exchange.send_bytes(answer)) as server,
        over(server, kind) as channel,
    ):
        with pytest.raises(TubeMQConnectionError, match="answered in HTTP") as caught:
            call(channel)
        assert isinstance(caught.value.__cause__, HttpAnswerError)
        assert "; try again." in str(caught.value)
        assert ".;" not in str(caught.value)


def test_an_answer_of_another_kind_fails_that_call_only(kind):
    other = master_pb2.HeartRequestC2MV2(clientId="x", groupName="y")
    with RpcServer(lambda exchange: exchange.answer(other)) as server, over(server, kind) as channel:
        with pytest.raises(RemoteProtocolError, match="CloseResponseM2P"):
            call(channel)
        assert not channel.closed


@pytest.mark.parametrize(
    ("exception", "status", "retriable"),
    [
        ("corerpc.exception.StandbyException", Status.ERROR, True),
        ("corerpc.exception.ServerNotReadyException", Status.FATAL, True),
        ("corerpc.exception.ServiceStoppingException", Status.ERROR, True),
        ("any.InvocationTargetException", Status.ERROR, True),
        ("any.Exception", Status.FATAL, False),
    ],
)
def test_an_exception_of_the_peer_is_an_error_of_ours(kind, exception, status, retriable):
    def refuse(exchange):
        exchange.fail(exception, "it says no", status)

    with (
        RpcServer(refuse) as server,
        over(server, kind) as channel,
        pytest.raises(RpcError, match="it says no") as caught,
    ):
        call(channel)

    assert caught.value.condition == "TUBEMQ_REMOTE_EXCEPTION"
    assert caught.value.parameters["exception"] == exception.rpartition(".")[2]
    assert caught.value.retriable is retriable
    assert caught.value.code == 0


def test_an_exception_without_text_has_one_anyway(kind):
    def refuse(exchange):
        exchange.fail("any.Exception", "")

    with (
        RpcServer(refuse) as server,
        over(server, kind) as channel,
        pytest.raises(RpcError, match="no text"),
    ):
        call(channel)


def test_a_request_that_cannot_be_sent_is_a_bug_and_harms_nobody(kind):
    with RpcServer(echo) as server, over(server, kind) as channel:
        with pytest.raises(LocalProtocolError):
            call(channel, request=master_pb2.CloseRequestP2M())
        with pytest.raises(LocalProtocolError):
            call(channel, timeout_ms=0)
        with pytest.raises(LocalProtocolError):
            call(channel, request=master_pb2.CloseRequestP2M(clientId="x" * (28 << 20)))

        assert call(channel) == ok("me")


def test_nobody_listens(kind):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint("127.0.0.1", taken.getsockname()[1])

    with pytest.raises(TubeMQConnectionError, match=f"Cannot connect to {endpoint}") as caught:
        kind.connect(endpoint, 1_000)
    assert caught.value.retriable


def test_a_connection_that_is_not_made_in_time_is_given_up(kind):
    """A full backlog answers nothing, as a dropped packet."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = held.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        with pytest.raises(TubeMQConnectionError, match="timed out"):
            kind.connect(Endpoint(*listener.getsockname()), 100)


def test_a_name_is_resolved_at_every_connect(monkeypatch):
    with RpcServer(echo) as first, RpcServer(echo) as second:
        places = [first.endpoint, second.endpoint]

        def resolve(host, port, **_):
            assert (host, port) == ("master.test", 8715)
            place = places.pop(0)
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place.host, place.port))]

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        for server in (first, second):
            with RpcChannel.connect(Endpoint("master.test", 8715), 1_000) as channel:
                assert call(channel) == ok("me")
            assert len(server.accepted) == 1


def test_small_requests_do_not_wait_for_more(kind):
    with RpcServer(echo) as server, over(server, kind) as channel:
        assert channel._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_peer_has_longer_to_take_bytes_than_to_be_reached(kind):
    with RpcServer(echo) as server, over(server, kind) as channel:
        assert call(channel) == ok("me")
        start(channel)
        assert channel._socket.gettimeout() == stream.IO_TIMEOUT_S


def test_the_reader_is_named_after_the_peer_and_ends_with_the_channel():
    with RpcServer(echo) as server:
        name = f"tubemq-reader-{server.endpoint}"
        with over(server):
            assert name in [thread.name for thread in threading.enumerate()]
        assert name not in [thread.name for thread in threading.enumerate()]
