"""How many heartbeats in a row each broker has missed, for one consumer; and one line in the log about it."""

import logging
import threading
from collections.abc import Collection

from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import Endpoint

logger = logging.getLogger(__name__)


class MissedHeartbeats:
    """Counts for each broker; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Endpoint, int] = {}

    def miss(self, broker: Endpoint, error: TubeMQError) -> None:
        """Count a heartbeat that failed; warn of the first one in a row."""
        with self._lock:
            self._counts[broker] = count = self._counts.get(broker, 0) + 1
        if count == 1:
            logger.warning("no lease at %s could be renewed; it is tried again: %s", broker, error)

    def answer(self, broker: Endpoint) -> None:
        """Begin to count anew; say so if any were missed."""
        with self._lock:
            count = self._counts.pop(broker, 0)
        if count:
            logger.info("leases at %s are renewed again, after %d missed heartbeats", broker, count)

    def keep(self, brokers: Collection[Endpoint]) -> None:
        """Forget all other brokers: nothing is held there any more."""
        with self._lock:
            self._counts = {broker: count for broker, count in self._counts.items() if broker in brokers}

    def counts(self) -> dict[Endpoint, int]:
        """Return the brokers that missed their last heartbeat, each with how many in a row."""
        with self._lock:
            return dict(self._counts)
