"""Errors on their way between a gateway and its client: the same error arrives, with the same text.

An error that ends a call travels in trailers, twice: as a ``TubeError``, and in the form that every tool of
gRPC knows (``google.rpc.Status``). Metadata have a limit, and what is beyond it arrives as another error. So
texts that are too long are cut there; the condition, the kind and the numbers always arrive.

Clients of ours do not need the call's status. It is for other clients, for proxies, and for those who look at
rates of failures.
"""

import enum
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from google.protobuf.message import DecodeError

from tubemq_spark import errors
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
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


class GrpcStatus(enum.IntEnum):
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


_OF_CODES: Final[Mapping[int, GrpcStatus]] = {
    ErrCode.NOT_READY: GrpcStatus.UNAVAILABLE,
    ErrCode.MOVED: GrpcStatus.UNAVAILABLE,
    ErrCode.BAD_REQUEST: GrpcStatus.INVALID_ARGUMENT,
    ErrCode.UNAUTHORIZED: GrpcStatus.ABORTED,  # a commit for a partition not held, and no failed login
    ErrCode.CONNECT_RETURN_NULL: GrpcStatus.UNAVAILABLE,
    ErrCode.FORBIDDEN: GrpcStatus.PERMISSION_DENIED,  # a broker's word for unknown topics, too
    ErrCode.NOT_FOUND: GrpcStatus.NOT_FOUND,  # nothing to read now; an unknown topic is 403 or 431
    ErrCode.PARTITION_OCCUPIED: GrpcStatus.ABORTED,
    ErrCode.HB_NO_NODE: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.DUPLICATE_PARTITION: GrpcStatus.ABORTED,
    ErrCode.CERTIFICATE_FAILURE: GrpcStatus.UNAUTHENTICATED,  # TubeMQ's failed login
    ErrCode.SERVER_RECEIVE_OVERFLOW: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrCode.CLIENT_SHUTDOWN: GrpcStatus.CANCELLED,
    ErrCode.CLIENT_HIGH_FREQUENCY_REQUEST: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrCode.PARTITION_UNSUBSCRIBABLE: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.PARTITION_UNPUBLISHABLE: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SESSIONKEY: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SELECTBIG: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.CLIENT_DUPLICATE_INDEXID: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.TOPIC_NOT_DEPLOYED: GrpcStatus.NOT_FOUND,
    ErrCode.PARAMETER_MSG_NULL: GrpcStatus.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_TOPIC_BLANK: GrpcStatus.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_BODY_EMPTY: GrpcStatus.INVALID_ARGUMENT,
    ErrCode.PARAMETER_MSG_TOPIC_UNPUBLISHED: GrpcStatus.NOT_FOUND,
    ErrCode.PARAMETER_MSG_TOPIC_NO_PARTITION: GrpcStatus.FAILED_PRECONDITION,
    ErrCode.PARAMETER_MSG_OVER_MAX_LENGTH: GrpcStatus.INVALID_ARGUMENT,
    ErrCode.CONSUME_GROUP_FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    ErrCode.SERVER_CONSUME_SPEED_LIMIT: GrpcStatus.RESOURCE_EXHAUSTED,
    ErrCode.CONSUME_CONTENT_FORBIDDEN: GrpcStatus.PERMISSION_DENIED,
    ErrCode.INTERNAL_SERVER_ERROR: GrpcStatus.INTERNAL,
    ErrCode.SERVICE_UNAVAILABLE: GrpcStatus.UNAVAILABLE,
    ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL: GrpcStatus.INTERNAL,
}
"""Of TubeMQ's result codes; others are UNKNOWN."""

_OF_CONDITIONS: Final[Mapping[str, GrpcStatus]] = {
    "TUBEMQ_LEASES_TAKEN": GrpcStatus.ABORTED,
    "TUBEMQ_MESSAGE_TOO_LONG": GrpcStatus.INVALID_ARGUMENT,
    "TUBEMQ_TOPIC_NAME": GrpcStatus.INVALID_ARGUMENT,
    "TUBEMQ_TOPIC_UNKNOWN": GrpcStatus.NOT_FOUND,
    "TUBEMQ_TOPIC_UNPUBLISHABLE": GrpcStatus.FAILED_PRECONDITION,
    "TUBEMQ_PARTITION_UNKNOWN": GrpcStatus.NOT_FOUND,
    "TUBEMQ_PARTITION_AWAY": GrpcStatus.FAILED_PRECONDITION,
    "TUBEMQ_PARTITION_NOT_LISTED": GrpcStatus.NOT_FOUND,
    "TUBEMQ_SEND_FAILED": GrpcStatus.DEADLINE_EXCEEDED,
    "TUBEMQ_SEND_FAILED.AMBIGUOUS": GrpcStatus.DEADLINE_EXCEEDED,  # TubeError.outcome is UNKNOWN
    "TUBEMQ_PRODUCER_BROKEN": GrpcStatus.ABORTED,
    "TUBEMQ_MESSAGE_ABANDONED": GrpcStatus.ABORTED,
    "TUBEMQ_SESSION_UNKNOWN": GrpcStatus.FAILED_PRECONDITION,  # the client opens it there, and calls again
    "TUBEMQ_GATEWAY_PLAINTEXT": GrpcStatus.FAILED_PRECONDITION,
    "TUBEMQ_SESSION_TAKEN": GrpcStatus.ALREADY_EXISTS,
    "TUBEMQ_SESSION_FENCED": GrpcStatus.ABORTED,  # the gateway has seen a larger SessionRef.epoch
    "TUBEMQ_GROUP_NOT_FOUND": GrpcStatus.NOT_FOUND,  # ListMembers: neither members nor positions
    "TUBEMQ_GATEWAY_DEADLINE": GrpcStatus.DEADLINE_EXCEEDED,
    "TUBEMQ_GATEWAY_BUSY": GrpcStatus.RESOURCE_EXHAUSTED,
    "TUBEMQ_GATEWAY_DRAINING": GrpcStatus.UNAVAILABLE,  # open the session at another gateway
    "TUBEMQ_GATEWAY_LOGIN": GrpcStatus.UNAUTHENTICATED,
    "TUBEMQ_GATEWAY_FORBIDDEN": GrpcStatus.PERMISSION_DENIED,
    "TUBEMQ_GATEWAY_CREATES_NONE": GrpcStatus.FAILED_PRECONDITION,  # CreateTopic: the operator's decision
    "TUBEMQ_GATEWAY_REQUEST": GrpcStatus.INVALID_ARGUMENT,
    "TUBEMQ_GATEWAY_FAILED": GrpcStatus.INTERNAL,
}

_OF_KINDS: Final[tuple[tuple[type[TubeMQError], GrpcStatus], ...]] = (
    (OptionError, GrpcStatus.INVALID_ARGUMENT),
    (OffsetFormatError, GrpcStatus.INVALID_ARGUMENT),
    (LocalProtocolError, GrpcStatus.INVALID_ARGUMENT),
    (DataLossError, GrpcStatus.DATA_LOSS),  # Fetch, where accept_losses is not set
    (TubeMQTimeoutError, GrpcStatus.DEADLINE_EXCEEDED),
    (TubeMQConnectionError, GrpcStatus.UNAVAILABLE),
    (RemoteProtocolError, GrpcStatus.INTERNAL),
    (ProduceError, GrpcStatus.UNAVAILABLE),
    (GatewayError, GrpcStatus.INTERNAL),
)
"""Of what has no status by its condition; an error is of the first kind that fits."""


def status_of(error: TubeMQError) -> GrpcStatus:
    """Return the status of an error; an unexpected one is UNKNOWN."""
    if (by_condition := _OF_CONDITIONS.get(error.condition)) is not None:
        return by_condition
    if isinstance(error, RpcError | ConsumeError | AdminError):
        return _OF_CODES.get(error.code, GrpcStatus.UNKNOWN)
    for kind, status in _OF_KINDS:
        if isinstance(error, kind):
            return status
    return GrpcStatus.UNKNOWN


ERROR_TRAILER: Final = "tubemq-error-bin"
"""The key of the trailer in which a failed call has its ``TubeError``."""

STATUS_TRAILER: Final = "grpc-status-details-bin"
"""The key of the trailer in which gRPC's tools look for a ``google.rpc.Status``."""
DOMAIN: Final = "tubemq_spark"
"""Whose conditions the reasons of ``google.rpc.ErrorInfo`` are."""

_SHOWN_BYTES: Final = 1_000
"""What a status text may have, as it travels: with all but printable ASCII as ``%`` and two digits."""
_ERROR_BYTES: Final = 2_500
_INFO_BYTES: Final = 1_000
"""Status text and trailers, in base64, have less than 8 KiB together: the limit of clients that set none."""
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_TYPES: Final = "type.googleapis.com/google.rpc."
_INT32: Final = range(-(1 << 31), 1 << 31)
_INT64: Final = range(-(1 << 63), 1 << 63)


def to_proto(error: TubeMQError) -> pb.TubeError:
    """Return an error as a message."""
    proto = pb.TubeError(
        condition=error.condition,  # with kind and parameters the error is built again from it
        kind=type(error).__name__,
        text=_utf8(Exception.__str__(error)),  # for clients that do not know the condition
        retriable=error.retriable,
        about=_utf8(error.about),
        code=_number(error, "code"),  # of TubeMQ (TErrCodeConstants), or 0
        retry_after_ms=max(0, _number(error, "retry_after_ms")),  # uint32; 0: unknown
        outcome=_outcome(error),
    )
    for name, value in error.parameters.items():
        _put(proto.parameters[name], value)
    if error.row is not None:
        proto.row = error.row  # from 0 on; the messages before it were accepted
    return proto


def status_with_trailers(error: TubeMQError) -> tuple[GrpcStatus, str, tuple[tuple[str, bytes], ...]]:
    """Return how a call ends because of an error: its status, the status text, and its trailers."""
    status, message = status_of(error), to_proto(error)
    text = _shown(str(error))
    trailers = (
        (ERROR_TRAILER, _fitting(message, _ERROR_BYTES).SerializeToString()),
        (STATUS_TRAILER, _details(status, text, message).SerializeToString()),
    )
    return status, text, trailers


def from_proto(message: pb.TubeError) -> TubeMQError:
    """Return the error of a message; one that this release does not know is a ``GatewayError``."""
    parameters = {name: _get(value) for name, value in message.parameters.items()}
    kind = getattr(errors, message.kind, None)
    try:
        if not (isinstance(kind, type) and issubclass(kind, TubeMQError)):
            raise KeyError(message.kind)
        failure = kind(message.condition, **parameters)
    except (KeyError, IndexError, ValueError, TypeError):
        failure = GatewayError("TUBEMQ_GATEWAY_ERROR", text=message.text.rstrip("."))
    if failure.retriable != message.retriable:
        failure.retriable = message.retriable
    if message.about:
        failure.about = message.about
    if message.HasField("row"):
        failure.row = message.row
    return failure


def parse_error(data: bytes) -> TubeMQError:
    """Return the error of a trailer."""
    try:
        return from_proto(pb.TubeError.FromString(data))
    except DecodeError as error:
        raise RemoteProtocolError(
            "TUBEMQ_GATEWAY_ANSWER", what=f"the trailer {ERROR_TRAILER} cannot be read"
        ) from error


def unexpected(error: Exception) -> GatewayError:
    """Return the error of a call that failed because of a mistake in the gateway."""
    return GatewayError("TUBEMQ_GATEWAY_FAILED", cause=f"{type(error).__name__}: {error}".rstrip(".: "))


def _shown(text: str) -> str:
    """Return the part of a text that fits into a status."""
    text = _utf8(text)
    shown, most = text, len(text)
    while len(quote(shown, safe=_PRINTABLE)) > _SHOWN_BYTES:
        most = min(most // 2, _SHOWN_BYTES)
        shown = _cut(text, most)
    return shown


def _fitting(message: pb.TubeError, most: int) -> pb.TubeError:
    """Cut the longest texts of a message until it has so many bytes at most, and return it."""
    longest = most
    while message.ByteSize() > most and longest:
        longest //= 2
        message.text, message.about = _cut(message.text, longest), _cut(message.about, longest)
        for parameter in message.parameters.values():
            if parameter.HasField("text"):
                parameter.text = _cut(parameter.text, longest)
    return message


def _details(status: GrpcStatus, text: str, message: pb.TubeError) -> pb.RpcStatus:
    """Return an error as a ``google.rpc.Status``, whose code and text are those of the call."""
    info = pb.RpcErrorInfo(reason=message.condition, domain=DOMAIN)
    longest = _INFO_BYTES
    for name, value in message.parameters.items():
        parameter = _get(value)
        info.metadata[name] = "" if parameter is None else str(parameter)
    while info.ByteSize() > _INFO_BYTES and longest:
        longest //= 2
        for name, content in info.metadata.items():
            info.metadata[name] = _cut(content, longest)
    details = pb.RpcStatus(code=status, message=text)
    details.details.add(type_url=f"{_TYPES}ErrorInfo", value=info.SerializeToString())
    if message.retry_after_ms:
        seconds, milliseconds = divmod(message.retry_after_ms, 1000)
        delay = pb.RpcRetryInfo(retry_delay={"seconds": seconds, "nanos": milliseconds * 1_000_000})
        details.details.add(type_url=f"{_TYPES}RetryInfo", value=delay.SerializeToString())
    return details


def _utf8(text: str) -> str:
    """Return a text that can be written: file names may have characters that cannot."""
    return text.encode(errors="replace").decode()


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _number(error: TubeMQError, name: str) -> int:
    """Return a parameter that is a small number, otherwise 0."""
    number: object = error.parameters.get(name, 0)
    return int(number) if isinstance(number, int) and number in _INT32 else 0


def _outcome(error: TubeMQError) -> pb.TubeError.Outcome:
    if isinstance(error, ProduceError):
        return pb.TubeError.OUTCOME_UNKNOWN if error.may_be_stored else pb.TubeError.OUTCOME_NOT_STORED
    if isinstance(error, OptionError | LocalProtocolError):  # of a message that was not sent
        return pb.TubeError.OUTCOME_NOT_STORED
    return pb.TubeError.OUTCOME_UNSPECIFIED


def _put(parameter: pb.Parameter, value: object) -> None:
    # bool is an int too.
    if isinstance(value, bool):
        parameter.flag = value
    elif isinstance(value, int) and value in _INT64:  # sint64; a larger one travels as text
        parameter.number = value
    elif isinstance(value, float):
        parameter.real = value
    elif value is not None:  # for that no member of the oneof is set
        parameter.text = _utf8(str(value))


def _get(parameter: pb.Parameter) -> object:
    which = parameter.WhichOneof("value")
    return None if which is None else getattr(parameter, which)
