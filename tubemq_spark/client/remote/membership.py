"""The session of one consumer at its present gateway, and its heartbeats.

==========  ================================================================================================
state       meaning
==========  ================================================================================================
*nowhere*   ``gateway`` is None. The next that needs a gateway makes the consumer join the current one
*joining*   one task opens the session there and has the consumer join; all others wait for it
*joined*    ``gateway`` is where. This is a *generation*, and has a number
*draining*  joined, but the gateway is about to stop: no messages are asked for. What is out may be confirmed
            for ``rebalance_wait_ms``, then the generation is over
==========  ================================================================================================

Invariants:

- A generation is over when its gateway is lost, does not know the session any more, or is about to stop. Only
  ``_end_generation`` ends one, and only ``join_at`` begins one.
- A batch can be confirmed during its generation only: then the gateway takes back what was not, and it comes
  again.
- Each generation has an epoch of its own, so that a gateway which lives on ends the one before. An answer
  that comes when its generation is over counts as none.
- During a rest nothing new is asked. ``attempts`` says how long it takes, and which gateway comes next.
- Events of a generation are numbered. Each is taken once, in their order.
- Heartbeats keep the session while nothing else is asked, bring its events, and join when it is nowhere. They
  come quickly at first, after changes too, and then more and more rarely, but as often as the gateway's lease
  needs them.
"""

import asyncio
import contextlib
import logging
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.consumer.life import ConsumerLife, Life
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.tasks import OwnedTasks, is_cancelled
from tubemq_spark.errors import GatewayError, TubeMQConnectionError, TubeMQError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)

_MARGIN_S: Final = 5.0
"""What a call may take beyond what TubeMQ may."""
_SHORTEST_S: Final = 0.2
"""Before the first heartbeat after something has changed."""
_LONGEST_S: Final = 10.0
"""Between two heartbeats, unless the gateway needs them more often."""
_UNKNOWN: Final = "TUBEMQ_SESSION_UNKNOWN"


class Member(Protocol):
    """The consumer whose session it is."""

    async def join(self, gateway: int) -> None:
        """Subscribe, or attach partitions, at a gateway where the session is open."""

    def leave(self) -> None:
        """Note that a generation is over."""

    async def take_event(self, event: pb.SessionEvent) -> None:
        """Do what an event tells."""

    async def repair(self, generation: int) -> None:
        """Do what is due with each heartbeat."""

    def has_batches(self) -> bool:
        """Return whether something may be confirmed, or is being confirmed."""


class Membership:
    """The gateway where a consumer's session is: at first, none. ``gateways`` serves this consumer only."""

    def __init__(self, gateways: Gateways, state: ConsumerLife, tasks: OwnedTasks, member: Member) -> None:
        self.gateways = gateways
        self.gateway: int | None = None
        self.generation = 0
        """How many generations there were."""
        self.is_draining = False
        self.has_closed = False
        """Whether it joins no gateway any more."""
        self._state = state
        self._tasks = tasks
        self._member = member
        self._joining: asyncio.Task[None] | None = None
        self._attempts = gateways.attempts(None, None)
        self._rest_until = 0.0
        """A time of the event loop."""
        self._seen = 0
        """The number of the last event that was taken."""
        self._period_s = _SHORTEST_S
        self._longest_s = _LONGEST_S
        self._hastened = asyncio.Event()
        """Set when the next heartbeat is due at once."""
        self._leave_at: float | None = None
        """Until when a gateway that is about to stop is used on, for what is out."""

    @property
    def endpoint(self) -> Endpoint:
        """The address of the gateway where the consumer is, or which it joins next."""
        gateway = self.gateway
        return self.gateways.addresses[self.gateways.current_index if gateway is None else gateway]

    def away_error(self, during: str, error: AwayError) -> TubeMQConnectionError:
        """Return the error of a call that no gateway has answered."""
        cause, tried = str(error).rstrip("."), self.gateways.tried
        return TubeMQConnectionError("TUBEMQ_GATEWAY_AWAY", during=during, tried=tried, cause=cause)

    # Being somewhere.

    async def rested(self) -> None:
        """Wait until a gateway may be asked for messages."""
        while self.is_draining or self._rest_s() > 0:
            if self.is_draining:
                await self._state.changes.until(lambda: not self.is_draining)
            else:
                await asyncio.sleep(self._rest_s())

    async def joined(self) -> int:
        """Return the generation; join at the current gateway if the consumer is nowhere."""
        if self.gateway is None:
            if self._joining is None or self._joining.done():
                self._joining = self._tasks.start(self._join_current(), "joining a gateway")
            await asyncio.shield(self._joining)
        return self.generation

    async def joined_or_rest(self) -> int:
        """Return the generation as ``joined`` does; after a transient error rest, and raise ``AwayError``."""
        try:
            return await self.joined()
        except TubeMQError as error:
            if not error.retriable:
                raise
            self._rest(None)
            raise AwayError(error) from error

    async def join_at(self, gateway: int) -> None:
        """Open the session at a gateway, and join there; raises as ``joined``."""
        if self.has_closed:
            raise AwayError("the consumer is closed")
        use = await self.gateways.opening(gateway)
        try:
            await self._member.join(gateway)
        except AwayError as error:
            if not error.busy:  # it may have taken the consumer, or take it still
                self.gateways.begin_epoch()
            raise
        except GatewayError as error:
            if error.condition != _UNKNOWN:
                raise
            self.gateways.begin_epoch()
            raise AwayError(error) from error
        self.gateway, self.generation = gateway, self.generation + 1
        for other in self._state.missed.keys() - {self.endpoint}:
            del self._state.missed[other]
        self._longest_s = _LONGEST_S
        if (opened := use.answer) is not None:
            heartbeat_s = opened.heartbeat_ms / 1000 or _LONGEST_S
            self._longest_s = min(_LONGEST_S, heartbeat_s, opened.lease_ms / 3000)
        self._attempts, self._seen, self._leave_at = self.gateways.attempts(None, None), 0, None

    async def ask(
        self, name: str, request: Message, answer: type[Answer], generation: int, *, more_s: float = 0.0
    ) -> Answer:
        """Call the gateway of a generation, which has ``more_s`` seconds more than TubeMQ to answer."""
        gateway = self._gateway_of(generation)
        timeout_s = self._state.config.rpc_timeout_ms / 1000 + more_s + _MARGIN_S
        try:
            result = await self.gateways.ask_at(gateway, name, request, answer, timeout_s)
        except AwayError as error:
            if error.busy:
                self._rest(error.retry_after_s)
            else:
                self._end_generation(generation, error)
            raise
        except GatewayError as error:
            if error.condition != _UNKNOWN:
                raise
            away = AwayError(error)
            self._end_generation(generation, away)
            raise away from error
        self._gateway_of(generation)  # the next one may have joined without what this answer says
        return result

    def _gateway_of(self, generation: int) -> int:
        """Return the gateway of a generation; raise ``AwayError`` if that is over."""
        if generation != self.generation or self.gateway is None:
            raise AwayError("its gateway was left")
        return self.gateway

    def note_draining(self) -> None:
        """Note that the gateway has said that it is about to stop."""
        if not self.is_draining:
            self.is_draining = True
            self.hasten()

    def _end_generation(self, generation: int, error: AwayError) -> None:
        """End a generation, unless it is over already."""
        if self.generation != generation or self.gateway is None:
            return
        gateway, self.gateway, self.is_draining = self.gateway, None, False
        if not self.has_closed:
            logger.info("the gateway %s was left: %s", self.gateways.addresses[gateway], error)
        self.gateways.begin_epoch()
        if error.failure is None or error.failure.condition != _UNKNOWN:  # which the same one may take again
            self._rest(self._attempts.failed(gateway, error))
        self._member.leave()
        self.hasten()
        self._state.changes.note()

    async def _join_current(self) -> None:
        gateway = self.gateways.current_index
        try:
            await self.join_at(gateway)
        except AwayError as error:
            self._rest(self._attempts.failed(gateway, error))
            raise

    def _rest(self, seconds: float | None) -> None:
        """Rest for so long; None: for ``register_retry_ms``."""
        if seconds is None:
            seconds = self._state.config.register_retry_ms / 1000
        self._rest_until = asyncio.get_running_loop().time() + seconds

    def _rest_s(self) -> float:
        return self._rest_until - asyncio.get_running_loop().time()

    # Heartbeats.

    def hasten(self) -> None:
        """Send the next heartbeat at once, the next few soon, and then more and more rarely."""
        self._period_s = _SHORTEST_S
        self._hastened.set()

    async def keep(self) -> None:
        """Send heartbeats until this is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._period_s, self._longest_s)):
                    await self._hastened.wait()
            self._hastened.clear()
            try:
                if self._state.life is Life.OPEN and self._rest_s() <= 0:
                    await self._beat()
            except BaseException:  # also sys.exit() in a policy
                if is_cancelled():
                    raise
                # The next one is another chance.
                logger.warning("heartbeat of %s failed", self._state.client_id, exc_info=True)

    async def _beat(self) -> None:
        """Send a heartbeat, take its events, and do what is due with it."""
        self._period_s = min(_LONGEST_S, 2 * self._period_s)
        endpoint = self.endpoint
        try:
            generation = await self.joined()
            request = pb.HeartbeatRequest(seen=self._seen)
            answer = await self.ask("Heartbeat", request, pb.HeartbeatResponse, generation)
            self._state.note_answer(self.endpoint)
            for event in answer.events:
                await self._take(event, generation)
            if answer.draining:
                self.note_draining()
            if self.is_draining:
                self._leave_when_done(generation)
            else:
                await self._member.repair(generation)
        except AwayError as error:
            self._state.note_missed(endpoint, error)
        except TubeMQError as error:
            self._state.note_missed(endpoint, error)
            if self.gateway is None:
                self._rest(None)

    async def _take(self, event: pb.SessionEvent, generation: int) -> None:
        if generation == self.generation and event.number > self._seen:
            await self._member.take_event(event)
            if generation == self.generation:
                self._seen = event.number

    def _leave_when_done(self, generation: int) -> None:
        """Leave a gateway that is about to stop, if what is out was confirmed, or was not in time."""
        now = asyncio.get_running_loop().time()
        if self._leave_at is None:
            self._leave_at = now + self._state.config.consumer.rebalance_wait_ms / 1000
        if now >= self._leave_at or not self._member.has_batches():
            self._end_generation(generation, AwayError("it is about to stop"))
        self._period_s = _SHORTEST_S
