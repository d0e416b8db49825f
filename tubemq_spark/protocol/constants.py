"""Numbers of the wire protocol (TubeMQ's RpcConstants and TBaseConstants)."""

import enum
from typing import Final

# RpcConstants.RPC_PROTOCOL_BEGIN_TOKEN
FRAME_TOKEN: Final = 0xFF7FF4FE
CHUNK_BYTES: Final = 8192
"""Writers cut a frame's stream into chunks of this size; only the last may be shorter."""
# RpcConstants.MAX_FRAME_MAX_LIST_SIZE: (20 + 8) MiB in chunks of 8192. The C++ client takes no more than
# 1024.
MAX_CHUNKS: Final = 3584
MAX_FRAME_BYTES: Final = MAX_CHUNKS * CHUNK_BYTES
"""28 MiB: what a Java peer takes at most, and our bound for the sum of a frame's chunks."""

# 1: Tencent's, 2: Apache's first and all C++ and Go clients, 3: InLong. Only exception names depend on it: a
# server writes them with the package that the client's version had.
PROTOCOL_VERSION: Final = 3
UNDEFINED: Final = -2
"""TubeMQ's "no value known"."""
IDLE_LIMIT_S: Final = 180.0
"""TubeMQ's C++ client closes connections of which it has heard nothing for so long. Devices on the way forget
idle connections without a word, and then nothing that is sent there gets an answer."""

DEFAULT_MASTER_PORT: Final = 8715
DEFAULT_MASTER_TLS_PORT: Final = 8716
DEFAULT_WEB_PORT: Final = 8080
"""Where a master serves its administration API as shipped."""
DEFAULT_BROKER_PORT: Final = 8123
DEFAULT_GATEWAY_PORT: Final = 11911
"""Our own choice, that of RocketMQ's service node: TubeMQ has no gateway."""
DEFAULT_BROKER_TLS_PORT: Final = 8124
DEFAULT_MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_MESSAGE_BYTES_LIMIT: Final = 20 << 20
ATTRIBUTE_ALLOWANCE_BYTES: Final = 10240
"""What a broker accepts above the message limit, so that attributes fit."""

OFFSET_HISTORY_TOPIC: Final = "__offset_history__"


class ServiceType(enum.IntEnum):
    """Who serves a method."""

    MASTER = 1
    BROKER_READ = 2
    BROKER_WRITE = 3


class Method(enum.IntEnum):
    """Numbers of the methods that travel."""

    PRODUCER_REGISTER = 1
    PRODUCER_HEARTBEAT = 2
    PRODUCER_CLOSE = 3
    CONSUMER_REGISTER = 4
    CONSUMER_HEARTBEAT = 5
    CONSUMER_CLOSE = 6
    BROKER_REGISTER = 7
    BROKER_HEARTBEAT = 8
    BROKER_CLOSE = 9
    # Go's client sends it as BROKER_READ, so both services have it.
    SEND_MESSAGE = 13
    PARTITION_REGISTER = 15
    PARTITION_HEARTBEAT = 16
    GET_MESSAGE = 17
    COMMIT_OFFSET = 18
    BALANCE_REGISTER = 20
    BALANCE_HEARTBEAT = 21
    BALANCE_PARTITION_META = 22


METHODS_OF: Final[dict[ServiceType, frozenset[int]]] = {
    ServiceType.MASTER: frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22}),
    ServiceType.BROKER_READ: frozenset({11, 12, 13, 15, 16, 17, 18, 19}),
    ServiceType.BROKER_WRITE: frozenset({11, 12, 13, 14}),
}
"""What the Java server accepts of each service (PbEnDecoder.isValidServiceTypeAndMethod)."""


class OpType(enum.IntEnum):
    """The two verbs of PARTITION_REGISTER."""

    REGISTER = 31
    UNREGISTER = 32


class ReadStatus(enum.IntEnum):
    """Where a register starts when the request names no offset.

    In an unregister 0 commits what is in flight and any other value drops it.
    """

    STORED_OR_EARLIEST = 0
    STORED_OR_LATEST = 1
    LATEST_ALWAYS = 2


class Status(enum.IntEnum):
    """How an RPC ended (ResponseHeader.status)."""

    SUCCESS = 0
    ERROR = 1
    FATAL = 2
