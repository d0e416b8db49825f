"""The service's methods, from the generated code: what gRPC needs to know of each, on either side."""

import dataclasses
from typing import Any, Final

from google.protobuf.message_factory import GetMessageClass

from tubemq_spark.protocol.gateway import gateway_pb2 as pb

_DESCRIPTOR: Final = pb.DESCRIPTOR.services_by_name["GatewayService"]

SERVICE: Final[str] = _DESCRIPTOR.full_name
"""The service's whole name, which health checks and reflection use too."""

PROTOCOL_REVISION: Final = 1
"""Grows when something that is there already changes its meaning."""

SESSION_KEY: Final = "tubemq-session-bin"
"""The key of the metadata in which a call names its session, as a serialised ``SessionRef``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """One method of the service."""

    name: str
    request: type[Any]
    response: type[Any]
    takes_stream: bool
    gives_stream: bool

    @property
    def path(self) -> str:
        """What gRPC calls the method."""
        return f"/{SERVICE}/{self.name}"


METHODS: Final[dict[str, Method]] = {
    method.name: Method(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        bool(method.client_streaming),
        bool(method.server_streaming),
    )
    for method in _DESCRIPTOR.methods
}
"""All methods, in the order of the .proto file."""
