"""A gateway that does what a test tells it: for what no gateway answers when a test wants it to."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import status_with_trailers
from tubemq_spark.protocol.gateway.service import METHODS


class ScriptedGateway(grpc.GenericRpcHandler):
    """Opens every session; its other methods are functions of a test, by their names.

    A function takes the request, or an iterator of requests, and returns the answer, or yields the answers,
    which may be bytes. A ``TubeMQError`` that it raises is what the gateway says; after any other error the
    client sees a gateway that is lost.
    """

    def __init__(self, **methods):
        self.methods = {
            "OpenSession": lambda _: pb.OpenSessionResponse(lease_ms=60_000),
            "CloseSession": lambda _: pb.CloseSessionResponse(),
            **methods,
        }
        self.calls = []
        """The names of the methods that were called."""
        self._threads = ThreadPoolExecutor(8)
        self._server = grpc.server(self._threads, handlers=[self])
        self.address = Endpoint("127.0.0.1", self._server.add_insecure_port("127.0.0.1:0"))
        self._server.start()

    def close(self):
        self._server.stop(0).wait()
        self._threads.shutdown()

    def service(self, details):
        name = details.method.rpartition("/")[2]
        method, serve = METHODS[name], self.methods[name]

        def answers(request, context):
            self.calls.append(name)
            try:
                yield from serve(request) if method.gives_stream else [serve(request)]
            except Exception as error:  # noqa: BLE001 (the client is to see it)
                fail(context, error)

        kind = ("stream" if method.takes_stream else "unary", "stream" if method.gives_stream else "unary")
        return getattr(grpc, f"{'_'.join(kind)}_rpc_method_handler")(
            answers if method.gives_stream else lambda request, context: next(answers(request, context)),
            request_deserializer=method.request.FromString,
            response_serializer=lambda answer: (
                answer if isinstance(answer, bytes) else answer.SerializeToString()
            ),
        )


def fail(context, error):
    """End a call with an error of TubeMQ, or as a gateway that dies."""
    if not hasattr(error, "condition"):
        context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    status, text, trailers = status_with_trailers(error)
    context.set_trailing_metadata(trailers)
    context.abort(next(code for code in grpc.StatusCode if code.value[0] == status), text)


@contextlib.contextmanager
def scripted(*scripts, **settings):
    """Run gateways with these methods, a dict for each, and a client's ``Gateways`` in the same order."""
    with contextlib.ExitStack() as closing:
        running = [closing.enter_context(contextlib.closing(ScriptedGateway(**script))) for script in scripts]
        settings = {"rpc_timeout_ms": 2_000, "register_retry_ms": 10, **settings}
        gateways = Gateways(tuple(one.address for one in running), ClientConfig((), "test", **settings))
        gateways.addresses = tuple(one.address for one in running)
        closing.callback(gateways.close)
        yield running, gateways
