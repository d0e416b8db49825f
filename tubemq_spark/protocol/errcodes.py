"""TubeMQ's result codes as one table: what each means and what a caller should do about it.

The numbers are those of TubeMQ's TErrCodeConstants; a peer may send others, so ``lookup`` answers for any
number. Code that decides by a result code asks the table instead of listing numbers.
"""

import dataclasses
import enum
from typing import Final

from tubemq_spark.errors import RpcError

TEMPORARY_EXCEPTIONS: Final = frozenset(
    {"StandbyException", "ServerNotReadyException", "ServiceStoppingException"}
)
"""Java classes, without their packages, of exceptions that pass: another master, or the same one later."""


class ErrCode(enum.IntEnum):
    """Result codes under the names TubeMQ gives them (TErrCodeConstants)."""

    SUCCESS = 200
    NOT_READY = 201
    MOVED = 301
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    CONNECT_RETURN_NULL = 402
    FORBIDDEN = 403
    NOT_FOUND = 404
    ALL_PARTITION_FROZEN = 405
    NO_PARTITION_ASSIGNED = 406
    ALL_PARTITION_WAITING = 407
    ALL_PARTITION_INUSE = 408
    PARTITION_OCCUPIED = 410
    HB_NO_NODE = 411
    DUPLICATE_PARTITION = 412
    CERTIFICATE_FAILURE = 415
    SERVER_RECEIVE_OVERFLOW = 419
    CLIENT_SHUTDOWN = 420
    CLIENT_HIGH_FREQUENCY_REQUEST = 421
    PARTITION_UNSUBSCRIBABLE = 422
    PARTITION_UNPUBLISHABLE = 423
    CLIENT_INCONSISTENT_CONSUMETYPE = 424
    CLIENT_INCONSISTENT_TOPICSET = 425
    CLIENT_INCONSISTENT_FILTERSET = 426
    CLIENT_INCONSISTENT_SESSIONKEY = 427
    CLIENT_INCONSISTENT_SELECTBIG = 428
    CLIENT_INCONSISTENT_SOURCECOUNT = 429
    CLIENT_DUPLICATE_INDEXID = 430
    TOPIC_NOT_DEPLOYED = 431
    PARAMETER_MSG_NULL = 440
    PARAMETER_MSG_TOPIC_BLANK = 441
    PARAMETER_MSG_BODY_EMPTY = 442
    PARAMETER_MSG_TOPIC_UNPUBLISHED = 443
    PARAMETER_MSG_TOPIC_NO_PARTITION = 444
    PARAMETER_MSG_OVER_MAX_LENGTH = 445
    CONSUME_GROUP_FORBIDDEN = 450
    SERVER_CONSUME_SPEED_LIMIT = 452
    CONSUME_CONTENT_FORBIDDEN = 455
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503
    INTERNAL_SERVER_ERROR_MSGSET_NULL = 510
    UNSPECIFIED_ABNORMAL = 599


@dataclasses.dataclass(frozen=True, slots=True)
class CodeEntry:
    """What one result code means, and what it asks of the caller."""

    code: int
    name: str
    meaning: str
    retriable: bool
    """Whether the same request may succeed later."""
    refresh_metadata: bool
    """Whether the caller's view of topics, brokers or registrations is out of date."""
    hint: str
    """What to do, as the end of a sentence."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reaction:
    """The part of an entry that many codes share."""

    retriable: bool
    refresh_metadata: bool


_FAIL: Final = _Reaction(retriable=False, refresh_metadata=False)
_FAIL_AND_REFRESH: Final = _Reaction(retriable=False, refresh_metadata=True)
_RETRY: Final = _Reaction(retriable=True, refresh_metadata=False)
_RETRY_AND_REFRESH: Final = _Reaction(retriable=True, refresh_metadata=True)

_SAME_GROUP: Final = "give this reader a group of its own, or the settings of the group's other members"

_ROWS: Final[dict[ErrCode, tuple[_Reaction, str, str]]] = {
    ErrCode.SUCCESS: (_FAIL, "done", "nothing is to be done"),
    ErrCode.NOT_READY: (_RETRY, "the routing is not ready yet", "keep the old routing and ask again"),
    ErrCode.MOVED: (_RETRY, "the position lies before the store's first record", "fetch again"),
    ErrCode.BAD_REQUEST: (
        _FAIL,
        "a parameter is missing, blank, too long or malformed",
        "do not repeat the request unchanged",
    ),
    ErrCode.UNAUTHORIZED: (
        _FAIL,
        "the partition is not held by this consumer",
        "register the partition again; its records will be read again",
    ),
    ErrCode.CONNECT_RETURN_NULL: (_RETRY, "the call returned nothing", "try again"),
    ErrCode.FORBIDDEN: (
        _FAIL_AND_REFRESH,
        "the topic or partition is unknown or closed, or a checksum is wrong",
        "check that the topic exists and accepts this kind of request",
    ),
    ErrCode.NOT_FOUND: (_RETRY, "there is nothing to read now", "ask again later"),
    ErrCode.ALL_PARTITION_FROZEN: (_RETRY, "all partitions are paused", "resume a partition"),
    ErrCode.NO_PARTITION_ASSIGNED: (_RETRY, "no partition is assigned yet", "wait for the balance"),
    ErrCode.ALL_PARTITION_WAITING: (_RETRY, "all partitions are in a pause", "ask again later"),
    ErrCode.ALL_PARTITION_INUSE: (_RETRY, "all partitions wait for a confirmation", "confirm what was read"),
    ErrCode.PARTITION_OCCUPIED: (
        _RETRY,
        "another consumer of the group holds the partition",
        "it is freed when its holder closes or is silent for 30 s",
    ),
    ErrCode.HB_NO_NODE: (
        _RETRY_AND_REFRESH,
        "the sender is not registered, or its registration timed out",
        "register again",
    ),
    ErrCode.DUPLICATE_PARTITION: (
        _RETRY_AND_REFRESH,
        "another consumer of the group has taken the partition",
        "register again, or use another group",
    ),
    ErrCode.CERTIFICATE_FAILURE: (
        _FAIL,
        "the authentication failed, or the visit token is not valid",
        "check tubemq.username, tubemq.password and the clocks of both machines",
    ),
    ErrCode.SERVER_RECEIVE_OVERFLOW: (_RETRY, "the store's buffers are full", "send slower"),
    ErrCode.CLIENT_SHUTDOWN: (_FAIL, "the client is closed", "open a new client"),
    ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST: (
        _RETRY,
        "the partition was registered again too early",
        "wait 5 s before registering it again",
    ),
    ErrCode.PARTITION_UNSUBSCRIBABLE: (
        _RETRY_AND_REFRESH,
        "the partition is closed for reading",
        "open the topic for reading on its broker",
    ),
    ErrCode.PARTITION_UNPUBLISHABLE: (
        _RETRY_AND_REFRESH,
        "the partition is closed for writing",
        "open the topic for writing on its broker",
    ),
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: (_FAIL, "the group reads in another way", _SAME_GROUP),
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: (_FAIL, "the group reads other topics", _SAME_GROUP),
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: (_FAIL, "the group uses other filters", _SAME_GROUP),
    ErrCode.CLIENT_INCONSISTENT_SESSIONKEY: (_FAIL, "the group has another session key", _SAME_GROUP),
    ErrCode.CLIENT_INCONSISTENT_SELECTBIG: (
        _FAIL,
        "the group resolves conflicting start offsets in another way",
        _SAME_GROUP,
    ),
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: (_FAIL, "the group has another member count", _SAME_GROUP),
    ErrCode.CLIENT_DUPLICATE_INDEXID: (
        _FAIL,
        "another member of the group has the same node id",
        "give each member its own node id",
    ),
    ErrCode.TOPIC_NOT_DEPLOYED: (
        _FAIL_AND_REFRESH,
        "the topic does not exist",
        "create the topic, or fix its name",
    ),
    ErrCode.PARAMETER_MSG_NULL: (_FAIL, "the message is missing", "send a message"),
    ErrCode.PARAMETER_MSG_TOPIC_BLANK: (_FAIL, "the message names no topic", "name a topic"),
    ErrCode.PARAMETER_MSG_BODY_EMPTY: (_FAIL, "the message's body is empty", "send at least one byte"),
    ErrCode.PARAMETER_MSG_TOPIC_UNPUBLISHED: (_FAIL, "the topic is not published yet", "publish it first"),
    ErrCode.PARAMETER_MSG_TOPIC_NO_PARTITION: (
        _RETRY_AND_REFRESH,
        "the topic has no partition that accepts messages",
        "open the topic for writing on a broker",
    ),
    ErrCode.PARAMETER_MSG_OVER_MAX_LENGTH: (
        _FAIL,
        "the message is longer than the topic allows",
        "send smaller messages or raise the topic's maxMsgSize",
    ),
    ErrCode.CONSUME_GROUP_FORBIDDEN: (
        _FAIL,
        "the group is not authorised for the topic",
        "let the TubeMQ administrator authorise the group",
    ),
    ErrCode.SERVER_CONSUME_SPEED_LIMIT: (
        _RETRY,
        "the group's flow control rule applies",
        "wait the time the answer names",
    ),
    ErrCode.CONSUME_CONTENT_FORBIDDEN: (
        _FAIL,
        "the group is not authorised for these filters",
        "let the TubeMQ administrator authorise the filters",
    ),
    ErrCode.INTERNAL_SERVER_ERROR: (_RETRY, "the server failed inside", "look at the server's log"),
    ErrCode.SERVICE_UNAVAILABLE: (_RETRY, "the service is stopped", "start it, or wait until it is back"),
    ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL: (_RETRY, "the server found no messages", "fetch again"),
    ErrCode.UNSPECIFIED_ABNORMAL: (_RETRY, "something else failed", "look at the logs of both sides"),
}

_TABLE: Final[dict[int, CodeEntry]] = {
    int(code): CodeEntry(int(code), code.name, meaning, reaction.retriable, reaction.refresh_metadata, hint)
    for code, (reaction, meaning, hint) in _ROWS.items()
}


def lookup(code: int) -> CodeEntry:
    """Return the entry of a result code; a number TubeMQ does not define gets one that is not retriable."""
    known = _TABLE.get(code)
    if known is not None:
        return known
    return CodeEntry(
        code,
        "UNKNOWN",
        "a result code this client does not know",
        retriable=False,
        refresh_metadata=False,
        hint="look the number up in the server's version of TubeMQ",
    )


def rpc_error(code: int, text: str, *, peer: str, during: str) -> RpcError:
    """Make the error of an answer that is no success.

    Args:
        code: the result code the peer sent.
        text: the peer's own words (errMsg); the table's meaning is taken when they are blank.
        peer: who answered, for example ``broker 1 (10.1.2.3:8123)``.
        during: what was asked, for example ``registering demo/1:0``.

    Returns:
        The error, with ``retriable`` as the table says.
    """
    entry = lookup(code)
    words = text.strip().rstrip(".;") or entry.meaning
    error = RpcError(
        "TUBEMQ_RPC", peer=peer, code=code, name=entry.name, during=during, text=words, hint=entry.hint
    )
    error.retriable = entry.retriable
    return error
