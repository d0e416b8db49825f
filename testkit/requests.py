"""What this process asks of servers over its shared connections, and how long the answers are."""

import collections

import pytest
from google.protobuf.message import Message
from tubemq_spark.net.channel import PendingCall, RpcChannel

from tubemq_spark.protocol.constants import Method, ServiceType


class Requests:
    """Counts them from now on, until the test ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Count what ``RpcChannel`` sends."""
        self.counts: collections.Counter[Method] = collections.Counter()
        self.fetched: list[tuple[str, int]] = []
        """Topic and partition id of each fetch, in order."""
        self.bytes = 0
        """Of all answers."""
        start, body = RpcChannel.start, PendingCall.body

        def counted_start(
            channel: RpcChannel, service: ServiceType, method: Method, request: Message, **how: object
        ) -> PendingCall:
            self.counts[method] += 1
            if method is Method.GET_MESSAGE:
                self.fetched.append((request.topicName, request.partitionId))  # type: ignore[attr-defined]
            return start(channel, service, method, request, **how)  # type: ignore[arg-type]

        def counted_body(call: PendingCall, during: str) -> bytes | memoryview:
            answer = body(call, during)
            self.bytes += len(answer)
            return answer

        patch.setattr(RpcChannel, "start", counted_start)
        patch.setattr(PendingCall, "body", counted_body)
