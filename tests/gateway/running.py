"""Gateways before an embedded TubeMQ, and a plain gRPC client that knows no more than the .proto file."""

import contextlib
import itertools
import queue

import grpc
import numpy as np
import pytest

from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.failures import ERROR_TRAILER, from_proto, parse_error, status_of
from tubemq_spark.protocol.gateway.service import METHODS, SERVICE, SESSION_KEY

_numbers = itertools.count(1)
SECRET = b"the secret of a test"


@contextlib.contextmanager
def tubemq(**topics):
    """Three brokers."""
    with EmbeddedTubeMQ(topics=topics, brokers=3) as running:
        yield running


def settings(server, **changes):
    changes = {"listen": Endpoint("127.0.0.1", 0), "node_name": f"g{next(_numbers)}", **changes}
    masters = {
        "master_servers": (Endpoint.parse(server.master),),
        "master_web": (Endpoint.parse(server.master_web),),
    }
    return GatewaySettings(**{**masters, **changes}).validate()


@contextlib.contextmanager
def gateway(server, **changes):
    with BackgroundGateway(settings(server, **changes)) as running:
        yield running


class RefusedError(Exception):
    """A call failed: with a status, and perhaps with an error of ours."""

    def __init__(self, error):
        super().__init__(f"{error.code()}: {error.details()}")
        self.status = error.code().name
        trailers = dict(error.trailing_metadata() or ())
        self.error = parse_error(trailers[ERROR_TRAILER]) if ERROR_TRAILER in trailers else None
        self.condition = None if self.error is None else self.error.condition
        self.outcome = None
        if self.error is not None:
            self.outcome = pb.TubeError.FromString(trailers[ERROR_TRAILER]).outcome

    @property
    def end(self):
        return self.status, self.condition


class NotStoredError(RefusedError):
    """A batch was refused, and its stream goes on."""

    def __init__(self, message):
        self.error = from_proto(message)
        Exception.__init__(self, str(self.error))
        self.status, self.condition = status_of(self.error).name, message.condition
        self.outcome = message.outcome


FENCED = ("ABORTED", "TUBEMQ_SESSION_FENCED")
NO_SESSION = ("FAILED_PRECONDITION", "TUBEMQ_SESSION_UNKNOWN")
DRAINING = ("UNAVAILABLE", "TUBEMQ_GATEWAY_DRAINING")
BUSY = ("RESOURCE_EXHAUSTED", "TUBEMQ_GATEWAY_BUSY")
BAD_REQUEST = ("INVALID_ARGUMENT", "TUBEMQ_GATEWAY_REQUEST")


def refused(call, *arguments, **fields):
    """Return how a call is refused."""
    with pytest.raises(RefusedError) as caught:
        call(*arguments, **fields)
    return caught.value


def end_of(call):
    """Return how a stream ends: its status, and the condition of its error if there is one."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return RefusedError(error).end
    return "OK", None


class InSession:
    """A method of gRPC whose calls name a client's session."""

    def __init__(self, method, client):
        self._method = method
        self._client = client

    def __call__(self, request, timeout=None):
        return self._method(request, timeout=timeout, metadata=self._client.metadata)

    def future(self, request, timeout=None):
        return self._method.future(request, timeout=timeout, metadata=self._client.metadata)


class PlainClient:
    """Calls methods by their names; its session has the given id."""

    def __init__(self, address, client_id="plain", epoch=1, secret=SECRET):
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.session = pb.SessionRef(client_id=client_id, epoch=epoch, secret=secret)
        self.shown = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def open(self, **asked):
        asked = {"group": "plain", **asked}
        who = {"client_id": self.session.client_id, "epoch": self.session.epoch}
        return self("OpenSession", secret=self.session.secret, settings=pb.SessionSettings(**asked), **who)

    @property
    def metadata(self):
        return (*self.shown, (SESSION_KEY, self.session.SerializeToString()))

    def method(self, name):
        method = METHODS[name]
        kind = ("stream" if method.takes_stream else "unary", "stream" if method.gives_stream else "unary")
        return InSession(
            getattr(self.channel, "_".join(kind))(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            ),
            self,
        )

    def request(self, name, /, **fields):
        return METHODS[name].request(**fields)

    def begin(self, name, /, *, timeout=30, **fields):
        """Begin a call with one request; return a future, or an iterator over the answers."""
        method = self.method(name)
        call = method if METHODS[name].gives_stream else method.future
        return call(self.request(name, **fields), timeout=timeout)

    def __call__(self, name, /, *, timeout=10, **fields):
        if name == "PublishStream":
            return self.publish(timeout=timeout, **fields)
        try:
            found = self.method(name)(self.request(name, **fields), timeout=timeout)
            return list(found) if METHODS[name].gives_stream else found
        except grpc.RpcError as error:
            raise RefusedError(error) from None

    def publish(self, batch=None, name="", timeout=10):
        """Store one batch, and return what is stored."""
        begin = pb.PublishStreamRequest(begin=pb.PublishStreamRequest.Begin(name=name))
        _, answer = self.commands(begin, pb.PublishStreamRequest(batch=batch, number=1), timeout=timeout)
        for failure in answer.failures:
            failure.error.row = int(np.frombuffer(failure.rows, "<i4")[0])
            raise NotStoredError(failure.error)
        return answer

    def commands(self, *commands, timeout=10):
        """Send what a publish stream is to have, and return the answers."""
        try:
            return list(self.method("PublishStream")(iter(commands), timeout=timeout))
        except grpc.RpcError as error:
            raise RefusedError(error) from None


class Stream:
    """A call whose requests a test sends one by one."""

    def __init__(self, client, name, *requests):
        self._requests = queue.SimpleQueue()
        for request in requests:
            self.send(request)
        self.call = client.method(name)(iter(self._requests.get, None), timeout=60)

    def send(self, request):
        self._requests.put(request)

    def ask(self, request):
        self.send(request)
        return next(self.call)

    def send_no_more(self):
        self._requests.put(None)

    def finish(self):
        """Return the rest of the answers."""
        self.send_no_more()
        return list(self.call)

    def end(self):
        """Return how the call ends, though more could be sent."""
        end = end_of(self.call)
        self.send_no_more()
        return end

    def break_off(self):
        self.call.cancel()
        self.send_no_more()


class Answers:
    """A call whose answers a test takes one by one."""

    def __init__(self, call):
        self.call = call

    def end(self):
        return end_of(self.call)


__all__ = ["SERVICE", "PlainClient", "RefusedError", "gateway", "settings", "tubemq"]
