"""The master of an embedded TubeMQ: its port, its handlers and its periodic tasks."""

import logging
from collections.abc import Iterator, Sequence

from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.dispatch import Dispatcher
from tubemq_spark.embedded.master.balance_rounds import BalanceRounds
from tubemq_spark.embedded.master.client_balance_handlers import ClientBalanceHandlers
from tubemq_spark.embedded.master.producer_handlers import ProducerHandlers
from tubemq_spark.embedded.master.server_balance_handlers import ServerBalanceHandlers
from tubemq_spark.embedded.master.state import MasterState
from tubemq_spark.embedded.rpc_server import RpcServer
from tubemq_spark.embedded.scheduler import Scheduler
from tubemq_spark.model import Endpoint
from tubemq_spark.net.listener import Answer
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import ServiceType

logger = logging.getLogger(__name__)


class Master(RpcServer):
    """Serves one ``MasterState``."""

    def __init__(
        self, state: MasterState, host: str, port: int, settings: EmbeddedSettings, scheduler: Scheduler
    ) -> None:
        """Open the port (0: any free one)."""
        self.state = state
        operations = {
            **ProducerHandlers(state).operations,
            **ServerBalanceHandlers(state).operations,
            **ClientBalanceHandlers(state).operations,
        }
        self._dispatcher = Dispatcher(frozenset({ServiceType.MASTER}), operations)
        super().__init__("master", host, port, settings.tls)
        state.address = Endpoint(state.address.host, self.port)
        rounds = BalanceRounds(state, settings)
        self._run_every(scheduler, settings.scan_period_ms, self._expire_clients, "expiring clients")
        self._run_every(scheduler, settings.balance_period_ms, rounds.run_round, "balancing groups")

    def serve(self, requests: Sequence[rpc.Request]) -> Iterator[Answer]:
        """Answer the requests of one read in their order, each when it is asked for; it never raises."""
        return map(self._dispatcher.answer, requests)

    def _expire_clients(self) -> None:
        with self.state.lock:
            expired = self.state.members.expire()
        for client_id in expired:
            logger.info("client %s timed out", client_id)
