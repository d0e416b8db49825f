"""The frame of a SendMessage request, put together from pieces that seldom change.

A sink builds one frame a row, and the general way (two protobuf messages, then framing) costs ten times as
much. Everything between the serial number and the payload depends on sizes only, everything behind the
payload on type and time, and both repeat from row to row. The bytes are those of the general way.
"""

import functools
import struct
from typing import Final

from tubemq_spark.errors import LocalProtocolError
from tubemq_spark.protocol import framing
from tubemq_spark.protocol.constants import (
    CHUNK_BYTES,
    FRAME_TOKEN,
    PROTOCOL_VERSION,
    UNDEFINED,
    Method,
    ServiceType,
)
from tubemq_spark.protocol.payload import Payload
from tubemq_spark.protocol.pb import broker_pb2, common_pb2
from tubemq_spark.protocol.rpc import encode_varint

_HEAD: Final = struct.Struct(">Ii")
_CHUNK_HEAD: Final = struct.Struct(">ii")
_ENVELOPE: Final = bytes((2, 0x08, 0, 4, 0x08, ServiceType.BROKER_WRITE, 0x10, PROTOCOL_VERSION))
"""RpcConnHeader and RequestHeader, delimited."""
_METHOD: Final = bytes((0x08, Method.SEND_MESSAGE))
_TAG_TIMEOUT: Final = b"\x10"
_TAG_REQUEST: Final = b"\x1a"
_TAG_DATA: Final = b"\x22"
_CHECKSUM_BY_BROKER: Final = -1
_CACHED_SHAPES: Final = 4096
"""How many sizes, and how many pairs of type and time, are remembered at a time; about 200 bytes each."""


class SendEncoder:
    """Builds the frames that send messages of one client to one partition."""

    def __init__(
        self,
        client_id: str,
        topic: str,
        partition_id: int,
        sent_addr: int,
        visit_token: int = UNDEFINED,
        user_token: str = "",
    ) -> None:
        """Remember what all messages share.

        Args:
            client_id: the producer's id, as registered at the master.
            topic: the topic's name.
            partition_id: store * 10000 + index.
            sent_addr: our IPv4 address as ``payload.sent_address`` gives it.
            visit_token: the master's latest token; -2 before there is one.
            user_token: the master's latest proof of the user (``authAuthorizedToken``); blank without one.
        """
        self._place = broker_pb2.SendMessageRequestP2B(
            clientId=client_id, topicName=topic, partitionId=partition_id
        ).SerializePartialToString()
        self._sent_addr = sent_addr
        self._credentials = common_pb2.AuthorizedInfo(visitAuthorizedToken=visit_token)
        if user_token:
            self._credentials.authAuthorizedToken = user_token
        self._front = functools.lru_cache(_CACHED_SHAPES)(self._build_front)
        self._back = functools.lru_cache(_CACHED_SHAPES)(self._build_back)

    def frame(
        self,
        serial_no: int,
        payload: Payload,
        message_type: str | None,
        message_time: str | None,
        timeout_ms: int,
    ) -> bytes:
        """Return one request's frame; type and time must be those inside the payload.

        Raises:
            LocalProtocolError: the time-out is not positive, or the frame would be longer than 28 MiB.
        """
        back = self._back(payload.flag, message_type, message_time)
        front, in_one_chunk = self._front(len(payload.data), len(back), timeout_ms)
        if in_one_chunk:
            return b"".join((_HEAD.pack(FRAME_TOKEN, serial_no), front, payload.data, back))
        return framing.encode_frame(serial_no, b"".join((front, payload.data, back)))

    def _build_front(self, data_size: int, back_size: int, timeout_ms: int) -> tuple[bytes, bool]:
        """Return what precedes the payload, and whether the frame has one chunk (whose head is included)."""
        if timeout_ms <= 0:
            raise LocalProtocolError(
                "TUBEMQ_PROTOCOL_MISUSE", what=f"a request with time-out {timeout_ms} ms"
            )
        place = b"".join((self._place, _TAG_DATA, encode_varint(data_size)))
        request_size = len(place) + data_size + back_size
        sizes = (_TAG_TIMEOUT, encode_varint(timeout_ms), _TAG_REQUEST, encode_varint(request_size))
        call = b"".join((_METHOD, *sizes))
        front = b"".join((_ENVELOPE, encode_varint(len(call) + request_size), call, place))
        stream_size = len(front) + data_size + back_size
        if stream_size > CHUNK_BYTES:
            return front, False
        return _CHUNK_HEAD.pack(1, stream_size) + front, True

    def _build_back(self, flag: int, message_type: str | None, message_time: str | None) -> bytes:
        """Return what follows the payload."""
        return broker_pb2.SendMessageRequestP2B(
            flag=flag,
            checkSum=_CHECKSUM_BY_BROKER,
            sentAddr=self._sent_addr,
            msgType=message_type,
            msgTime=message_time,
            authInfo=self._credentials,
        ).SerializePartialToString()
