"""A client of one partition that asks a broker what it is told to, and gives the answers as they came."""

import contextlib
from types import TracebackType
from typing import Any, Final, Self

from google.protobuf.message import Message

from testkit.connections import connected, submit_call
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method, OpType, ServiceType
from tubemq_spark.protocol.pb import broker_pb2

_TIMEOUT_MS: Final = 10_000


class RawClient:
    """Produces to and consumes from partition 0 of a topic; closed at the end of a block."""

    def __init__(self, broker: str, topic: str, group: str = "group", client: str = "client-1") -> None:
        self.client = client
        self._topic = topic
        self._consumer = {"clientId": client, "groupName": group, "topicName": topic, "partitionId": 0}
        self._closing = contextlib.ExitStack()
        self._connection = self._closing.enter_context(connected(Endpoint.parse(broker), _TIMEOUT_MS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def send(self, data: bytes = b"x") -> Any:
        """Send a message."""
        request = broker_pb2.SendMessageRequestP2B(
            clientId="producer-1",
            topicName=self._topic,
            partitionId=0,
            data=data,
            flag=0,
            checkSum=-1,
            sentAddr=0,
        )
        answer = broker_pb2.SendMessageResponseB2P
        return self._call(ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, request, answer)

    def register(self, *, operation: OpType = OpType.REGISTER, status: int = 0, **fields: int) -> Any:
        """Take the partition."""
        request = broker_pb2.RegisterRequestC2B(
            **self._consumer, opType=operation, readStatus=status, **fields
        )
        answer = broker_pb2.RegisterResponseB2C
        return self._call(ServiceType.BROKER_READ, Method.PARTITION_REGISTER, request, answer)

    def unregister(self) -> Any:
        """Give the partition back; what was fetched and not committed counts as not consumed."""
        return self.register(operation=OpType.UNREGISTER, status=1)

    def fetch(self) -> Any:
        """Fetch messages."""
        request = broker_pb2.GetMessageRequestC2B(**self._consumer)
        answer = broker_pb2.GetMessageResponseB2C
        return self._call(ServiceType.BROKER_READ, Method.GET_MESSAGE, request, answer)

    def commit(self) -> Any:
        """Say that what was fetched is consumed."""
        request = broker_pb2.CommitOffsetRequestC2B(**self._consumer)
        answer = broker_pb2.CommitOffsetResponseB2C
        return self._call(ServiceType.BROKER_READ, Method.COMMIT_OFFSET, request, answer)

    def _call(self, service: ServiceType, method: Method, request: Message, answer: type[Message]) -> Any:
        return submit_call(
            self._connection, service, method, request, answer, timeout_ms=_TIMEOUT_MS
        ).result()
