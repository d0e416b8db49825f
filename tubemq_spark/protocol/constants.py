"""Numbers of the wire protocol (TubeMQ's RpcConstants and TBaseConstants), and what names it accepts."""

import enum
import re
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
MAX_TOPICS: Final = 1024
"""Maximum number of topics per client (TBaseConstants.META_MAX_BOOKED_TOPIC_COUNT)."""
IDLE_LIMIT_S: Final = 180.0
"""TubeMQ's C++ client closes connections of which it has heard nothing for so long. Devices on the way forget
idle connections without a word, and then nothing that is sent there gets an answer."""

DEFAULT_MASTER_PORT: Final = 8715
DEFAULT_MASTER_TLS_PORT: Final = 8716
DEFAULT_WEB_PORT: Final = 8080
"""Where a master serves its administration API as shipped."""
EMBEDDED_WEB_PORT: Final = 8780
"""Where the embedded server does: 8080 is also Spark's."""
USUAL_WEB_PORTS: Final = (DEFAULT_WEB_PORT, EMBEDDED_WEB_PORT)
DEFAULT_ADMIN_TOKEN: Final = "abc"  # noqa: S105
"""What changes of a cluster must carry (confModAuthToken) where its operator has set nothing else; public."""
DEFAULT_BROKER_PORT: Final = 8123  # what a blank port in brokerInfos means
DEFAULT_GATEWAY_PORT: Final = 11911
"""Our own choice, that of RocketMQ's service node: TubeMQ has no gateway."""
DEFAULT_BROKER_TLS_PORT: Final = 8124  # the same blank, read by a client that uses TLS
DEFAULT_MAX_MESSAGE_BYTES: Final = 1 << 20  # until a master sends ApprovedClientConfig
MAX_MESSAGE_BYTES_LIMIT: Final = 20 << 20  # Java clamps ApprovedClientConfig.maxMsgSize to 1 to 20 MiB
ATTRIBUTE_ALLOWANCE_BYTES: Final = 10240
"""What a broker accepts above the message limit, so that attributes fit."""

OFFSET_HISTORY_TOPIC: Final = "__offset_history__"  # a send to it gets 403, a topicList that names it 400


class ServiceType(enum.IntEnum):
    """Who serves a method."""

    MASTER = 1  # RequestHeader.serviceType (1); 4 and 5 are reserved
    BROKER_READ = 2
    BROKER_WRITE = 3


class Method(enum.IntEnum):
    """Numbers of the methods that travel."""

    PRODUCER_REGISTER = 1  # brings brokerInfos, but no routes: heartbeats do
    PRODUCER_HEARTBEAT = 2  # topicInfos of each answer replace the whole routing
    PRODUCER_CLOSE = 3  # succeeds for unknown clients, too
    CONSUMER_REGISTER = 4  # V1: the master hands out partitions
    CONSUMER_HEARTBEAT = 5  # an answer carries an event, a later request its result
    CONSUMER_CLOSE = 6  # of V1 and V2 consumers
    BROKER_REGISTER = 7  # 7 to 9: the broker is the client here, the protocol the same
    BROKER_HEARTBEAT = 8
    BROKER_CLOSE = 9
    # Go's client sends it as BROKER_READ, so both services have it.
    SEND_MESSAGE = 13
    PARTITION_REGISTER = 15  # and unregister, as RegisterRequestC2B.opType (1) says
    PARTITION_HEARTBEAT = 16  # one per broker, for all partitions held there
    GET_MESSAGE = 17  # counts as a heartbeat of its partition; a commit does not
    COMMIT_OFFSET = 18  # names no offset: it confirms or drops the last pack
    BALANCE_REGISTER = 20  # 20 to 22: V2, where clients share out partitions; unknown to old masters
    BALANCE_HEARTBEAT = 21
    BALANCE_PARTITION_META = 22  # lists come only when the ids in the request differ


METHODS_OF: Final[dict[ServiceType, frozenset[int]]] = {
    ServiceType.MASTER: frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22}),
    ServiceType.BROKER_READ: frozenset({11, 12, 13, 15, 16, 17, 18, 19}),  # 11, 12, 19: without a message
    ServiceType.BROKER_WRITE: frozenset({11, 12, 13, 14}),  # 11, 12, 14: reserved, without a message
}
"""What the Java server accepts of each service (PbEnDecoder.isValidServiceTypeAndMethod)."""


class OpType(enum.IntEnum):
    """The two verbs of PARTITION_REGISTER."""

    REGISTER = 31  # even of a partition already held: what is in flight is dropped
    UNREGISTER = 32


class ReadStatus(enum.IntEnum):
    """Where a register starts when the request names no offset.

    In an unregister 0 commits what is in flight and any other value drops it.
    """

    STORED_OR_EARLIEST = 0  # 0 and 1 yield to a currOffset (8) of 0 or above
    STORED_OR_LATEST = 1
    LATEST_ALWAYS = 2  # at each register, and currOffset is ignored


class Status(enum.IntEnum):
    """How an RPC ended (ResponseHeader.status)."""

    SUCCESS = 0
    ERROR = 1  # StandbyException, a method of another service, an exception in a handler
    FATAL = 2  # an unreadable request or unknown method; without protocolVer


# What TubeMQ's administration accepts as a name (TStringUtils, WebFieldDef).
TOPIC_NAME: Final = re.compile(r"[a-zA-Z]\w{1,63}", re.ASCII)  # RPCs check the length only
TOPIC_NAME_RULE: Final = "2 to 64 letters, digits or _, the first a letter"

GROUP_NAME: Final = re.compile(r"[a-zA-Z][\w-]{1,1023}", re.ASCII)
GROUP_NAME_RULE: Final = "2 to 1024 letters, digits, _ or -, the first a letter"

MOST_MESSAGE_TYPES: Final = 500
"""How many message types a consumer may choose in a topic; TubeMQ's Java client checks that."""
LONGEST_MESSAGE_TYPE: Final = 256
"""In characters; TubeMQ's Java client checks that."""


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 has bytes for a text: none for what Python makes of bytes that are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
