"""Bytes that are not TubeMQ on the two RPC ports: one connection ends, the server continues."""

import contextlib
import random
import socket
import struct
import threading

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.cases import in_one_test
from tests.embedded.wire import connect, is_closed, send_answer, send_request
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.framing import FrameDecoder
from tubemq_spark.protocol.rpc import decode_answer

TOKEN = 0xFF7FF4FE


def header(token=TOKEN, serial=1, chunks=1, length=None):
    raw = struct.pack(">Iii", token, serial, chunks)
    return raw if length is None else raw + struct.pack(">i", length)


@pytest.fixture(params=["master", "broker"])
def port(request, tubemq):
    return getattr(tubemq, request.param)


@in_one_test(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        header(token=0xFF7FF4FF),
        header(chunks=0),
        header(chunks=-1),
        header(chunks=3585),
        header(length=-1),
        header(length=(28 << 20) + 1),
        header(length=0x7FFFFFFF),
        header(chunks=2, length=28 << 20) + bytes(28 << 20) + struct.pack(">i", 1),
    ],
)
def test_a_broken_frame_closes_its_connection(port, broker, garbage):
    with connect(port) as connected:
        # The server may hang up before it has received everything.
        with contextlib.suppress(ConnectionError):
            connected.sendall(garbage)
        assert is_closed(connected)
    assert broker.try_send().success


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=300), after_token=st.booleans())
def test_random_bytes_never_harm_others(tubemq, master, broker, garbage, after_token):
    """Clients that were connected before are served on their connections."""
    for port in (tubemq.master, tubemq.broker):
        with connect(port) as connected:
            connected.sendall((header(length=len(garbage)) if after_token else b"") + garbage)
            connected.shutdown(socket.SHUT_WR)
            is_closed(connected)
    assert master.register_producer().success
    assert broker.try_send().success


def test_damaged_requests_never_harm_others(tubemq, broker):
    """Complete frames with wrong content are answered, and the connection stays open."""
    generator = random.Random(1)
    client = RpcConnection(Role.CLIENT)
    client.send_request(*send_request(b"payload", msgType="kind"), 1000)
    good = client.data_to_send()
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            raw[generator.randrange(16, len(raw))] = generator.randrange(256)
        _, method, body = send_request(b"payload", msgType="kind")
        del body
        broker.socket.sendall(raw)
        assert broker.socket.recv(1 << 16).startswith(struct.pack(">I", TOKEN)), method
    assert broker.try_send().success


def test_no_thread_is_left_of_many_broken_connections(tubemq, broker):
    assert broker.try_send().success
    before = set(threading.enumerate())
    for _ in range(30):
        with connect(tubemq.broker) as connected:
            connected.sendall(b"garbage garbage")
            assert is_closed(connected)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive()
    assert broker.try_send().success


def test_a_request_without_timeout_is_answered(broker):
    """Java executes it and never answers."""
    _, method, body = send_request(b"x")
    stream = b"\x02\x08\x00" + b"\x02\x08\x03" + bytes([len(body) + 4, 8, method, 0x1A, len(body)]) + body
    broker.socket.sendall(header(serial=77, length=len(stream)) + stream)
    assert broker.socket.recv(1 << 16)[:8] == struct.pack(">Ii", TOKEN, 77)


@in_one_test("name", ["1:127.0.0.1:8123#demo:0", "a@b", "a,b", "a=b"])
@in_one_test("field", ["clientId", "groupName"])
def test_names_that_would_break_the_events_texts_are_refused(master, field, name):
    fields = {"clientId": "client", "groupName": "group", "hostName": "127.0.0.1", field: name}
    answer = master.call(ServiceType.MASTER, Method.CONSUMER_REGISTER, **fields, topicList=["demo"])
    assert answer.errCode == 400
    assert field in answer.errMsg


def test_one_serial_number_twice_at_once_is_answered_twice(broker):
    broker.connection.send_request(*send_request(b"x"), 1000)
    frame = broker.connection.data_to_send()
    broker.socket.sendall(frame + frame)
    frames = []
    decoder = FrameDecoder()
    while len(frames) < 2:
        frames += decoder.receive_data(broker.socket.recv(1 << 16))
    assert [send_answer(decode_answer(1, frame.stream)).success for frame in frames] == [True, True]
