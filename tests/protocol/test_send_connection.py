"""The fast encoder of sends writes the bytes of the general way."""

import pytest
from hypothesis import given, settings, strategies as st

from tests import strategies as own
from tests.protocol.vectors import VECTORS, frame_of
from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.connection import Role, RpcConnection
from tubemq_spark.protocol.constants import MAX_FRAME_BYTES, Method, ServiceType
from tubemq_spark.protocol.payload import Payload, encode_payload
from tubemq_spark.protocol.pb import broker_pb2
from tubemq_spark.protocol.send_connection import SendEncoder

TIMEOUT_MS = 10_000
SENDS = [vector for vector in VECTORS if vector.get("message") == "SendMessageRequestP2B"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
payloads = st.builds(
    Payload,
    st.one_of(
        st.binary(min_size=1, max_size=300),
        st.sampled_from([127, 128, 7900, 8192, 16300, 20_000]).flatmap(
            lambda size: st.integers(-120, 120).map(lambda more: b"x" * (size + more))
        ),
    ),
    st.integers(0, 3),
)


def general_frame(place, serial_no, payload, message_type, message_time, timeout_ms) -> bytes:
    client_id, topic, partition_id, sent_addr, visit_token, *user_token = place
    message = broker_pb2.SendMessageRequestP2B(
        clientId=client_id,
        topicName=topic,
        partitionId=partition_id,
        data=payload.data,
        flag=payload.flag,
        checkSum=-1,
        sentAddr=sent_addr,
        msgType=message_type,
        msgTime=message_time,
    )
    message.authInfo.visitAuthorizedToken = visit_token
    if any(user_token):
        message.authInfo.authAuthorizedToken = user_token[0]
    client = RpcConnection(Role.CLIENT)
    client._next_serial_no = serial_no
    body = rpc.serialize_message(message)
    client.send_request(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, body, timeout_ms)
    return client.data_to_send()


@settings(max_examples=200)
@given(
    st.tuples(texts, texts, own.int32s, own.int32s, own.int64s, texts),
    st.lists(
        st.tuples(own.int32s, payloads, st.none() | texts, st.none() | texts, st.integers(1, 1 << 40)),
        min_size=1,
        max_size=4,
    ),
)
def test_frames_are_those_of_the_general_way(place, calls):
    encoder = SendEncoder(*place)
    for call in calls:
        assert encoder.frame(*call) == general_frame(place, *call)


@pytest.mark.parametrize("size", range(7_950, 8_200))
def test_frames_around_the_border_of_a_chunk(size):
    place = ("10.1.2.3-1-2-3-py", "demo", 10001, 167838211, 1_700_000_001_000)
    call = (1, Payload(bytes(size), 0), "fA", "202401020304", TIMEOUT_MS)
    assert SendEncoder(*place).frame(*call) == general_frame(place, *call)


@pytest.mark.parametrize(
    "vector",
    [vector for vector in SENDS if vector["fields"]["checkSum"] == -1],
    ids=lambda vector: vector["name"],
)
def test_the_recorded_sends(vector):
    fields = vector["fields"]
    encoder = SendEncoder(
        fields["clientId"],
        fields["topicName"],
        fields["partitionId"],
        fields["sentAddr"],
        fields["authInfo"]["visitAuthorizedToken"],
    )
    payload = Payload(bytes.fromhex(fields["data"]["hex"]), fields["flag"])
    frame = encoder.frame(
        vector["serialNo"], payload, fields.get("msgType"), fields.get("msgTime"), TIMEOUT_MS
    )
    assert frame == frame_of(vector)


def test_some_sends_are_recorded():
    assert {len(vector["chunkLengths"]) for vector in SENDS if vector["fields"]["checkSum"] == -1} >= {1, 3}


@given(own.names, own.names)
def test_an_encoder_forgets_nothing_between_messages(first_type, second_type):
    """What it remembers of one type must not show up in another's frame."""
    place = ("c", "demo", 0, 0, -2)
    encoder = SendEncoder("c", "demo", 0, 0)
    for serial_no, message_type in enumerate([first_type, second_type, first_type, None]):
        call = (serial_no, encode_payload(b"body", None, message_type), message_type, None, TIMEOUT_MS)
        assert encoder.frame(*call) == general_frame(place, *call)


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_send_without_time_out_is_refused(timeout_ms):
    with pytest.raises(LocalProtocolError, match=f"time-out {timeout_ms} ms"):
        SendEncoder("c", "demo", 0, 0).frame(1, Payload(b"x", 0), None, None, timeout_ms)


def test_a_frame_above_28_mib_is_refused():
    with pytest.raises(LocalProtocolError, match="a frame of"):
        SendEncoder("c", "demo", 0, 0).frame(1, Payload(bytes(MAX_FRAME_BYTES), 0), None, None, TIMEOUT_MS)
