"""What this process asks of servers over its connections, and how long the answers are."""

import collections

import pytest

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
        send, body = Connection.send, Call.body

        def counted_send(
            connection: Connection,
            call: Call,
            service: ServiceType,
            method: Method,
            request: bytes,
            timeout_ms: int,
            during: str,
        ) -> None:
            self.counts[method] += 1
            if method is Method.GET_MESSAGE:
                fetch = broker_pb2.GetMessageRequestC2B.FromString(request)
                self.fetched.append((fetch.topicName, fetch.partitionId))
            send(connection, call, service, method, request, timeout_ms, during)

        def counted_body(call: Call, during: str) -> bytes | memoryview:
            answer = body(call, during)
            self.bytes += len(answer)
            return answer

        patch.setattr(Connection, "send", counted_send)
        patch.setattr(Call, "body", counted_body)
