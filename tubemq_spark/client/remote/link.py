"""The session of one consumer, at whichever gateway it is now.

**States.**

- *nowhere*: ``gateway`` is None. The next that needs a gateway opens the session at the current one, and
  *joins* there: subscribes, or attaches the partitions where they were confirmed;
- *joining*: one task does that, and all others wait for it;
- *joined*: ``gateway`` is where. Batches that come now are of this ``stay``;
- *nowhere* again, when the gateway was lost, does not know the session any more, or is about to stop.

**Invariants.** A batch can be confirmed during its stay only: when that is over, the gateway takes back what
was not confirmed, and it comes again. Each stay has an epoch of its own, so that a gateway which lives on
ends the one before. While ``clock`` is before ``rest_until`` no gateway is asked.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.tasks import OwnedTasks
from tubemq_spark.errors import GatewayError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)

_MARGIN_S: Final = 5.0
"""What a call may take beyond what TubeMQ may."""
_UNKNOWN: Final = "TUBEMQ_SESSION_UNKNOWN"


class Link:
    """Where a consumer's session is."""

    def __init__(
        self,
        gateways: Gateways,
        tasks: OwnedTasks,
        join: Callable[[int], Awaitable[None]],
        on_lost: Callable[[], object],
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin nowhere.

        Args:
            gateways: those of this consumer alone.
            tasks: those of the consumer.
            join: subscribes, or attaches partitions, at a gateway where the session is open.
            on_lost: called when a stay is over.
            clock: returns the time.
        """
        self.gateways = gateways
        self.gateway: int | None = None
        self.stay = 0
        """How many stays there were."""
        self.rest_until = 0.0
        self.is_draining = False
        """Whether the gateway has said that it is about to stop."""
        self.left = False
        """Whether the consumer has closed: it joins nowhere any more."""
        self._tasks = tasks
        self._join = join
        self._on_lost = on_lost
        self._clock = clock
        self._joining: asyncio.Task[int] | None = None
        self._attempts = self._new_attempts()

    @property
    def is_resting(self) -> bool:
        """Whether no gateway is to be asked now."""
        return self._clock() < self.rest_until

    @property
    def endpoint(self) -> Endpoint:
        """Where the consumer is, or would be next."""
        gateway = self.gateway
        return self.gateways.endpoint(self.gateways.current_index if gateway is None else gateway)

    def rest(self) -> None:
        """Ask no gateway for as long as masters would not be asked again."""
        self.rest_until = self._clock() + self.gateways.config.register_retry_ms / 1000

    async def joined(self) -> int:
        """Return the gateway where the consumer is; join at the current one if it is nowhere.

        Raises:
            AwayError: that cannot be joined; ``rest_until`` says when to try again.
            TubeMQError: that of TubeMQ.
        """
        if self.gateway is not None:
            return self.gateway
        if self._joining is None or self._joining.done():
            self._joining = self._tasks.start(self._join_current(), "joining a gateway")
        return await asyncio.shield(self._joining)

    async def join_at(self, gateway: int) -> None:
        """Open the session at a gateway, and join there.

        Raises:
            AwayError: it cannot be joined.
            TubeMQError: that of TubeMQ.
        """
        if self.left:
            raise AwayError("the consumer is closed")
        await self.gateways.opening(gateway)
        try:
            await self._join(gateway)
        except GatewayError as error:
            if error.condition != _UNKNOWN:
                raise
            self.gateways.begin_epoch(gateway)
            raise AwayError(error) from error
        self.gateway = gateway
        self.stay += 1
        self.is_draining = False
        self._attempts = self._new_attempts()

    async def ask(
        self, name: str, request: Message, answer: type[Answer], timeout_s: float, stay: int | None = None
    ) -> Answer:
        """Call the gateway where the consumer is; join first if it is nowhere.

        Args:
            name: the method.
            request: its request.
            answer: the type of its answer.
            timeout_s: how long TubeMQ may take.
            stay: the only one that will do.

        Raises:
            AwayError: the stay is over; ``rest_until`` says when to try again.
            TubeMQError: that of the gateway, or of TubeMQ.
        """
        gateway = await self.joined()
        if stay is None:
            stay = self.stay
        elif stay != self.stay:
            raise AwayError("its gateway was left")
        try:
            return await self.gateways.ask_at(gateway, name, request, answer, timeout_s + _MARGIN_S)
        except AwayError as error:
            if error.busy:
                self._rest(error)
            else:
                self.lost(stay, error)
            raise
        except GatewayError as error:
            if error.condition != _UNKNOWN:
                raise
            away = AwayError(error)
            self.lost(stay, away)
            raise away from error

    def lost(self, stay: int, error: AwayError) -> None:
        """End a stay, if it is not over already."""
        if self.stay != stay or self.gateway is None:
            return
        gateway, self.gateway = self.gateway, None
        if not self.left:
            logger.info("the gateway %s was left: %s", self.gateways.name(gateway), error)
        self.gateways.begin_epoch(gateway)
        self._failed(gateway, error)
        self._on_lost()

    async def _join_current(self) -> int:
        gateway = self.gateways.current_index
        try:
            await self.join_at(gateway)
        except AwayError as error:
            self._failed(gateway, error)
            raise
        return gateway

    def _failed(self, gateway: int, error: AwayError) -> None:
        if error.failure is not None and error.failure.condition == _UNKNOWN:
            return  # the same one may take it again, at once
        pause_s = self._attempts.failed(gateway, error)
        if pause_s is None:  # TLS fits nowhere, which may be mended
            self.rest()
        else:
            self.rest_until = self._clock() + pause_s

    def _rest(self, error: AwayError) -> None:
        self.rest_until = self._clock() + error.retry_after_s

    def _new_attempts(self) -> Attempts:
        return self.gateways.attempts(None, None)
