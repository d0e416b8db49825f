"""Why a call to a gateway has failed, in the words of this package."""

from typing import Final

from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.channels import Call
from tubemq_spark.errors import GatewayError
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error

_NOT_REACHED: Final = "Failed to connect to remote host"
"""gRPC's words when there is no connection at all, so that TLS is not the reason."""
_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""


def error_of(error: Call) -> Exception:
    """Return what a gRPC error means: one of TubeMQ or of the gateway, or that another gateway may serve."""
    trailers = dict(error.trailing_metadata() or ())
    if ERROR_TRAILER in trailers:
        failure = parse_error(trailers[ERROR_TRAILER])
        if failure.condition in _ELSEWHERE:
            return AwayError(failure)
        return failure
    code, details = error.code(), error.details() or "no details"
    what = f"{code.name}: {details}".rstrip(".")
    if code.name in _ITS_OWN_FAULT:
        return GatewayError("TUBEMQ_GATEWAY_ERROR", text=what)
    return AwayError(what)


def may_be_of_tls(error: Call, *, served: bool) -> bool:
    """Return whether TLS may be why a connection was lost, on which a gateway has answered before or not."""
    details = error.details() or ""
    return _NOT_REACHED not in details and (not served or "handshake" in details.lower())
