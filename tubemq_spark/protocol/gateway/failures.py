"""Errors on their way between a gateway and its client: the same error arrives, with the same text."""

from typing import Final

from google.protobuf.message import DecodeError

from tubemq_spark import errors
from tubemq_spark.errors import GatewayError, ProduceError, RemoteProtocolError, TubeMQError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

ERROR_TRAILER: Final = "tubemq-error-bin"
"""The key of the trailer in which a failed call has its ``TubeError``."""

_INT32: Final = range(-(1 << 31), 1 << 31)
_INT64: Final = range(-(1 << 63), 1 << 63)


def to_proto(error: TubeMQError) -> pb.TubeError:
    """Return an error as a message."""
    proto = pb.TubeError(
        condition=error.condition,  # with kind and parameters the error is built again from it
        kind=type(error).__name__,
        text=Exception.__str__(error),  # for clients that do not know the condition
        retriable=error.retriable,
        about=error.about,
        code=_number(error, "code"),  # of TubeMQ (TErrCodeConstants), or 0
        retry_after_ms=max(0, _number(error, "retry_after_ms")),  # uint32; 0: unknown
        outcome=_outcome(error),
    )
    for name, value in error.parameters.items():
        _put(proto.parameters[name], value)
    if error.row is not None:
        proto.row = error.row  # from 0 on; the messages before it were accepted
    return proto


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
    """Return the error of a trailer.

    Raises:
        RemoteProtocolError: the trailer is not one of a gateway.
    """
    try:
        return from_proto(pb.TubeError.FromString(data))
    except DecodeError as error:
        raise RemoteProtocolError(
            "TUBEMQ_GATEWAY_ANSWER", what=f"the trailer {ERROR_TRAILER} cannot be read"
        ) from error


def unexpected(error: Exception) -> GatewayError:
    """Return the error of a call that failed because of a mistake in the gateway."""
    return GatewayError("TUBEMQ_GATEWAY_FAILED", cause=f"{type(error).__name__}: {error}".rstrip(".: "))


def _number(error: TubeMQError, name: str) -> int:
    """Return a parameter that is a small number, otherwise 0."""
    number: object = error.parameters.get(name, 0)
    return int(number) if isinstance(number, int) and number in _INT32 else 0


def _outcome(error: TubeMQError) -> pb.TubeError.Outcome:
    unknown = isinstance(error, ProduceError) and error.may_be_stored
    return pb.TubeError.OUTCOME_UNKNOWN if unknown else pb.TubeError.OUTCOME_NOT_STORED


def _put(parameter: pb.Parameter, value: object) -> None:
    # bool is an int too.
    if isinstance(value, bool):
        parameter.flag = value
    elif isinstance(value, int) and value in _INT64:  # sint64; a larger one travels as text
        parameter.number = value
    elif isinstance(value, float):
        parameter.real = value
    elif value is None:
        parameter.SetInParent()  # no member of the oneof stands for None
    else:
        parameter.text = str(value).encode(errors="replace").decode()


def _get(parameter: pb.Parameter) -> object:
    which = parameter.WhichOneof("value")
    return None if which is None else getattr(parameter, which)
