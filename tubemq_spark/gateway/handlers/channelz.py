"""gRPC's own view of its connections (channelz), from its package; with a policy, for operators only."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio

from tubemq_spark.errors import OptionError, TubeMQError
from tubemq_spark.gateway.policy import Guard
from tubemq_spark.gateway.session.calls import abort

Method: TypeAlias = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]


class _ForOperators:
    """The methods of a servicer, for those who may."""

    def __init__(self, servicer: object, guard: Guard) -> None:
        self._servicer = servicer
        self._guard = guard

    def __getattr__(self, name: str) -> Method:
        method: Method = getattr(self._servicer, name)

        async def answer(request: object, context: grpc.aio.ServicerContext) -> object:
            try:
                client = self._guard.caller(context.invocation_metadata() or (), context.auth_context())
                self._guard.needs("ListSessions", request, client, None)
            except TubeMQError as error:
                await abort(context, error)
            return await method(request, context)

        return answer


def serve_channelz(server: grpc.aio.Server, guard: Guard) -> str:
    """Add channelz to a server, and return the service's name.

    Raises:
        OptionError: the package is not installed.
    """
    try:
        from grpc_channelz.v1 import channelz, channelz_pb2, channelz_pb2_grpc
    except ImportError:
        raise OptionError("TUBEMQ_GATEWAY_MISSING.CHANNELZ", package="grpcio-channelz") from None
    served = _ForOperators(channelz.aio.ChannelzServicer(), guard)
    channelz_pb2_grpc.add_ChannelzServicer_to_server(served, server)
    return str(channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name)
