"""Client and server are two roles of one machine; they are played against each other without a network."""

import struct

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from testkit.wire import encode_response
from tests import strategies as own
from tubemq_spark.errors import LocalProtocolError, RemoteProtocolError
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import FRAME_TOKEN, MAX_FRAME_BYTES, Status
from tubemq_spark.protocol.framing import FrameDecoder, encode_frame


def pair() -> tuple[RpcConnection, RpcConnection]:
    return RpcConnection(Role.CLIENT), RpcConnection(Role.SERVER)


def ask(client: RpcConnection, body: bytes = b"question") -> int:
    return client.send_request(service=2, method=17, body=body, timeout_ms=10_000)


def deliver(sender: RpcConnection, receiver: RpcConnection):
    return receiver.receive_data(sender.data_to_send())


def test_a_call_and_its_answer():
    client, server = pair()
    serial_no = ask(client)
    (request,) = deliver(client, server)

    assert request == rpc.Request(serial_no, 2, 17, 10_000, b"question")
    server.send_response(request, b"answer")

    assert deliver(server, client) == [rpc.Response(serial_no, 17, b"answer")]
    assert client.in_flight == server.in_flight == frozenset()


def test_answers_come_in_any_order():
    client, server = pair()
    serials = [ask(client, bytes([number])) for number in range(5)]
    requests = deliver(client, server)

    for request in reversed(requests):
        server.send_response(request, request.body)

    answers = deliver(server, client)
    assert [answer.serial_no for answer in answers] == serials[::-1]
    assert all(serials[answer.body[0]] == answer.serial_no for answer in answers)


def test_serial_numbers_count_from_one_and_wrap_through_the_negative_ones():
    client = RpcConnection(Role.CLIENT)
    assert [ask(client), ask(client)] == [1, 2]

    client._next_serial_no = own.INT32_MAX
    assert [ask(client), ask(client)] == [own.INT32_MAX, own.INT32_MIN]

    client._next_serial_no = -1
    assert [ask(client), ask(client), ask(client)] == [-1, 0, 1]


def test_an_answer_that_is_not_awaited_is_dropped():
    client, server = pair()
    serial_no = ask(client)
    (request,) = deliver(client, server)
    client.forget_request(serial_no)
    server.send_response(request, b"late")
    assert deliver(server, client) == []

    stray = encode_frame(99, encode_response(rpc.Response(99, 17, b"")))
    assert client.receive_data(stray) == []
    assert not client.closed


def test_the_second_answer_is_dropped():
    """Java's server sends two when it is stopping."""
    client = RpcConnection(Role.CLIENT)
    serial_no = ask(client)
    answer = encode_frame(serial_no, encode_response(rpc.Response(serial_no, 17, b"first")))
    second = encode_frame(serial_no, encode_response(rpc.Response(serial_no, 17, b"second")))

    assert client.receive_data(answer + second) == [rpc.Response(serial_no, 17, b"first")]


def test_an_unreadable_request_is_answered_fatal_and_the_connection_lives_on():
    client, server = pair()
    assert server.receive_data(encode_frame(-5, b"\x02\x08\x00\xff")) == []

    (frame,) = FrameDecoder().receive_data(server.data_to_send())
    failure = rpc.decode_answer(frame.serial_no, frame.stream)
    assert isinstance(failure, rpc.Failure)
    assert (failure.serial_no, failure.status) == (-5, Status.FATAL)
    assert failure.exception_class == "InvalidProtocolBufferException"
    assert failure.text.startswith("IPC server unable to read call parameters:")

    serial_no = ask(client)
    (request,) = deliver(client, server)
    assert request.serial_no == serial_no


def test_an_unreadable_answer_closes_the_connection():
    client = RpcConnection(Role.CLIENT)
    serial_no = ask(client)
    with pytest.raises(RemoteProtocolError):
        client.receive_data(encode_frame(serial_no, b"\x02\x08\x01\xff"))
    assert client.closed


@pytest.mark.parametrize("role", list(Role))
def test_bytes_that_are_no_frame_close_the_connection(role):
    connection = RpcConnection(role)
    with pytest.raises(RemoteProtocolError, match="starts with"):
        connection.receive_data(struct.pack(">Iii", FRAME_TOKEN + 1, 1, 1))
    assert connection.closed


@pytest.mark.parametrize("role", list(Role))
def test_no_data_means_that_the_peer_closed(role):
    connection = RpcConnection(role)
    assert connection.receive_data(b"") == []
    assert connection.closed


def test_nothing_can_be_sent_on_a_closed_connection():
    client, server = pair()
    ask(client)
    (request,) = deliver(client, server)
    client.receive_data(b"")
    server.receive_data(b"")

    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        ask(client)
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send_response(request, b"")
    with pytest.raises(LocalProtocolError, match="the connection is closed"):
        server.send_failure(request, Status.ERROR, "E", "t")


def test_a_request_is_answered_once():
    client, server = pair()
    ask(client)
    (request,) = deliver(client, server)
    server.send_response(request, b"")
    with pytest.raises(LocalProtocolError, match="request 1 has been answered already"):
        server.send_response(request, b"")
    with pytest.raises(LocalProtocolError, match="answered already"):
        server.send_failure(request, Status.ERROR, "E", "t")


def test_requests_of_one_number_are_all_answered():
    client, server = pair()
    ask(client)
    frame = client.data_to_send()
    first, second = server.receive_data(frame + frame)
    server.send_response(first, b"1")
    server.send_response(second, b"2")
    assert server.in_flight == frozenset()
    with pytest.raises(LocalProtocolError, match="answered already"):
        server.send_response(second, b"3")


def test_each_side_does_only_its_own_part():
    client, server = pair()
    with pytest.raises(LocalProtocolError, match="a server cannot do that"):
        ask(server)
    with pytest.raises(LocalProtocolError, match="a client cannot do that"):
        client.send_response(rpc.Request(1, 1, 1, 1, b""), b"")


def test_a_request_that_cannot_be_written_leaves_no_trace():
    client = RpcConnection(Role.CLIENT)
    with pytest.raises(LocalProtocolError):
        client.send_request(2, 17, b"", timeout_ms=0)
    with pytest.raises(LocalProtocolError, match="frame of"):
        client.send_request(2, 17, bytes(MAX_FRAME_BYTES), timeout_ms=1)
    assert client.in_flight == frozenset()
    assert client.data_to_send() == b""
    assert ask(client) == 1


class Conversation(RuleBasedStateMachine):
    """A client and a server talk over two wires that deliver bytes in any pieces, at any time.

    The model is what each side must know: requests by serial number, whether and how each was answered,
    and which answers the client may no longer be told.
    """

    @initialize(first=st.sampled_from([1, -3, own.INT32_MAX - 2, own.INT32_MIN]))
    def connect(self, first):
        self.client, self.server = pair()
        self.client._next_serial_no = first
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.next_serial_no = first
        self.asked: dict[int, bytes] = {}
        self.arrived: dict[int, rpc.Request] = {}
        self.answers: dict[int, rpc.Response | rpc.Failure] = {}
        self.forgotten: set[int] = set()
        self.heard: dict[int, rpc.Response | rpc.Failure] = {}

    @rule(body=st.binary(max_size=40) | st.just(bytes(20_000)))
    def client_asks(self, body):
        serial_no = self.client.send_request(2, 17, body, 10_000)
        assert serial_no == self.next_serial_no
        wraps = serial_no == own.INT32_MAX
        self.next_serial_no = own.INT32_MIN if wraps else serial_no + 1
        self.asked[serial_no] = body
        self.to_server += self.client.data_to_send()

    @precondition(lambda self: self.to_server)
    @rule(data=st.data())
    def bytes_reach_the_server(self, data):
        for request in self.server.receive_data(self._take(data, self.to_server)):
            assert request.body == self.asked[request.serial_no]
            assert request.serial_no not in self.arrived
            self.arrived[request.serial_no] = request

    @precondition(lambda self: self._unanswered())
    @rule(data=st.data(), body=st.binary(max_size=40))
    def server_answers(self, data, body):
        request = self.arrived[data.draw(st.sampled_from(self._unanswered()))]
        self.server.send_response(request, body)
        self.answers[request.serial_no] = rpc.Response(request.serial_no, 17, body)
        self.to_client += self.server.data_to_send()

    @precondition(lambda self: self._unanswered())
    @rule(data=st.data(), status=st.sampled_from([Status.ERROR, Status.FATAL]), text=st.text(max_size=10))
    def server_fails(self, data, status, text):
        request = self.arrived[data.draw(st.sampled_from(self._unanswered()))]
        self.server.send_failure(request, status, "a.b.C", text)
        self.answers[request.serial_no] = rpc.Failure(request.serial_no, status, "a.b.C", text)
        self.to_client += self.server.data_to_send()

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def server_refuses_to_answer_again(self, data):
        request = self.arrived[data.draw(st.sampled_from(sorted(self.answers)))]
        with pytest.raises(LocalProtocolError, match="answered already"):
            self.server.send_response(request, b"again")

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def an_answer_travels_twice(self, data):
        again = rpc.Response(data.draw(st.sampled_from(sorted(self.answers))), 17, b"second")
        self.to_client += encode_frame(again.serial_no, encode_response(again))

    @rule(ahead=st.integers(1, 5))
    def an_answer_to_nothing_travels(self, ahead):
        serial_no = (self.next_serial_no + ahead + 2**31) % 2**32 - 2**31
        stray = rpc.Response(serial_no, 17, b"stray")
        # It may only arrive while its number is still unused, else it would be an answer.
        self._drain_to_client()
        assert self.client.receive_data(encode_frame(serial_no, encode_response(stray))) == []

    @precondition(lambda self: self.client.in_flight)
    @rule(data=st.data())
    def client_gives_up(self, data):
        serial_no = data.draw(st.sampled_from(sorted(self.client.in_flight)))
        self.client.forget_request(serial_no)
        self.forgotten.add(serial_no)

    @precondition(lambda self: self.to_client)
    @rule(data=st.data())
    def bytes_reach_the_client(self, data):
        self._hear(self._take(data, self.to_client))

    @invariant()
    def each_side_knows_what_is_open(self):
        if not hasattr(self, "client"):
            return
        waiting = self.asked.keys() - self.heard.keys() - self.forgotten
        assert self.client.in_flight == waiting
        assert self.server.in_flight == self.arrived.keys() - self.answers.keys()
        assert not self.client.closed
        assert not self.server.closed

    def teardown(self):
        if not hasattr(self, "client"):
            return
        self._drain_to_client()
        assert self.heard.keys() <= self.answers.keys()
        assert self.answers.keys() - self.heard.keys() <= self.forgotten

    def _drain_to_client(self):
        if self.to_client:
            data = bytes(self.to_client)
            self.to_client.clear()
            self._hear(data)

    def _hear(self, data: bytes) -> None:
        for answer in self.client.receive_data(data):
            assert answer == self.answers[answer.serial_no]
            assert answer.serial_no not in self.heard
            assert answer.serial_no not in self.forgotten
            self.heard[answer.serial_no] = answer

    def _unanswered(self) -> list[int]:
        return sorted(self.arrived.keys() - self.answers.keys())

    @staticmethod
    def _take(data, wire: bytearray) -> bytes:
        size = data.draw(st.integers(1, len(wire)))
        taken = bytes(wire[:size])
        del wire[:size]
        return taken


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
