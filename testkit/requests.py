"""What this process asks of servers over its connections, and how long the answers are."""

import collections

import pytest
from google.protobuf.message import Message

from tubemq_spark.net.connection import Call, Connection
from tubemq_spark.protocol.constants import Method, ServiceType
from tubemq_spark.protocol.pb import broker_pb2


class Requests:
    """Counts them from now on, until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Count what ``Connection`` sends."""
        self.counts: collections.Counter[Method] = collections.Counter()
        self.fetched: list[tuple[str, int]] = []
        """Topic and partition id of each fetch, in order."""
        self.bytes = 0
        """Of all answers."""
        start, body = Connection.start, Call.body

        def counted_start(
            connection: Connection,
            service: ServiceType,
            method: Method,
            request: Message,
            *,
            timeout_ms: int,
            during: str,
        ) -> Call:
            self.counts[method] += 1
            if isinstance(request, broker_pb2.GetMessageRequestC2B):
                self.fetched.append((request.topicName, request.partitionId))
            return start(connection, service, method, request, timeout_ms=timeout_ms, during=during)

        def counted_body(call: Call, during: str) -> bytes | memoryview:
            answer = body(call, during)
            self.bytes += len(answer)
            return answer

        patch.setattr(Connection, "start", counted_start)
        patch.setattr(Call, "body", counted_body)
