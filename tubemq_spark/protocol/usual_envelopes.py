"""Reads the envelopes of requests and answers as TubeMQ writes them; ``rpc`` reads all others.

What precedes a request's or an answer's own message depends on little and repeats from call to call, so a
pattern recognises it, and what it says is remembered. The results are those of the general way in ``rpc``; a
property test compares the two.
"""

import functools
import re
from typing import Final

_USUAL_REQUEST: Final = re.compile(
    rb"""
    \x02\x08\x00                         # RpcConnHeader{flag=0}, delimited
    \x04\x08[\x00-\x7f]\x10[\x00-\x7f]    # RequestHeader{serviceType, protocolVer}, delimited
    [\x80-\xff]{0,4}[\x00-\x7f]          # the length of RequestBody
    \x08[\x00-\x7f]                      # its method
    \x10[\x80-\xff]{0,8}[\x00-\x7f]      # its timeout
    \x1a[\x80-\xff]{0,3}[\x00-\x7f]      # the length of its request
    """,
    re.VERBOSE | re.DOTALL,
)
_USUAL_ANSWER: Final = re.compile(
    rb"""
    \x02\x08\x01                         # RpcConnHeader{flag=1}, delimited
    \x04\x08\x00\x18[\x00-\x7f]          # ResponseHeader{status=SUCCESS, protocolVer}, delimited
    [\x80-\xff]{0,4}[\x00-\x7f]          # the length of RspResponseBody
    \x08[\x00-\x7f]                      # its method
    \x12[\x80-\xff]{0,3}[\x00-\x7f]      # the length of its data
    """,
    re.VERBOSE | re.DOTALL,
)
# Positions of one-byte fields behind RpcConnHeader (3 bytes) and the header's length and tags.
_SERVICE_AT: Final = 5  # RequestHeader.serviceType
_VERSION_AT: Final = 7  # RequestHeader.protocolVer
_BODY_SIZE_AT: Final = 8  # behind both headers: 3 bytes and 5
_VIEWED_BYTES: Final = 1 << 14
"""Messages of this length and more are not copied."""
_CACHED_HEADS: Final = 4096
"""How many envelopes are remembered; one for every length of a message. About 300 bytes each."""


def usual_request(stream: bytes) -> tuple[int, int, int, bytes, int] | None:
    """Return service, method, time-out in ms, the request's own bytes and the protocol version.

    None: a stream that is laid out in another way, or damaged.
    """
    usual = _USUAL_REQUEST.match(stream)
    if usual is None:
        return None
    at = usual.end()
    service, method, timeout_ms, size, version = _read_request_head(stream[:at])
    if not 0 <= size <= len(stream) - at:
        return None
    return service, method, timeout_ms, stream[at : at + size], version


def usual_answer(stream: bytes) -> tuple[int, bytes | memoryview] | None:
    """Return the method and the message's own bytes of a successful answer, long ones as a view.

    None: any other answer, or one that is laid out in another way or damaged.
    """
    usual = _USUAL_ANSWER.match(stream)
    if usual is None:
        return None
    at = usual.end()
    method, size = _read_answer_head(stream[:at])
    if not 0 <= size <= len(stream) - at:
        return None
    source = stream if size < _VIEWED_BYTES else memoryview(stream)
    return method, source[at : at + size]


@functools.lru_cache(_CACHED_HEADS)
def _read_request_head(head: bytes) -> tuple[int, int, int, int, int]:
    """Return service, method, time-out, length of the request and version of a usual request.

    The length is -1 when the body does not end with the request.
    """
    body_size, body_at = _read_varint(head, _BODY_SIZE_AT)
    # Behind the tag and the value of `method`, and the tag of `timeout`.
    timeout_ms, timeout_end = _read_varint(head, body_at + 3)
    size, _ = _read_varint(head, timeout_end + 1)
    # Fields that another version adds behind `request` are left to protobuf, which knows how to skip them.
    ends_with_request = body_at + body_size == len(head) + size
    method = head[body_at + 1]
    return head[_SERVICE_AT], method, timeout_ms, size if ends_with_request else -1, head[_VERSION_AT]


@functools.lru_cache(_CACHED_HEADS)
def _read_answer_head(head: bytes) -> tuple[int, int]:
    """Return the method of a usual answer, and the length of its message.

    The length is -1 when the body does not end with the message.
    """
    body_size, body_at = _read_varint(head, _BODY_SIZE_AT)
    # Behind the tag and the value of `method`, and the tag of `data`.
    size, _ = _read_varint(head, body_at + 3)
    return head[body_at + 1], size if body_at + body_size == len(head) + size else -1


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends; the data must hold it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
