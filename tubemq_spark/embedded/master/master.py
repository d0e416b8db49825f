"""The master of an embedded TubeMQ: its port, its handlers, and what it does every so often."""

import logging
from collections.abc import Sequence

from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import Dispatcher
from tubemq_spark.embedded.master.balance_rounds import BalanceRounds
from tubemq_spark.embedded.master.client_balance_handlers import ClientBalanceHandlers
from tubemq_spark.embedded.master.producer_handlers import ProducerHandlers
from tubemq_spark.embedded.master.server_balance_handlers import ServerBalanceHandlers
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Answer, Interceptor, Listener
from tubemq_spark.net.scheduler import Scheduler
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import ServiceType

logger = logging.getLogger(__name__)


class Master:
    """Serves one ``MasterState`` on a port, from the start."""

    def __init__(
        self, state: MasterState, host: str, port: int, settings: EmbeddedSettings, scheduler: Scheduler
    ) -> None:
        """Open the port (0: any free one).

        Raises:
            TubeMQConnectionError: the port cannot be opened.
        """
        self.state = state
        operations = {
            **ProducerHandlers(state).operations,
            **ServerBalanceHandlers(state).operations,
            **ClientBalanceHandlers(state).operations,
        }
        self._dispatcher = Dispatcher(frozenset({ServiceType.MASTER}), operations)
        self._listener = Listener("master", host, port, self.serve)
        state.address = Endpoint(state.address.host, self.port)
        self._tasks = [
            scheduler.every(settings.scan_period_ms, self._expire_clients, "expiring clients"),
            scheduler.every(
                settings.balance_period_ms, BalanceRounds(state, settings).run, "balancing groups"
            ),
        ]

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.endpoint.port

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Put a function between the requests and their handlers, or none."""
        self._listener.interceptor = interceptor

    def serve(self, requests: Sequence[rpc.Request]) -> list[Answer]:
        """Answer the requests of one read in their order; it never raises."""
        return [self._dispatcher.answer(request) for request in requests]

    def close(self) -> None:
        """Close the port."""
        for task in self._tasks:
            task.cancel()
        self._listener.close()

    def _expire_clients(self) -> None:
        with self.state.lock:
            gone = self.state.members.expire()
        for client_id in gone:
            logger.info("client %s timed out", client_id)
