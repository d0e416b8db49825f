"""TubeMQ's result codes as one table: what each means and what a caller should do about it.

The numbers are those of TubeMQ's TErrCodeConstants; a peer may send others, so ``lookup`` answers for any
number. Code that decides by a result code asks the table instead of listing numbers.
"""

import dataclasses
import enum
import re
from typing import Final

from tubemq_spark.errors import RpcError, tells_of_full_disk

TEMPORARY_EXCEPTIONS: Final = frozenset(
    {"StandbyException", "ServerNotReadyException", "ServiceStoppingException"}  # by exceptionName (1)
)
"""Java classes, without their packages, of exceptions that pass: another master, or the same one later."""


_ANY_CONDITION: Final = "TUBEMQ_RPC"


class ErrCode(enum.IntEnum):
    """Result codes under the names TubeMQ gives them (TErrCodeConstants)."""

    SUCCESS = 200  # methods 20 to 22 tell success by it alone: they have no `success`
    NOT_READY = 201  # in HeartResponseM2P with success=true; no server of today sends it
    MOVED = 301  # method 17, when a segment expires during the read
    BAD_REQUEST = 400  # blank or too long (PBParameterUtils), or data above the limit
    UNAUTHORIZED = 401  # method 18 only; methods 15 to 17 say 411 or 412 instead
    CONNECT_RETURN_NULL = 402  # never travels: a Java call gives null when its connection is lost
    FORBIDDEN = 403  # broker: unknown or closed topic, unknown partition, wrong checkSum
    NOT_FOUND = 404  # method 17: there is no long polling, so the client waits (Java 400 ms)
    ALL_PARTITION_FROZEN = 405  # 405 to 408: why a Java client cannot fetch; no server sends them
    NO_PARTITION_ASSIGNED = 406
    ALL_PARTITION_WAITING = 407
    ALL_PARTITION_INUSE = 408
    PARTITION_OCCUPIED = 410  # method 15; sent once more to the call that finds the holder timed out
    HB_NO_NODE = 411  # master: methods 2, 5, 8, 21, 22; broker: methods 15 to 17, failureInfo
    DUPLICATE_PARTITION = 412  # broker: unregister (15), failureInfo (16), fetch (17)
    CERTIFICATE_FAILURE = 415  # AuthenticateInfo for masters, the visit token for brokers
    SERVER_RECEIVE_OVERFLOW = 419  # method 13: the store's memory block stayed full for some short tries
    CLIENT_SHUTDOWN = 420  # 420 to 423 never travel
    CLIENT_HIGH_FREQUENCY_REQUEST = 421  # within 5 s of a 410 or 415
    PARTITION_UNSUBSCRIBABLE = 422  # status 0 in topicMetaInfoList
    PARTITION_UNPUBLISHABLE = 423  # reserved: nothing sends it
    CLIENT_INCONSISTENT_CONSUMETYPE = 424  # methods 4 and 20: the first member makes it V1, bound or V2
    CLIENT_INCONSISTENT_TOPICSET = 425  # methods 4 and 20: topicList
    CLIENT_INCONSISTENT_FILTERSET = 426  # methods 4 and 20: topicCondition
    CLIENT_INCONSISTENT_SESSIONKEY = 427  # RegisterRequestC2M.sessionKey (9), of bound groups
    CLIENT_INCONSISTENT_SELECTBIG = 428  # RegisterRequestC2M.selectBig (13); absent means true
    CLIENT_INCONSISTENT_SOURCECOUNT = 429  # totalCount (method 4, bound) or sourceCount (method 20)
    CLIENT_DUPLICATE_INDEXID = 430  # RegisterRequestC2MV2.nodeId (5), where sourceCount is above 0
    TOPIC_NOT_DEPLOYED = 431  # consumers only: for producers the topic is just not in topicInfos
    PARAMETER_MSG_NULL = 440  # 440 to 445 never travel: a Java producer checks before it sends
    PARAMETER_MSG_TOPIC_BLANK = 441
    PARAMETER_MSG_BODY_EMPTY = 442  # brokers refuse empty data with 400
    PARAMETER_MSG_TOPIC_UNPUBLISHED = 443
    PARAMETER_MSG_TOPIC_NO_PARTITION = 444  # the last topicInfos had no route of it
    PARAMETER_MSG_OVER_MAX_LENGTH = 445  # body and attributes; brokers allow 10240 bytes more, then 400
    CONSUME_GROUP_FORBIDDEN = 450  # methods 4 and 20: no consume control record, or a disabled one
    SERVER_CONSUME_SPEED_LIMIT = 452  # method 17: the only code with which minLimitTime has a meaning
    CONSUME_CONTENT_FORBIDDEN = 455  # methods 4 and 20: filter items beyond the control record's
    INTERNAL_SERVER_ERROR = 500  # of a send too: with audit on, one without msgTime is stored all the same
    SERVICE_UNAVAILABLE = 503  # not started, stopped, or reads or writes stopped by I/O errors
    INTERNAL_SERVER_ERROR_MSGSET_NULL = 510  # reserved: nothing sends it
    UNSPECIFIED_ABNORMAL = 599  # never travels: an exception, time-out or lost connection


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
    condition: str = _ANY_CONDITION
    """The condition of its error."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Reaction:
    """The part of an entry that many codes share."""

    retriable: bool
    refresh_metadata: bool


_FAIL: Final = _Reaction(retriable=False, refresh_metadata=False)
_FAIL_AND_REFRESH: Final = _Reaction(retriable=False, refresh_metadata=True)
_RETRY: Final = _Reaction(retriable=True, refresh_metadata=False)
_RETRY_AND_REFRESH: Final = _Reaction(retriable=True, refresh_metadata=True)

_AS_THE_OTHERS: Final = "to what the other members of the group have, or use another group"
_CREDENTIALS: Final = "username and password (in Spark: tubemq.username and tubemq.password)"

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
        f"check {_CREDENTIALS}",
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
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: (
        _FAIL,
        "the group reads in another way",
        "use the kind of consumer that its other members are (group, bound, assigned), or use another group",
    ),
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: (
        _FAIL,
        "the group reads other topics",
        f"set topics (in Spark: subscribe) {_AS_THE_OTHERS}",
    ),
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: (
        _FAIL,
        "the group uses other filters",
        f"set message_types (in Spark: messageTypes) {_AS_THE_OTHERS}",
    ),
    ErrCode.CLIENT_INCONSISTENT_SESSIONKEY: (
        _FAIL,
        "the group has another session key",
        f"set session_key {_AS_THE_OTHERS}",
    ),
    ErrCode.CLIENT_INCONSISTENT_SELECTBIG: (
        _FAIL,
        "the group resolves conflicting start offsets in another way",
        f"set select_big {_AS_THE_OTHERS}",
    ),
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: (
        _FAIL,
        "the group has another member count",
        f"set source_count {_AS_THE_OTHERS}",
    ),
    ErrCode.CLIENT_DUPLICATE_INDEXID: (
        _FAIL,
        "another member of the group has the same node id",
        "set node_id to a number that no other member has",
    ),
    ErrCode.TOPIC_NOT_DEPLOYED: (
        _FAIL_AND_REFRESH,
        "the topic does not exist",
        "create the topic, or correct its name",
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
        "let the TubeMQ administrator authorise the group for the topic, or use another group",
    ),
    ErrCode.SERVER_CONSUME_SPEED_LIMIT: (
        _RETRY,
        "the group's flow control rule applies",
        "wait the time the answer names",
    ),
    ErrCode.CONSUME_CONTENT_FORBIDDEN: (
        _FAIL,
        "the group is not authorised for these filters",
        "set message_types (in Spark: messageTypes) to what the group may read, or have more authorised",
    ),
    ErrCode.INTERNAL_SERVER_ERROR: (_RETRY, "the server failed inside", "look at the server's log"),
    ErrCode.SERVICE_UNAVAILABLE: (_RETRY, "the service is stopped", "start it, or wait until it is back"),
    ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL: (_RETRY, "the server found no messages", "fetch again"),
    ErrCode.UNSPECIFIED_ABNORMAL: (_RETRY, "something else failed", "look at the logs of both sides"),
}

_CONDITIONS: Final[dict[ErrCode, str]] = {
    ErrCode.CERTIFICATE_FAILURE: "TUBEMQ_NOT_AUTHENTICATED",
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: "TUBEMQ_GROUP_CONFLICT.CONSUME_TYPE",
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: "TUBEMQ_GROUP_CONFLICT.TOPICS",
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: "TUBEMQ_GROUP_CONFLICT.MESSAGE_TYPES",
    ErrCode.CLIENT_INCONSISTENT_SESSIONKEY: "TUBEMQ_GROUP_CONFLICT.SESSION_KEY",
    ErrCode.CLIENT_INCONSISTENT_SELECTBIG: "TUBEMQ_GROUP_CONFLICT.SELECT_BIG",
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: "TUBEMQ_GROUP_CONFLICT.SOURCE_COUNT",
    ErrCode.CLIENT_DUPLICATE_INDEXID: "TUBEMQ_GROUP_CONFLICT.NODE_ID",
    ErrCode.TOPIC_NOT_DEPLOYED: "TUBEMQ_TOPIC_NOT_DEPLOYED",
    ErrCode.CONSUME_GROUP_FORBIDDEN: "TUBEMQ_GROUP_FORBIDDEN",
    ErrCode.CONSUME_CONTENT_FORBIDDEN: "TUBEMQ_MESSAGE_TYPES_FORBIDDEN",
}
"""The codes that have a condition of their own, since the user has to correct something."""

_TABLE: Final[dict[int, CodeEntry]] = {
    int(code): CodeEntry(
        int(code),
        code.name,
        meaning,
        reaction.retriable,
        reaction.refresh_metadata,
        hint,
        _CONDITIONS.get(code, _ANY_CONDITION),
    )
    for code, (reaction, meaning, hint) in _ROWS.items()
}

FREE_SPACE: Final = "free space on the server's disk"
_STOPPED_BY_ITS_DISK: Final = re.compile(r"\b(?:Read|Write) StoreService")
"""In the words of a broker whose I/O errors were too many (ServiceStatusHolder)."""
_NOT_DEPLOYED: Final = re.compile(r"\[\[([^\[\]]+)\]\] not deployed")
"""A Java set of topics, in the words of PBParameterUtils.checkConsumerTopicList."""
_MOST_NAMED: Final = 10


@dataclasses.dataclass(frozen=True, slots=True)
class _CertificateFault:
    """One cause of a certificate failure, told by the server's words."""

    words: tuple[str, ...]
    condition: str
    hint: str


_CERTIFICATE_FAULTS: Final = (
    # The words of SimpleCertificateMasterHandler and SimpleCertificateBrokerHandler.
    _CertificateFault(
        ("Visit Authorized Token is invalid",),  # AuthorizedInfo, where enableVisitTokenCheck is on
        "TUBEMQ_NOT_AUTHENTICATED.VISIT_TOKEN",
        "masters give a new one with every answer; check that this client and the broker reach the masters",
    ),
    _CertificateFault(
        ("timestamp out of effective period",),  # AuthenticateInfo.timestamp (2)
        "TUBEMQ_NOT_AUTHENTICATED.CLOCK",
        "set the clocks of this machine and of the master, which may differ by 20 s",
    ),
    _CertificateFault(
        ("userName or password is not correct", "userName is not equal"),
        "TUBEMQ_NOT_AUTHENTICATED.WRONG_PASSWORD",
        f"correct {_CREDENTIALS}",
    ),
    _CertificateFault(
        ("is Blank", "is null", "is required", "required MasterCertificateInfo"),
        "TUBEMQ_NOT_AUTHENTICATED.NO_CREDENTIALS",
        f"set {_CREDENTIALS}",
    ),
)


def lookup(code: int) -> CodeEntry:
    """Return the entry of a result code; a number TubeMQ does not define gets one that is not retriable."""
    entry = _TABLE.get(code)
    if entry is not None:
        return entry
    return CodeEntry(
        code,
        "UNKNOWN",
        "a result code this client does not know",
        retriable=False,
        refresh_metadata=False,
        hint="look the number up in the server's version of TubeMQ",
    )


def refusals() -> dict[str, CodeEntry]:
    """Return the conditions that answers with a result code have, each with an entry that says what it means.

    The condition of all other codes is not among them, because each code has a meaning of its own.
    """
    entries = {entry.condition: entry for entry in _TABLE.values() if entry.condition != _ANY_CONDITION}
    login = entries["TUBEMQ_NOT_AUTHENTICATED"]
    faults = {
        fault.condition: dataclasses.replace(login, hint=fault.hint, condition=fault.condition)
        for fault in _CERTIFICATE_FAULTS
    }
    return entries | faults


def rpc_error(code: int, text: str, *, peer: str, during: str) -> RpcError:
    """Make the error of an answer that is no success.

    The table's meaning stands for blank words (``text``). ``peer`` is for example ``broker 1
    (10.1.2.3:8123)``, and ``during`` is ``registering demo/1:0``.
    """
    entry = lookup(code)
    words = text.strip().rstrip(".;!") or entry.meaning  # free text; errCode decides
    condition, hint = _advice(entry, words)
    if entry.code == ErrCode.TOPIC_NOT_DEPLOYED:
        words = _missing_topics_text(words, during)
    error = RpcError(condition, peer=peer, code=code, name=entry.name, during=during, text=words, hint=hint)
    error.retriable = entry.retriable
    return error


def _missing_topics_text(words: str, during: str) -> str:
    """Return a sentence about missing topics, by a master's text."""
    match = _NOT_DEPLOYED.search(words)
    if match is None:
        return f"A topic does not exist ({words}, while {during})"
    topics = [f"'{topic}'" for topic in match[1].split(", ")]
    if len(topics) == 1:
        return f"Topic {topics[0]} does not exist"
    more = f" and {len(topics) - _MOST_NAMED} more" if len(topics) > _MOST_NAMED else ""
    return f"Topics {', '.join(topics[:_MOST_NAMED])}{more} do not exist"


def _advice(entry: CodeEntry, words: str) -> tuple[str, str]:
    """Return the condition of an answer, and what to do."""
    if entry.code == ErrCode.CERTIFICATE_FAILURE:
        for fault in _CERTIFICATE_FAULTS:
            if any(phrase in words for phrase in fault.words):
                return fault.condition, fault.hint
    return entry.condition, advice(entry.code, words)


def advice(code: int, words: str) -> str:
    """Return what to do about an answer, by its code and the server's words, as the end of a sentence."""
    if tells_of_full_disk(words):
        return FREE_SPACE
    if code == ErrCode.SERVICE_UNAVAILABLE and _STOPPED_BY_ITS_DISK.search(words):
        return "check the server's disk, whose errors have stopped it, and look at its log"
    return lookup(code).hint
