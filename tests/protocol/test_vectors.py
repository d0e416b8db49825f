"""Every frame recorded from TubeMQ's Java code is read and written again to identical bytes."""

from testkit.wire import encode_response
from tests.cases import in_one_test
from tests.protocol.vectors import DOCUMENT, VECTORS, build, frame_of, message_type
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import CHUNK_BYTES, FRAME_TOKEN, MAX_CHUNKS, Method, ServiceType, Status
from tubemq_spark.protocol.framing import Frame, FrameDecoder, encode_frame

each_vector = in_one_test("vector", VECTORS)
each_request = in_one_test("vector", [vector for vector in VECTORS if vector["kind"] == "request"])
each_response = in_one_test("vector", [vector for vector in VECTORS if vector["kind"] == "response"])
each_exception = in_one_test("vector", [vector for vector in VECTORS if vector["kind"] == "exception"])
with_message = in_one_test("vector", [vector for vector in VECTORS if "messageHex" in vector])


def decode(vector) -> Frame:
    (frame,) = FrameDecoder().receive_data(frame_of(vector))
    return frame


def test_the_file_is_complete():
    assert len(VECTORS) == 43
    assert {vector["kind"] for vector in VECTORS} == {"request", "response", "exception"}


def test_our_constants_are_the_recorded_ones():
    assert int(DOCUMENT["constants"]["beginToken"], 16) == FRAME_TOKEN
    assert DOCUMENT["constants"]["maxChunk"] == CHUNK_BYTES
    assert DOCUMENT["constants"]["maxListSize"] == MAX_CHUNKS


@each_vector
def test_frame_decodes_and_encodes_to_the_same_bytes(vector):
    frame = decode(vector)

    assert frame.serial_no == vector["serialNo"]
    assert len(frame.stream) == sum(vector["chunkLengths"])
    assert encode_frame(frame.serial_no, frame.stream) == frame_of(vector)


def test_all_frames_in_one_read():
    together = b"".join(map(frame_of, VECTORS))
    assert FrameDecoder().receive_data(together) == [decode(vector) for vector in VECTORS]


@with_message
def test_message_parses_and_serialises_to_the_same_bytes(vector):
    data = bytes.fromhex(vector["messageHex"])
    message = rpc.parse_message(message_type(vector["message"]), data)

    assert rpc.serialize_message(message) == data
    assert message == build(message_type(vector["message"])(), vector["fields"])


@each_request
def test_request_decodes_and_encodes_to_the_same_bytes(vector):
    request = rpc.decode_request(vector["serialNo"], decode(vector).stream)

    assert request == rpc.Request(
        vector["serialNo"],
        vector["requestHeader"]["serviceType"],
        vector["requestBody"]["method"],
        vector["requestBody"]["timeout"],
        bytes.fromhex(vector["messageHex"]),
        vector["requestHeader"]["protocolVer"],
    )
    assert rpc.encode_request(request) == decode(vector).stream


@each_request
def test_a_client_sends_the_recorded_frame(vector):
    client = RpcConnection(Role.CLIENT)
    client._next_serial_no = vector["serialNo"]
    body = vector["requestBody"]

    client.send_request(
        ServiceType(vector["requestHeader"]["serviceType"]),
        Method(body["method"]),
        bytes.fromhex(vector["messageHex"]),
        body["timeout"],
    )

    assert client.data_to_send() == frame_of(vector)


@each_response
def test_response_decodes_and_encodes_to_the_same_bytes(vector):
    response = rpc.decode_answer(vector["serialNo"], decode(vector).stream)

    method = vector["rspResponseBody"]["method"]
    assert response == rpc.Response(vector["serialNo"], method, bytes.fromhex(vector["messageHex"]))
    assert encode_response(response) == decode(vector).stream


@each_exception
def test_exception_decodes_and_encodes_to_the_same_bytes(vector):
    failure = rpc.decode_answer(vector["serialNo"], decode(vector).stream)

    body = vector["rspExceptionBody"]
    assert failure == rpc.Failure(
        vector["serialNo"],
        Status(vector["responseHeader"]["status"]),
        body["exceptionName"],
        body["stackTrace"],
    )
    assert rpc.encode_failure(failure) == decode(vector).stream


def test_the_standby_exception_is_recognised_whatever_the_version_of_its_receiver():
    names = {
        rpc.decode_answer(1, decode(vector).stream).exception_class
        for vector in VECTORS
        if vector["name"].startswith("standby")
    }
    assert names == {"StandbyException"}


@each_response
def test_a_server_answers_with_the_recorded_frame(vector):
    server = RpcConnection(Role.SERVER)
    server._in_flight[vector["serialNo"]] = 1
    request = rpc.Request(vector["serialNo"], 1, vector["rspResponseBody"]["method"], 1, b"")

    server.send_response(request, bytes.fromhex(vector["messageHex"]))

    assert server.data_to_send() == frame_of(vector)
