"""A consumer's requests to one broker: register, fetch, commit, heartbeat, unregister.

Registering gives an exclusive *lease* of a partition to a group, held under a client id. The broker keeps two
numbers for it: the *committed* offset, where the next fetch begins, and how far the last fetch went beyond
it, which a commit adds. A fetch names no offset: only registering sets the position.
"""

import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master.identity import proof_for_broker
from tubemq_spark.errors import RpcError
from tubemq_spark.model import TopicPartition, is_aligned
from tubemq_spark.net.connection import Call, Connection
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import Method, OpType, ReadStatus, ServiceType
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.fetch_columns import MessageColumns
from tubemq_spark.protocol.fetch_decoder import EncodedMessages, FetchHeader, parse_fetch
from tubemq_spark.protocol.pb import broker_pb2, common_pb2

MEMORY_TOO: Final = 303
"""The query priority with which a reader, filtered or not, sees what is not flushed, also against
the cluster's default."""
FLUSHED_ONLY: Final = 1
"""The query priority with which the answer to a register names the end of what is safe on disk."""

Value = TypeVar("Value")


class Started(Generic[Value]):
    """A request under way; await its answer once, or forget it."""

    def __init__(self, pending: Call, finish: Callable[[Call], Value]) -> None:
        self._pending = pending
        self._finish = finish

    def __await__(self) -> Generator[Any, None, Value]:
        """Wait for the answer and parse it; forget it when the wait is cancelled."""
        yield from self._pending.__await__()
        return self._finish(self._pending)

    def forget(self) -> None:
        """Do not wait for the answer."""
        self._pending.forget()


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A partition, and the name under which a client holds it or asks for it."""

    partition: TopicPartition
    group: str
    client_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Position:
    """The position of a claim, in index bytes."""

    current: int
    """The next offset to read."""
    latest: int | None
    """Where the store ends now; None from brokers that do not say."""


class Fetched:
    """The answer to a fetch: messages, which are decoded when they are first needed, or a refusal."""

    def __init__(self, header: FetchHeader, messages: EncodedMessages, refusal: RpcError | None) -> None:
        self.header = header
        self.messages = messages
        self.refusal = refusal

    @property
    def count(self) -> int:
        """Messages in the answer, damaged ones included."""
        return len(self.messages)

    @property
    def columns(self) -> MessageColumns:
        """The sound messages; a ``RemoteProtocolError`` is raised when a message does not parse."""
        return self._decoded[0]

    @property
    def corrupt(self) -> NDArray[np.int64]:
        """The ordinals of the damaged messages; see ``columns``."""
        return self._decoded[1]

    @functools.cached_property
    def _decoded(self) -> tuple[MessageColumns, NDArray[np.int64]]:
        return self.messages.decode()


class BrokerSession:
    """One broker as a consumer sees it; keeps no state about claims.

    All methods raise TubeMQConnectionError, TubeMQTimeoutError or RemoteProtocolError when no sound answer
    comes, and RpcError when the broker refuses.

    The visit token shows a broker that a master knows this client; without a token of the master for the
    user (``authorized_token``), the user's own proof is shown.
    """

    def __init__(
        self, connection: Connection, config: ClientConfig, visit_token: int, authorized_token: str = ""
    ) -> None:
        """Create a session over a connection."""
        self.connection = connection
        self._config = config
        self._visit_token = visit_token
        self._authorized_token = authorized_token

    def start_register(
        self,
        claim: Claim,
        offset: int | None,
        *,
        read_status: ReadStatus = ReadStatus.STORED_OR_EARLIEST,
        filters: Sequence[str] = (),
        query_priority: int | None = None,
    ) -> Started[Position]:
        """Lease a partition, or renew the lease, and set the position; return at once.

        The broker silently moves an offset that lies outside the store to the store's beginning or end:
        compare the answer. Without an offset the group's stored one applies.

        The result raises RpcError: 403 no such topic there, 410 another client holds the partition, 415 the
        visit token is too old, 500 no such partition, 503 the broker is starting or was stopped.
        """
        request = self._lease_request(OpType.REGISTER, claim, read_status)
        request.filterCondStr.extend(filters)
        if offset is not None:
            request.currOffset = offset
        if query_priority is not None:
            request.qryPriorityId = query_priority
        during = f"registering {claim.partition} for group {claim.group}"

        def finish(pending: Call) -> Position:
            answer = self._parse_lease_answer(pending, claim, during)
            position = Position(answer.currOffset, answer.maxOffset if answer.HasField("maxOffset") else None)
            for offset in (position.current, position.latest):
                if offset is not None and not is_aligned(offset):
                    raise pending.bad_answer(during, f"{offset} is not an offset")
            return position

        return Started(self._start(Method.PARTITION_REGISTER, request, during), finish)

    def start_unregister(
        self, claim: Claim, *, consumed: bool = False, timeout_ms: int | None = None
    ) -> Started[None]:
        """Give a lease up, and return at once.

        The result raises RpcError: 411 no client holds the partition, 412 another one does.

        What was fetched last is committed if it was consumed, and otherwise dropped.
        """
        # Any other number than 0 drops it (BrokerServiceServer.inProcessConsumerUnregister).
        status = ReadStatus.STORED_OR_EARLIEST if consumed else ReadStatus.STORED_OR_LATEST
        request = self._lease_request(OpType.UNREGISTER, claim, status)
        during = f"unregistering {claim.partition} for group {claim.group}"

        def finish(pending: Call) -> None:
            self._parse_lease_answer(pending, claim, during)

        return Started(self._start(Method.PARTITION_REGISTER, request, during, timeout_ms), finish)

    def start_heartbeat(
        self,
        group: str,
        client_id: str,
        partitions: Iterable[TopicPartition],
        *,
        query_priority: int | None = None,
        timeout_ms: int | None = None,
    ) -> Started[dict[TopicPartition, int]]:
        """Renew the leases of partitions of this broker, which end after 30 s otherwise; return at once.

        The result is the partitions that are no longer held, with 411 (no client holds it) or 412 (another
        one does). It raises RpcError: 415 the visit token is too old, 503 the broker was stopped.
        """
        endpoint = self.connection.endpoint
        request = broker_pb2.HeartBeatRequestC2B(
            clientId=client_id,
            groupName=group,
            readStatus=ReadStatus.STORED_OR_EARLIEST,
            partitionInfo=[
                packed_strings.format_partition(item.broker_id, endpoint, item.topic, item.partition_id)
                for item in partitions
            ],
            authInfo=self._credentials(),
        )
        if query_priority is not None:
            request.qryPriorityId = query_priority
        during = f"renewing the leases of group {group}"

        def finish(pending: Call) -> dict[TopicPartition, int]:
            answer = pending.result(broker_pb2.HeartBeatResponseB2C, during)
            if not answer.success:
                raise rpc_error(answer.errCode, answer.errMsg, peer=f"broker {endpoint}", during=during)
            failures = map(packed_strings.parse_failure_info, answer.failureInfo)
            return {failure.failed.partition: failure.code for failure in failures}

        return Started(self._start(Method.PARTITION_HEARTBEAT, request, during, timeout_ms), finish)

    def start_fetch(
        self, claim: Claim, *, consumed: bool = False, own_limits: bool = False
    ) -> Started[Fetched]:
        """Ask for the next messages; a refusal is part of the result, since refusals are common.

        If what was fetched last was consumed, the broker commits it before it reads; otherwise it serves
        that again. With ``own_limits`` it leaves out the flow control of the cluster, since this client
        applies the rules of its group.
        """
        partition = claim.partition
        request = broker_pb2.GetMessageRequestC2B(
            clientId=claim.client_id,
            partitionId=partition.partition_id,
            groupName=claim.group,
            topicName=partition.topic,
            lastPackConsumed=consumed,
            manualCommitOffset=False,
            escFlowCtrl=own_limits,
        )
        during = f"fetching {partition}"

        def finish(pending: Call) -> Fetched:
            header, messages = parse_fetch(pending.body(during))
            refusal = None
            if not header.success or header.err_code != ErrCode.SUCCESS:
                refusal = self._refusal(header.err_code, header.err_msg, partition, during)
            return Fetched(header, messages, refusal)

        return Started(self._start(Method.GET_MESSAGE, request, during), finish)

    def start_commit(self, claim: Claim, *, consumed: bool) -> Started[Position]:
        """Commit what was fetched last, or drop it, and ask for the position.

        The result raises RpcError: 401 the partition is not held, 403 its topic is being removed.
        """
        partition = claim.partition
        request = broker_pb2.CommitOffsetRequestC2B(
            clientId=claim.client_id,
            topicName=partition.topic,
            partitionId=partition.partition_id,
            groupName=claim.group,
            lastPackConsumed=consumed,
        )
        during = f"committing {partition}"

        def finish(pending: Call) -> Position:
            answer = pending.result(broker_pb2.CommitOffsetResponseB2C, during)
            if not answer.success:
                raise self._refusal(answer.errCode, answer.errMsg, partition, during)
            return Position(answer.currOffset, answer.maxOffset if answer.HasField("maxOffset") else None)

        return Started(self._start(Method.COMMIT_OFFSET, request, during), finish)

    def _lease_request(
        self, op_type: OpType, claim: Claim, read_status: ReadStatus
    ) -> broker_pb2.RegisterRequestC2B:
        return broker_pb2.RegisterRequestC2B(
            opType=op_type,
            clientId=claim.client_id,
            groupName=claim.group,
            topicName=claim.partition.topic,
            partitionId=claim.partition.partition_id,
            readStatus=read_status,
            authInfo=self._credentials(),
        )

    def _parse_lease_answer(self, pending: Call, claim: Claim, during: str) -> broker_pb2.RegisterResponseB2C:
        answer = pending.result(broker_pb2.RegisterResponseB2C, during)
        if not answer.success:
            raise self._refusal(answer.errCode, answer.errMsg, claim.partition, during)
        return answer

    def _start(
        self,
        method: Method,
        request: broker_pb2.RegisterRequestC2B
        | broker_pb2.HeartBeatRequestC2B
        | broker_pb2.GetMessageRequestC2B
        | broker_pb2.CommitOffsetRequestC2B,
        during: str,
        timeout_ms: int | None = None,
    ) -> Call:
        """Start a request to the broker; return its pending answer."""
        rpc_timeout_ms = self._config.rpc_timeout_ms
        return self.connection.start(
            ServiceType.BROKER_READ,
            method,
            request,
            timeout_ms=min(timeout_ms or rpc_timeout_ms, rpc_timeout_ms),
            during=during,
        )

    def _refusal(self, code: int, text: str, partition: TopicPartition, during: str) -> RpcError:
        peer = f"broker {partition.broker_id} ({self.connection.endpoint})"
        return rpc_error(code, text, peer=peer, during=during)

    def _credentials(self) -> common_pb2.AuthorizedInfo:
        info = common_pb2.AuthorizedInfo(visitAuthorizedToken=self._visit_token)
        if proof := self._authorized_token or proof_for_broker(self._config):
            info.authAuthorizedToken = proof
        return info
