"""What a message that is sent by itself carries beside its value."""

import functools
from collections.abc import Mapping
from typing import Final

from tubemq_spark.protocol.payload import empty_value, encode_prefix
from tubemq_spark.protocol.send_batch import MessageHeader

_CACHED_HEADERS: Final = 4096
"""How many pairs of type and time are remembered: they repeat from message to message."""


def message_header(
    value: bytes, attributes: Mapping[str, str] | None, message_type: str | None, message_time: str | None
) -> tuple[MessageHeader, bytes]:
    """Return what a message carries beside its value, as it is and as it is written.

    Raises:
        OptionError: the value is empty, or an attribute cannot be written.
    """
    if not value:
        raise empty_value()
    if not attributes:
        return _usual_header(message_type, message_time)
    header = MessageHeader(attributes, message_type, message_time)
    return header, encode_prefix(*header)


@functools.lru_cache(_CACHED_HEADERS)
def _usual_header(message_type: str | None, message_time: str | None) -> tuple[MessageHeader, bytes]:
    header = MessageHeader(None, message_type, message_time)
    return header, encode_prefix(*header)
