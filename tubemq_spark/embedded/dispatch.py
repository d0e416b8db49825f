"""A port that answers RPCs: from a request to its handler, and TubeMQ's answers to what cannot be handled."""

import abc
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.embedded.scheduler import Scheduler
from tubemq_spark.errors import RemoteProtocolError
from tubemq_spark.net.listener import Answer, Fault, Listener
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import METHODS_OF, Method, ServiceType, Status
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.rpc import AnyMessage

logger = logging.getLogger(__name__)

_JAVA_EXCEPTION: Final = "java.lang.Exception"
_STANDBY_EXCEPTION: Final = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"
_HANDLED_METHODS: Final[frozenset[int]] = frozenset(Method) - {
    # Brokers in other processes: not supported here.
    Method.BROKER_REGISTER,
    Method.BROKER_HEARTBEAT,
    Method.BROKER_CLOSE,
}


_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What String.trim removes."""
_WHITE_SPACE: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""What Character.isWhitespace accepts: a text of nothing else counts as missing."""


class RefusedError(Exception):
    """A handler refuses a request: becomes an answer with a result code. It never leaves this package."""

    def __init__(self, code: ErrCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StandbyError(Exception):
    """Another master leads: becomes the exception that sends clients there. It never leaves this package."""


def trimmed(name: str, value: str | bytes) -> str:
    """Return a parameter without the blanks around it, as Java defines them; "" if it is all white space.

    Protobuf leaves a text that is not UTF-8 as bytes: that is a RemoteProtocolError.
    """
    if isinstance(value, bytes):
        raise RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what=f"the text {name} is not UTF-8")
    return value.strip(_TRIMMED) if value.strip(_WHITE_SPACE) else ""


def required(name: str, value: str | bytes, max_characters: int) -> str:
    """Return a parameter that must be there (PBParameterUtils.getStringParameter)."""
    text = trimmed(name, value)
    if not text:
        raise RefusedError(ErrCode.BAD_REQUEST, f"Request miss necessary {name} data!")
    # The length of a text in Java, which counts characters beyond the first 65536 as two.
    if len(text.encode("utf-16-le")) // 2 > max_characters:
        raise RefusedError(
            ErrCode.BAD_REQUEST, f"{name}'s length over max value, allowed max length is {max_characters}"
        )
    return text


OK: Final[Mapping[str, Any]] = {"errCode": ErrCode.SUCCESS, "errMsg": "OK!"}
"""What answers to requests that succeeded have."""
MAX_NAME_CHARACTERS: Final = 1024
"""Of client ids and group names."""
MAX_TOPIC_CHARACTERS: Final = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Operation(Generic[AnyMessage]):
    """How one method is handled."""

    request_type: type[AnyMessage]
    handle: Callable[[AnyMessage], ProtobufMessage | bytes]
    """Returns the answer, as a message or already serialised."""
    failure: Callable[[int, str], ProtobufMessage]
    """Returns the answer that carries a result code and a text."""


def failure(
    response: Callable[..., ProtobufMessage], **fields: object
) -> Callable[[int, str], ProtobufMessage]:
    """Return a function that makes an answer of a type with a result code, a text, and these fields."""

    def answer(code: int, text: str) -> ProtobufMessage:
        return response(errCode=code, errMsg=text, **fields)

    return answer


class Dispatcher:
    """The methods of one port."""

    def __init__(self, services: frozenset[ServiceType], operations: Mapping[int, Operation[Any]]) -> None:
        self._services = services
        self._operations = operations

    def answer(self, request: rpc.Request) -> Answer:
        """Handle one request; it never raises."""
        operation = self._operations.get(request.method)
        if operation is None:
            return self.misdirected(request) or _unsupported(request.method)
        try:
            message = rpc.parse_message(operation.request_type, request.body)
        except RemoteProtocolError as error:
            return unreadable(error)
        return self.misdirected(request) or run(operation, message)

    def misdirected(self, request: rpc.Request) -> Fault | None:
        """Return TubeMQ's answer to a method that does not belong to its service or to this port, if so."""
        if request.method not in _HANDLED_METHODS:
            return _unsupported(request.method)
        if request.service not in METHODS_OF:
            return Fault(Status.ERROR, _JAVA_EXCEPTION, "Service Type is invalid!")
        if request.method not in METHODS_OF[ServiceType(request.service)]:
            text = f"Unsupported method {request.method}in service type {request.service}!"
            return Fault(Status.ERROR, _JAVA_EXCEPTION, text)
        if request.service not in self._services:
            text = f"No service {request.service} found on the server"
            return Fault(Status.ERROR, _JAVA_EXCEPTION, text)
        return None


def run(operation: Operation[Any], message: ProtobufMessage) -> Answer:
    """Answer a parsed message; it never raises."""
    try:
        try:
            response = operation.handle(message)
        except RefusedError as refused:
            response = operation.failure(refused.code, refused.text)
        return response if isinstance(response, bytes) else rpc.serialize_message(response)
    except StandbyError as standby:
        return Fault(Status.ERROR, _STANDBY_EXCEPTION, str(standby))
    except RemoteProtocolError as error:
        logger.warning("a %s could not be handled: %s", message.DESCRIPTOR.name, error)
    except Exception:
        logger.exception("a %s could not be handled", message.DESCRIPTOR.name)
    return Fault(Status.ERROR, "java.lang.reflect.InvocationTargetException", "")


def unreadable(error: RemoteProtocolError) -> Fault:
    """Return TubeMQ's answer to a request whose message cannot be parsed."""
    return _fatal("com.google.protobuf.InvalidProtocolBufferException", str(error))


def _unsupported(method: int) -> Fault:
    return _fatal(_JAVA_EXCEPTION, f"Unsupported method ID :{method}")


def _fatal(exception_name: str, text: str) -> Fault:
    return Fault(Status.FATAL, exception_name, f"IPC server handle request error :{text}")


class RpcServer(Listener, abc.ABC):
    """Serves a port from its construction until ``close``."""

    def __init__(self, name: str, host: str, port: int, tls: ServerTls | None = None) -> None:
        """Open the port (0: any free one); ``serve`` is called from then on."""
        self._scheduler = Scheduler()
        super().__init__(name, host, port, self.serve, tls, setting=f"{name}_port")

    @abc.abstractmethod
    def serve(self, requests: Sequence[rpc.Request]) -> Iterable[Answer]:
        """Answer the requests of one read in their order; it never raises."""

    def close(self) -> None:
        """End the periodic tasks, and close the port."""
        self._scheduler.close()
        super().close()
