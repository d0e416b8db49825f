"""What every kind of session with the masters shares: find the active one, register, send heartbeats, leave.

A kind of session (``producers``, ``balance``) says what it sends and what it keeps of the answers; everything
else is here. A session is in one of these states:

==========  ==================================================================================================
state       meaning
==========  ==================================================================================================
closed      ``_heartbeats`` is None: before ``open``, after ``close``
open        registered; the task ``_heartbeats`` sends one every ``heartbeat_period_ms``, from beginning to
            beginning
forgotten   open, but the master answers ``HB_NO_NODE``: it forgets a client that is silent for 30 s, and all
            clients when it restarts. The next request registers again and is repeated
missing     open, but the last heartbeat failed (``_missed_since``). Nothing changes but the log
==========  ==================================================================================================

Invariants:

- A session belongs to the loop in which it was opened. Threads may read its attributes, and call what says
  so.
- One request at a time, under ``_lock``: the ids of lists that a request names must match what the session
  holds. The state and what answers brought change only under the lock.
- Requests of a caller are retried. Heartbeats are not, since the next one is the retry.
- A caller may have a deadline (``_exclusively``), for its requests and for the lock, which a heartbeat may
  hold that no master answers.
- Closing never raises a server's error: the master forgets the session anyway. It ends the heartbeats first,
  and waits for their end.
"""

import abc
import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import ClassVar, Final, Self, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.master import identity
from tubemq_spark.client.master.identity import proof_for_master
from tubemq_spark.errors import (
    HttpAnswerError,
    OptionError,
    RemoteProtocolError,
    RpcError,
    TlsError,
    TubeMQConnectionError,
    TubeMQError,
)
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connection import Connection
from tubemq_spark.net.connections import Connections
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.loop import in_thread
from tubemq_spark.net.retry import CHECK_S, LEAVE_MS, Result
from tubemq_spark.net.tls_errors import answers_in_tls
from tubemq_spark.protocol import packed_strings
from tubemq_spark.protocol.constants import (
    DEFAULT_BROKER_PORT,
    DEFAULT_BROKER_TLS_PORT,
    UNDEFINED,
    Method,
    ServiceType,
)
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.pb import common_pb2, master_pb2

logger = logging.getLogger(__name__)

AnyAnswer = TypeVar(
    "AnyAnswer",
    master_pb2.RegisterResponseM2P,
    master_pb2.HeartResponseM2P,
    master_pb2.CloseResponseM2P,
    master_pb2.RegisterResponseM2C,
    master_pb2.HeartResponseM2C,
    master_pb2.RegisterResponseM2CV2,
    master_pb2.HeartResponseM2CV2,
    master_pb2.GetPartMetaResponseM2C,
    master_pb2.CloseResponseM2C,
)

_ANSWERED: Final = frozenset({ErrCode.SUCCESS, ErrCode.NOT_READY})
_SINCE_NOVEMBER_2021: Final = frozenset(
    {Method.BALANCE_REGISTER, Method.BALANCE_HEARTBEAT, Method.BALANCE_PARTITION_META}
)
_WRONG_MASTER: Final = (OptionError, TlsError)
"""Errors of a single master that will not pass by themselves; another one may do."""
_NOT_ANSWERED: Final = (*_WRONG_MASTER, RemoteProtocolError)
"""Errors of a single master that say nothing about the question, besides those that are retriable."""
_last_active: Final[dict[tuple[Endpoint, ...], Endpoint]] = {}
"""Which of some masters answered last, shared by all sessions of this process."""


class MasterCaller:
    """Calls whichever master is active."""

    def __init__(self, config: ClientConfig, connections: Connections, until: Deadline | None = None) -> None:
        self.until = until
        """No call takes longer than this, besides its own limit."""
        self._config = config
        self._connections = connections

    async def call(
        self, method: Method, request: ProtobufMessage, answer: type[AnyAnswer], during: str
    ) -> AnyAnswer:
        """Ask the master that answered last, then the others, each at most once.

        One round takes no longer than ``rpc_timeout_ms``: the masters share that time. An address that does
        not belong to a master is ignored as long as another one does. An answer that cannot be read counts as
        none.
        """
        deadline = _deadline(self._config.rpc_timeout_ms).earlier(self.until)
        masters = self._active_first()
        failures: list[TubeMQError] = []
        for number, master in enumerate(masters):
            share_ms = max(1, int(deadline.remaining() * 1000 / (len(masters) - number)))
            try:
                response = await self._call_master(master, method, request, answer, share_ms, during)
            except TubeMQError as error:
                if not error.retriable and not isinstance(error, _NOT_ANSWERED):
                    raise
                failures.append(error)
                continue
            self._note_active(master, failures)
            if response.errCode not in _ANSWERED:
                raise rpc_error(response.errCode, response.errMsg, peer=f"master {master}", during=during)
            return response
        if all(isinstance(error, _WRONG_MASTER) for error in failures):
            raise failures[0]
        tried = "; ".join(f"{master} ({error})" for master, error in zip(masters, failures, strict=True))
        raise TubeMQConnectionError("TUBEMQ_NO_MASTER", during=during, tried=tried)

    def credentials(self) -> common_pb2.MasterCertificateInfo | None:
        """Return fresh credentials for a request; None when none are configured.

        Java's consumers leave them out when they register, and are refused by masters that check users.
        """
        proof = proof_for_master(self._config)
        return None if proof is None else common_pb2.MasterCertificateInfo(authInfo=proof)

    def _note_active(self, master: Endpoint, failures: Sequence[TubeMQError]) -> None:
        """Remember who answered; say once per process that another one leads now."""
        before = _last_active.get(self._config.masters)
        _last_active[self._config.masters] = master
        if failures and before is not None and before != master:
            logger.warning("master %s answers now, after %s did not: %s", master, before, failures[0])

    def _active_first(self) -> list[Endpoint]:
        masters = identity.current_masters(self._config.masters)
        active = _last_active.get(self._config.masters)
        if active not in masters:
            active = masters[0]
        return [active, *(master for master in masters if master != active)]

    async def _call_master(
        self,
        master: Endpoint,
        method: Method,
        request: ProtobufMessage,
        answer: type[AnyAnswer],
        timeout_ms: int,
        during: str,
    ) -> AnyAnswer:
        deadline = _deadline(timeout_ms)
        connect_ms = min(self._config.connect_timeout_ms, timeout_ms)
        connection = await self._connections.get(master, connect_ms, self._config.tls)
        timeout_ms = max(1, int(deadline.remaining() * 1000))
        try:
            call = connection.start(ServiceType.MASTER, method, request, timeout_ms=timeout_ms, during=during)
            await call
            return call.result(answer, during)
        except TubeMQError as error:
            what = _other_server(error)
            if what is not None:
                raise OptionError("TUBEMQ_NOT_A_MASTER", endpoint=master, what=what) from error
            if self._config.tls is None and _hung_up(connection, error) and await _speaks_tls(master):
                raise OptionError("TUBEMQ_TLS_EXPECTED", endpoint=master) from error
            # Both PbEnDecoder and RpcServiceInvoker of Java's server say it in these words.
            if method in _SINCE_NOVEMBER_2021 and "Unsupported method" in str(error.parameters.get("text")):
                raise RpcError("TUBEMQ_MASTER_TOO_OLD", peer=master, method=int(method)) from error
            raise


def _deadline(milliseconds: float) -> Deadline:
    return Deadline.after_ms(milliseconds, asyncio.get_running_loop().time)


def _hung_up(connection: Connection, error: TubeMQError) -> bool:
    """Tell whether the peer ended the connection without any answer: so does a TLS port, among others."""
    return error.condition == "TUBEMQ_CONNECTION_LOST" and not connection.heard


async def _speaks_tls(master: Endpoint) -> bool:
    with contextlib.suppress(RuntimeError):  # no thread is left
        return await in_thread(functools.partial(answers_in_tls, master), f"tubemq-tls-{master.host}")
    return False


def _other_server(error: TubeMQError) -> str | None:
    """Return which server the peer is, if an error shows that it is not a master."""
    # The words of Java's RpcServiceInvoker when a node does not publish a service.
    if str(error.parameters.get("text")).startswith(f"No service {int(ServiceType.MASTER)} found"):
        return "a TubeMQ broker"
    return "an HTTP server" if isinstance(error.__cause__, HttpAnswerError) else None


class MasterSession(abc.ABC):
    """A registered client of the masters; the kinds of sessions inherit from it."""

    _holds_partitions: ClassVar[bool] = False
    """Whether it is a consumer's that holds partitions. Its first heartbeat is sent at once, since only then
    the master counts it, and heartbeats come less often after ``misses_before_pause`` that failed."""

    def __init__(
        self, config: ClientConfig, connections: Connections, client_id: str, until: Deadline | None = None
    ) -> None:
        """Ask no master; no request will end later than ``until``."""
        self.client_id = client_id
        self.host = identity.local_ipv4()
        self.visit_token = UNDEFINED
        self.authorized_token = ""
        """What the master gave us to show to brokers for the user; blank if nothing, as Java's masters do."""
        self._config = config
        self._connections = connections
        self._caller = MasterCaller(config, connections, until)
        self._heartbeats: asyncio.Task[None] | None = None
        self._may_be_known = False
        """Whether the master may have registered us; also when ``open`` was cancelled."""
        self._is_due = asyncio.Event()
        """Set when the next heartbeat is not to wait for the end of the period."""
        self._missed_since: float | None = None
        self._misses = 0
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException as error:
            # The master may have registered what was cancelled. A member that is not there would keep its
            # group from asking for other topics for 30 s.
            await self.__aexit__(type(error))
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:
            # Who ends early does not wait for a master that is frozen.
            await asyncio.wait({self._begin_to_close()}, timeout=CHECK_S)

    async def open(self, until: Deadline | None = None) -> Self:
        """Register, with up to ``register_attempts`` attempts, and begin to send heartbeats."""
        async with self._exclusively(until):
            self._may_be_known = True
            try:
                await self._patiently(self._register)
            except TubeMQError:
                self._may_be_known = False
                raise
            self._heartbeats = asyncio.create_task(
                self._send_heartbeats(), name=f"heartbeat of {self.client_id}"
            )
        if self._holds_partitions:
            self._is_due.set()
        return self

    async def close(self) -> None:
        """Leave the master; errors are only logged, because it forgets us after 30 s anyway.

        That takes no longer than ``LEAVE_MS``, also while another request waits for its answer. It goes on
        when the caller is cancelled: a member that is not there would keep its group from other topics.
        """
        await asyncio.shield(self._begin_to_close())

    def _begin_to_close(self) -> "asyncio.Task[None]":
        return self._connections.begin_to_leave(self._close())

    async def _close(self) -> None:
        """End the heartbeats, and leave the master if it may know us."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.cancel()
            await asyncio.wait([heartbeats])
        if not self._may_be_known:
            return
        self._may_be_known = False
        try:
            async with self._exclusively(_deadline(min(LEAVE_MS, self._config.rpc_timeout_ms))):
                await self._leave()
        except TubeMQError as error:
            logger.info("%s could not leave the master: %s", self.client_id, error)

    def stop_heartbeats(self) -> None:
        """Send no more heartbeats; any thread may call it, and it waits for nothing."""
        if (heartbeats := self._heartbeats) is not None:
            self._soon(heartbeats.cancel)

    def refresh_soon(self) -> None:
        """Send the next heartbeat at once; any thread may call it."""
        if not self._is_due.is_set():
            self._soon(self._is_due.set)

    async def refresh_token(self) -> None:
        """Ask the master for a visit token that brokers accept."""
        async with self._exclusively():
            await self._ask(self._heartbeat)

    @abc.abstractmethod
    async def _register(self) -> None:
        """Send the register request and keep what its answer says."""

    @abc.abstractmethod
    async def _heartbeat(self) -> None:
        """Send a heartbeat and keep what its answer says."""

    async def _after_heartbeat(self) -> None:  # noqa: B027 (most kinds have nothing to do)
        """Do what else is due when a heartbeat was answered; here nothing."""

    async def _leave(self) -> None:
        """Send the close request; this is a consumer's."""
        request = master_pb2.CloseRequestC2M(
            clientId=self.client_id, groupName=self._config.group, authInfo=self._caller.credentials()
        )
        during = f"closing a consumer of group {self._config.group}"
        await self._caller.call(Method.CONSUMER_CLOSE, request, master_pb2.CloseResponseM2C, during)

    def _soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop from any thread, as long as the session is open."""
        if (heartbeats := self._heartbeats) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                heartbeats.get_loop().call_soon_threadsafe(callback, *arguments)

    @contextlib.asynccontextmanager
    async def _exclusively(self, until: Deadline | None = None) -> AsyncIterator[None]:
        """Hold the lock, with a deadline for it and for the requests that are made under it."""
        try:
            async with asyncio.timeout(None if until is None else until.remaining()):
                await self._lock.acquire()
        except TimeoutError:
            raise TubeMQConnectionError(
                "TUBEMQ_NO_MASTER",
                during=f"{self.client_id} waited for its turn",
                tried="the request before, which has no answer yet",
            ) from None
        outer = self._caller.until
        self._caller.until = outer if until is None else until.earlier(outer)
        try:
            yield
        finally:
            self._caller.until = outer
            self._lock.release()

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until this is cancelled."""
        clock = asyncio.get_running_loop().time
        began_at, period_ms = clock(), self._config.heartbeat_period_ms
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(began_at + period_ms / 1000):
                    await self._is_due.wait()
            async with self._exclusively():
                self._is_due.clear()
                began_at = clock()
                try:
                    await self._send_heartbeat()
                    period_ms = self._pause_ms(self._misses)
                except Exception:
                    # The next one comes all the same: the master would forget us.
                    logger.warning("heartbeat of %s failed", self.client_id, exc_info=True)

    async def _send_heartbeat(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            await self._ask_registered(self._heartbeat)
        except TubeMQError as error:
            self._misses += 1
            if self._missed_since is None:  # only the first of several is told
                self._missed_since = clock()
                logger.warning("%s missed a heartbeat: %s", self.client_id, error)
            return
        self._misses = 0
        if self._missed_since is not None:
            logger.warning(
                "%s reaches its masters again after %.1f s", self.client_id, clock() - self._missed_since
            )
            self._missed_since = None
        try:
            await self._after_heartbeat()
        except TubeMQError as error:
            logger.info("%s could not ask more of its masters: %s", self.client_id, error)

    def _pause_ms(self, misses: int) -> int:
        """Return how long to wait for the next heartbeat after so many in a row that failed."""
        usual_ms, consumer = self._config.heartbeat_period_ms, self._config.consumer
        many = self._holds_partitions and misses >= consumer.misses_before_pause
        return max(usual_ms, consumer.pause_after_misses_ms) if many else usual_ms

    async def _ask(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask for a caller who waits for the answer: with retries, and registering again when needed."""
        return await self._patiently(lambda: self._ask_registered(ask))

    async def _ask_registered(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask; if the master no longer knows us, register again and repeat."""
        try:
            return await ask()
        except RpcError as error:
            if error.code != ErrCode.HB_NO_NODE:
                raise
        logger.info("the master no longer knows %s; registering again", self.client_id)
        await self._patiently(self._register)
        return await ask()

    async def _patiently(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Ask, up to ``register_attempts`` times as long as errors are transient."""
        # Attempts and time-outs must not multiply: a master that never answers uses up the time of all
        # attempts, so none begins after half a time-out.
        deadline = _deadline(self._config.rpc_timeout_ms // 2).earlier(self._caller.until)
        attempt = 1
        while True:
            try:
                return await ask()
            except TubeMQError as error:
                if not error.retriable or attempt >= self._config.register_attempts or deadline.expired:
                    raise
                reason = error
            await asyncio.sleep(min(self._config.register_retry_ms / 1000, deadline.remaining()))
            logger.info("%s asks its masters again after attempt %d: %s", self.client_id, attempt, reason)
            attempt += 1

    def _keep_token(self, info: common_pb2.MasterAuthorizedInfo) -> None:
        self.visit_token = info.visitAuthorizedToken
        self.authorized_token = info.authAuthorizedToken.strip() or self.authorized_token


def broker_endpoints(texts: Iterable[str], *, tls: bool = False) -> dict[int, Endpoint]:
    """Return the addresses in a master's list of brokers, by broker id.

    A master that is reached over TLS lists the brokers' TLS ports (MasterConfig of Java's master); the usual
    one is left out.
    """
    default_port = DEFAULT_BROKER_TLS_PORT if tls else DEFAULT_BROKER_PORT
    infos = (packed_strings.parse_broker_info(text, default_port) for text in texts)
    return {info.broker_id: info.endpoint for info in infos}
