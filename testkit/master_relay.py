"""Another address of a master, which tells producers of brokers at other addresses, or of no partition."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from testkit.connections import submit_call
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.net import loop
from tubemq_spark.net.connections import Connections, close_connections
from tubemq_spark.net.listener import Answer, Fault, Listener, Reply
from tubemq_spark.protocol import packed_strings, rpc
from tubemq_spark.protocol.constants import Method, ServiceType, Status
from tubemq_spark.protocol.messages import MESSAGES
from tubemq_spark.protocol.pb import master_pb2


class MasterRelay:
    """Passes requests on to a master; a context manager.

    A broker announces its own address to its master, so a proxy in front of it is not used until the master
    tells clients of the proxy instead. Here only producers are told so; readers reach the brokers.
    """

    def __init__(self, master: str, announced: Mapping[int, str]) -> None:
        """Relay to ``host:port``; producers are told that brokers are at these addresses, by broker id."""
        self._master = Endpoint.parse(master)
        self._announced = dict(announced)
        self._hiding = threading.Event()
        self._connections = Connections()
        self._listener = Listener("relay", "127.0.0.1", 0, _nobody)
        self._listener.interceptor = self._reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        close_connections(self._connections)

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return str(self._listener.endpoint)

    def hide_routes(self) -> None:
        """Tell producers of no partition, as a master does that has just started, until ``show_routes``."""
        self._hiding.set()

    def show_routes(self) -> None:
        """Tell producers of all partitions again."""
        self._hiding.clear()

    def _reply(self, request: rpc.Request, _handle: Callable[[], Answer]) -> Reply:
        method = Method(request.method)
        types = MESSAGES[method]
        try:
            answer = submit_call(
                loop.run(self._connections.get(self._master)),
                ServiceType.MASTER,
                method,
                rpc.parse_message(types.request, request.body),
                types.response,
                timeout_ms=request.timeout_ms,
            ).result()
        except TubeMQError:
            return Reply(None, hang_up=True)
        if isinstance(answer, master_pb2.RegisterResponseM2P | master_pb2.HeartResponseM2P):
            self._change(answer)
        return Reply(rpc.serialize_message(answer))

    def _change(self, answer: master_pb2.RegisterResponseM2P | master_pb2.HeartResponseM2P) -> None:
        answer.brokerInfos[:] = map(self._elsewhere, answer.brokerInfos)
        if self._hiding.is_set() and isinstance(answer, master_pb2.HeartResponseM2P):
            del answer.topicInfos[:]

    def _elsewhere(self, info: str) -> str:
        broker_id = packed_strings.parse_broker_info(info).broker_id
        address = self._announced.get(broker_id)
        return info if address is None else f"{broker_id}:{address}"


def _nobody(requests: Sequence[rpc.Request]) -> list[Answer]:
    """Answer what the interceptor lets through, which is nothing."""
    return [Fault(Status.FATAL, "java.lang.IllegalStateException", "no master serves here") for _ in requests]
