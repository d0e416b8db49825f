"""The session of one consumer, at whichever gateway it is now.

**States.**

- *nowhere*: ``gateway`` is None. The next that needs a gateway opens the session at the current one, and
  *joins* there: subscribes, or attaches the partitions where they were confirmed;
- *joining*: one rule does that, and all others wait for it;
- *joined*: ``gateway`` is where. Batches that come now are of this ``stay``;
- *nowhere* again, when the gateway was lost, does not know the session any more, or is about to stop.

**Invariants.** A batch can be confirmed during its stay only: when that is over, the gateway takes back what
was not confirmed, and it comes again. Each stay has an epoch of its own, so that a gateway which lives on
ends the one before. While ``clock`` is before ``rest_until`` no gateway is asked.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from google.protobuf.message import Message

from tubemq_spark.client.remote.attempts import Attempts, AwayError
from tubemq_spark.client.remote.connections import Gateways
from tubemq_spark.client.steps import Steps, wait_for
from tubemq_spark.errors import GatewayError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Clock

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=Message)

_MARGIN_S: Final = 5.0
"""What a call may take beyond what TubeMQ may."""
_UNKNOWN: Final = "TUBEMQ_SESSION_UNKNOWN"


class Link:
    """Where a consumer's session is; any thread may use it."""

    def __init__(
        self,
        gateways: Gateways,
        join: Callable[[int], Steps[None]],
        on_lost: Callable[[], object],
        clock: Clock = time.monotonic,
    ) -> None:
        """Begin nowhere.

        Args:
            gateways: those of this consumer alone.
            join: subscribes, or attaches partitions, at a gateway where the session is open.
            on_lost: called when a stay is over; no lock of this is held then.
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
        self._join = join
        self._on_lost = on_lost
        self._clock = clock
        self._lock = threading.Lock()
        self._joining: Future[int] | None = None
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

    def joined(self) -> Steps[int]:
        """Return the gateway where the consumer is; join at the current one if it is nowhere.

        Raises:
            AwayError: that cannot be joined; ``rest_until`` says when to try again.
            TubeMQError: that of TubeMQ.
        """
        with self._lock:
            if self.gateway is not None:
                return self.gateway
            joining = self._joining
            mine = joining is None
            if joining is None:
                joining = self._joining = Future()
        if not mine:
            return (yield from wait_for(joining))
        gateway = self.gateways.current_index
        try:
            yield from self.join_at(gateway)
        except BaseException as error:
            with self._lock:
                self._joining = None
            joining.set_exception(error if isinstance(error, Exception) else AwayError("it was given up"))
            if isinstance(error, AwayError):
                self._failed(gateway, error)
            raise
        joining.set_result(gateway)
        return gateway

    def join_at(self, gateway: int) -> Steps[None]:
        """Open the session at a gateway, and join there.

        Raises:
            AwayError: it cannot be joined.
            TubeMQError: that of TubeMQ.
        """
        if self.left:
            raise AwayError("the consumer is closed")
        yield from self.gateways.opening(gateway)
        try:
            yield from self._join(gateway)
        except GatewayError as error:
            if error.condition != _UNKNOWN:
                raise
            self.gateways.begin_epoch(gateway)
            raise AwayError(error) from error
        with self._lock:
            self.gateway = gateway
            self.stay += 1
            self.is_draining = False
            self._joining = None
            self._attempts = self._new_attempts()

    def ask(
        self, name: str, request: Message, answer: type[Answer], timeout_s: float, stay: int | None = None
    ) -> Steps[Answer]:
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
        gateway = yield from self.joined()
        if stay is None:
            stay = self.stay
        elif stay != self.stay:
            raise AwayError("its gateway was left")
        try:
            return (yield from self.gateways.ask_at(gateway, name, request, answer, timeout_s + _MARGIN_S))
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
        with self._lock:
            if self.stay != stay or self.gateway is None:
                return
            gateway, self.gateway = self.gateway, None
        if not self.left:
            logger.info("the gateway %s was left: %s", self.gateways.name(gateway), error)
        self.gateways.begin_epoch(gateway)
        self._failed(gateway, error)
        self._on_lost()

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
