"""The life of a consumer of any kind, and what it holds, as all of its coroutines see them.

All of it is used in the consumer's event loop only, but for ``stopped``.

Invariants:

- ``life`` only goes on, and when it ends, all that wait are woken and refused.
- ``stopped`` is set from anywhere, by a signal handler perhaps, and never reset. Nothing is fetched then;
  what is out may be confirmed.
- ``troubles`` has the last error of a partition, until it is read again.
- The tasks of a consumer hold this object and never its faces, which are collected when users drop them.
"""

import abc
import enum
import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.tasks import Changes
from tubemq_spark.errors import ConsumeError, TubeMQError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.protocol.errcodes import ErrCode

logger = logging.getLogger(__name__)


class Life(enum.Enum):
    """What becomes of a consumer; see ``core``."""

    NEW = "not open yet"
    OPEN = "open"
    CLOSED = "closed"


_ADVICE: Final = {
    Life.NEW: "open it first, or use it in a with block",
    Life.CLOSED: "open a new one",
}


class Connected(Protocol):
    """A partition that a consumer holds."""

    @property
    def endpoint(self) -> Endpoint:
        """Its broker, or the gateway behind which that is."""


class ConsumerLife(abc.ABC):
    """What every consumer shows of itself, directly or through gateways."""

    connected: Mapping[TopicPartition, Connected]

    def __init__(self, config: ClientConfig, subscription: Subscription) -> None:
        self.config = config
        self.subscription = subscription
        self.client_id = ""
        """The name under which servers know the consumer."""
        self.owner = os.getpid()
        """The process that it belongs to."""
        self.changes = Changes()
        """Noted when something here has changed."""
        self.troubles: dict[TopicPartition, TubeMQError] = {}
        self.missed: dict[Endpoint, int] = {}
        """Who missed the last heartbeat, each with how many in a row."""
        self.life = Life.NEW
        self.stopped = False
        """Whether nothing is to be fetched any more."""
        self.tell: Callable[[BaseException], object] = lambda _: None
        """Makes a fetch raise an error; ``WaitingLine`` sets this."""

    @abc.abstractmethod
    async def let_go(self, partitions: Collection[TopicPartition], error: TubeMQError | None = None) -> None:
        """Hand out messages of partitions that have come from now on; ``error``: that of their callback."""

    def held(self) -> tuple[TopicPartition, ...]:
        """Return the connected partitions, sorted."""
        return tuple(sorted(self.connected))

    def endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        """Return the broker of a partition that is connected."""
        connected = self.connected.get(partition)
        return None if connected is None else connected.endpoint

    def check_open(self) -> None:
        """Raise an error unless the consumer is open."""
        if self.life is not Life.OPEN:
            raise self.refusal()

    def check_running(self) -> None:
        """Raise an error unless the consumer is open and not stopped."""
        self.check_open()
        if self.stopped:
            raise self.refusal()

    def check_fetch(self) -> None:
        """Raise an error unless the consumer may fetch."""
        self.check_running()

    def refusal(self) -> ConsumeError:
        """Return the error of a call that does not fit the consumer's life."""
        is_stopped = self.life is Life.OPEN and self.stopped
        group = self.config.group
        if self.life is Life.OPEN and not is_stopped:
            return ConsumeError("TUBEMQ_CONSUMER_OPEN", code=int(ErrCode.BAD_REQUEST), group=group)
        return ConsumeError(
            "TUBEMQ_CONSUMER_CLOSED",
            code=int(ErrCode.CLIENT_SHUTDOWN),
            group=group,
            state="stopped" if is_stopped else self.life.value,
            advice="close it" if is_stopped else _ADVICE[self.life],
        )

    def end(self) -> None:
        """Refuse everything from now on, and wake those that wait."""
        self.life = Life.CLOSED
        self.changes.note()

    def note_missed(self, broker: Endpoint, error: Exception) -> None:
        """Count a heartbeat that a broker missed; warn of the first one in a row."""
        self.missed[broker] = count = self.missed.get(broker, 0) + 1
        if count == 1:
            logger.warning("no lease at %s could be renewed; it is tried again: %s", broker, error)

    def note_answer(self, broker: Endpoint) -> None:
        """Count missed heartbeats of a broker from 0; log how many there were."""
        if count := self.missed.pop(broker, 0):
            logger.info("leases at %s are renewed again, after %d missed heartbeats", broker, count)


def not_held(partition: TopicPartition) -> ConsumeError:
    """Return the error of a call about a partition that the consumer does not hold."""
    return ConsumeError("TUBEMQ_NOT_HELD", code=int(ErrCode.NOT_FOUND), partition=partition)


def confirmed_late(partition: TopicPartition, code: ErrCode, what: str) -> ConsumeError:
    """Return the error of confirming a batch that cannot be confirmed any more."""
    return ConsumeError("TUBEMQ_CONFIRM_LATE", code=int(code), partition=partition, what=what)


def sought(partition: TopicPartition) -> ConsumeError:
    """Return the error of confirming a batch whose partition was moved to another offset since."""
    return ConsumeError("TUBEMQ_CONFIRM_SOUGHT", code=int(ErrCode.BAD_REQUEST), partition=partition)
