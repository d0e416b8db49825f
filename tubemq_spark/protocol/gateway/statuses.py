"""Which gRPC status an error has on its way from a gateway to a client.

Clients of ours do not need the status: the error itself travels beside it (``failures``). It is for other
clients, for proxies, and for those who look at rates of failures.
"""

import enum
from collections.abc import Mapping
from typing import Final

from tubemq_spark.errors import (
    AdminError,
    ConsumeError,
    DataLossError,
    GatewayError,
    LocalProtocolError,
    OffsetFormatError,
    OptionError,
    ProduceError,
    RemoteProtocolError,
    RpcError,
    TubeMQConnectionError,
    TubeMQError,
    TubeMQTimeoutError,
)
from tubemq_spark.protocol.errcodes import ErrCode


class Status(enum.IntEnum):
    """The status codes of gRPC that a gateway gives (https://grpc.io/docs/guides/status-codes)."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14  # without a TubeError it did not come from a gateway
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


_OF_CODES: Final[Mapping[int, Status]] = {
    ErrCode.NOT_READY: Status.UNAVAILABLE,
    ErrCode.MOVED: Status.UNAVAILABLE,
    ErrCode.BAD_REQUEST: Status.INVALID_ARGUMENT,
    ErrCode.UNAUTHORIZED: Status.ABORTED,  # a commit for a partition not held, and no failed login
    ErrCode.CONNECT_RETURN_NULL: Status.UNAVAILABLE,
    ErrCode.FORBIDDEN: Status.PERMISSION_DENIED,  # a broker's word for unknown topics, too
    ErrCode.NOT_FOUND: Status.NOT_FOUND,  # nothing to read now; an unknown topic is 403 or 431
    ErrCode.PARTITION_OCCUPIED: Status.ABORTED,
    ErrCode.HB_NO_NODE: Status.FAILED_PRECONDITION,
    ErrCode.DUPLICATE_PARTITION: Status.ABORTED,
    ErrCode.CERTIFICATE_FAILURE: Status.UNAUTHENTICATED,  # TubeMQ's failed login
    ErrCode.SERVER_RECEIVE_OVERFLOW: Status.RESOURCE_EXHAUSTED,
    ErrCode.CLIENT_SHUTDOWN: Status.CANCELLED,
    ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST: Status.RESOURCE_EXHAUSTED,
    ErrCode.PARTITION_UNSUBSCRIBABLE: Status.FAILED_PRECONDITION,
    ErrCode.PARTITION_UNPUBLISHABLE: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SESSIONKEY: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SELECTBIG: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: Status.FAILED_PRECONDITION,
    ErrCode.CLIENT_DUPLICATE_INDEXID: Status.FAILED_PRECONDITION,
    ErrCode.TOPIC_NOT_DEPLOYED: Status.NOT_FOUND,
    ErrCode.PARAMETER_MSG_NULL: Status.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_TOPIC_BLANK: Status.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_BODY_EMPTY: Status.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_TOPIC_UNPUBLISHED: Status.NOT_FOUND,
    ErrCode.PARAMETER_MSG_TOPIC_NO_PARTITION: Status.FAILED_PRECONDITION,
    ErrCode.PARAMETER_MSG_OVER_MAX_LENGTH: Status.INVALID_ARGUMENT,
    ErrCode.CONSUME_GROUP_FORBIDDEN: Status.PERMISSION_DENIED,
    ErrCode.SERVER_CONSUME_SPEED_LIMIT: Status.RESOURCE_EXHAUSTED,
    ErrCode.CONSUME_CONTENT_FORBIDDEN: Status.PERMISSION_DENIED,
    ErrCode.INTERNAL_SERVER_ERROR: Status.INTERNAL,
    ErrCode.SERVICE_UNAVAILABLE: Status.UNAVAILABLE,
    ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL: Status.INTERNAL,
}
"""Of TubeMQ's result codes; others are UNKNOWN."""

_OF_CONDITIONS: Final[Mapping[str, Status]] = {
    "TUBEMQ_LEASES_TAKEN": Status.ABORTED,
    "TUBEMQ_MESSAGE_TOO_LONG": Status.INVALID_ARGUMENT,
    "TUBEMQ_TOPIC_NAME": Status.INVALID_ARGUMENT,
    "TUBEMQ_TOPIC_UNKNOWN": Status.NOT_FOUND,
    "TUBEMQ_TOPIC_UNPUBLISHABLE": Status.FAILED_PRECONDITION,
    "TUBEMQ_PARTITION_UNKNOWN": Status.NOT_FOUND,
    "TUBEMQ_PARTITION_AWAY": Status.FAILED_PRECONDITION,
    "TUBEMQ_PARTITION_NOT_LISTED": Status.NOT_FOUND,
    "TUBEMQ_SEND_FAILED": Status.DEADLINE_EXCEEDED,
    "TUBEMQ_SEND_FAILED.AMBIGUOUS": Status.DEADLINE_EXCEEDED,  # TubeError.outcome is UNKNOWN
    "TUBEMQ_PRODUCER_BROKEN": Status.ABORTED,
    "TUBEMQ_MESSAGE_ABANDONED": Status.ABORTED,
    "TUBEMQ_SESSION_UNKNOWN": Status.FAILED_PRECONDITION,  # the client opens it there, and calls again
    "TUBEMQ_GATEWAY_PLAINTEXT": Status.FAILED_PRECONDITION,
    "TUBEMQ_SESSION_TAKEN": Status.ALREADY_EXISTS,
    "TUBEMQ_SESSION_FENCED": Status.ABORTED,  # the gateway has seen a larger SessionRef.epoch
    "TUBEMQ_GROUP_NOT_FOUND": Status.NOT_FOUND,  # ListMembers: neither members nor positions
    "TUBEMQ_GATEWAY_DEADLINE": Status.DEADLINE_EXCEEDED,
    "TUBEMQ_GATEWAY_BUSY": Status.RESOURCE_EXHAUSTED,
    "TUBEMQ_GATEWAY_DRAINING": Status.UNAVAILABLE,  # open the session at another gateway
    "TUBEMQ_GATEWAY_LOGIN": Status.UNAUTHENTICATED,
    "TUBEMQ_GATEWAY_FORBIDDEN": Status.PERMISSION_DENIED,
    "TUBEMQ_GATEWAY_CREATES_NONE": Status.FAILED_PRECONDITION,  # CreateTopic: the operator's decision
    "TUBEMQ_GATEWAY_REQUEST": Status.INVALID_ARGUMENT,
    "TUBEMQ_GATEWAY_FAILED": Status.INTERNAL,
}

_OF_KINDS: Final[tuple[tuple[type[TubeMQError], Status], ...]] = (
    (OptionError, Status.INVALID_ARGUMENT),
    (OffsetFormatError, Status.INVALID_ARGUMENT),
    (LocalProtocolError, Status.INVALID_ARGUMENT),
    (DataLossError, Status.DATA_LOSS),  # Fetch, where accept_losses is not set
    (TubeMQTimeoutError, Status.DEADLINE_EXCEEDED),
    (TubeMQConnectionError, Status.UNAVAILABLE),
    (RemoteProtocolError, Status.INTERNAL),
    (ProduceError, Status.UNAVAILABLE),
    (GatewayError, Status.INTERNAL),
)
"""Of what has no status by its condition; an error is of the first kind that fits."""


def status_of(error: TubeMQError) -> Status:
    """Return the status of an error; an unexpected one is UNKNOWN."""
    if (by_condition := _OF_CONDITIONS.get(error.condition)) is not None:
        return by_condition
    if isinstance(error, RpcError | ConsumeError | AdminError):
        return _OF_CODES.get(error.code, Status.UNKNOWN)
    for kind, status in _OF_KINDS:
        if isinstance(error, kind):
            return status
    return Status.UNKNOWN
