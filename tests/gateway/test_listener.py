"""How calls are bound to gRPC."""

import asyncio

import grpc
import grpc.aio
import pytest

from tubemq_spark.gateway import listener
from tubemq_spark.protocol.gateway.failures import GrpcStatus
from tubemq_spark.protocol.gateway.service import METHODS, SERVICE

METHOD = METHODS["SessionEvents"]


async def starting(context):
    await context.start_answering()


async def writing(context):
    await context.write(b"")


async def called(servicer):
    """Return how a call ends that a servicer serves."""
    server = grpc.aio.server()
    handler = listener._handler(METHOD, servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD.name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_stream(METHOD.path)(b"", timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                [_ async for _ in call]
            return ended.value.code(), ended.value.details()
    finally:
        await server.stop(0)


@pytest.mark.parametrize("begin", [starting, writing])
def test_a_call_that_is_ended_as_its_answers_begin_gets_its_status(begin):
    async def serve(context):
        beginning = asyncio.create_task(begin(context))
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.wait([beginning])
        await context.end(GrpcStatus.UNAUTHENTICATED, "no such token", ())

    assert asyncio.run(called(serve)) == (grpc.StatusCode.UNAUTHENTICATED, "no such token")
