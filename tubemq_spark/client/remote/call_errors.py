"""Why a call to a gateway has failed, in the words of this package."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.errors import GatewayError
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, parse_error

_ITS_OWN_FAULT: Final = frozenset(
    {"UNIMPLEMENTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED"}
)
"""Statuses of gRPC itself that another gateway would give as well: a method it does not know, a message above
its limit."""
_ELSEWHERE: Final = frozenset({"TUBEMQ_GATEWAY_DRAINING", "TUBEMQ_GATEWAY_BUSY", "TUBEMQ_GATEWAY_DEADLINE"})
"""What a gateway says of itself and not of TubeMQ."""


def error_of(status: str, details: str | None, trailers: Mapping[str, Any]) -> Exception:
    """Return what the end of a call means: an error of TubeMQ or the gateway, or that another may serve it.

    Args:
        status: the name of gRPC's status.
        details: its text.
        trailers: the metadata behind the answer.
    """
    if ERROR_TRAILER in trailers:
        failure = parse_error(trailers[ERROR_TRAILER])
        if failure.condition in _ELSEWHERE:
            return AwayError(failure)
        return failure
    what = f"{status}: {details or 'no details'}".rstrip(".")
    if status in _ITS_OWN_FAULT:
        return GatewayError("TUBEMQ_GATEWAY_ERROR", text=what)
    return AwayError(what)
