"""The broker of an embedded TubeMQ: its port, its handlers and its periodic tasks."""

import itertools
from collections.abc import Iterator, Sequence

from tubemq_spark.embedded.broker.consume import ConsumerHandlers
from tubemq_spark.embedded.broker.produce import SendHandler
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.dispatch import Dispatcher
from tubemq_spark.embedded.failure_log import FailureLog
from tubemq_spark.embedded.rpc_server import RpcServer
from tubemq_spark.embedded.scheduler import Scheduler
from tubemq_spark.net.listener import Answer
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType


class Broker(RpcServer):
    """Serves one ``BrokerState``."""

    def __init__(self, state: BrokerState, host: str, port: int, scheduler: Scheduler) -> None:
        """Open the port (0: any free one)."""
        self.state = state
        self._consumers = ConsumerHandlers(state)
        services = frozenset({ServiceType.BROKER_READ, ServiceType.BROKER_WRITE})
        # Sends are not in the table: they are handled many at a time.
        self._dispatcher = Dispatcher(services, self._consumers.operations)
        self._sends = SendHandler(state, self._dispatcher)
        # Tasks that wait for the disk have a thread of their own, so that a slow disk does not keep leases
        # from expiring on time.
        self._disk = Scheduler()
        super().__init__("broker", host, port, state.settings.tls)
        self._start_tasks(scheduler)

    def serve(self, requests: Sequence[rpc.Request]) -> Iterator[Answer]:
        """Answer the requests of one read in their order, each when it is asked for; it never raises."""
        for is_send, group in itertools.groupby(requests, key=_is_send):
            if is_send:
                yield from self._sends.serve(list(group))
            else:
                yield from map(self._dispatcher.answer, group)

    def close(self) -> None:
        """Refuse new requests, and close the port.

        The state stays open; the caller that opened it closes it.
        """
        self.state.stopping.set()
        self._disk.close()
        super().close()

    def _start_tasks(self, scheduler: Scheduler) -> None:
        settings, state, consumers, disk = self.state.settings, self.state, self._consumers, self._disk
        save = FailureLog().wrap("Saving offsets", state.offsets.save)
        idle_check_ms = settings.group_expiry_check_ms
        self._run_every(scheduler, settings.scan_period_ms, consumers.expire_leases, "expiring leases")
        self._run_every(disk, settings.flush_check_ms, state.stores.flush_due, "flushing stores")
        self._run_every(disk, settings.offsets_save_ms, save, "saving offsets")
        self._run_every(disk, settings.retention_check_ms, state.stores.expire, "deleting old data")
        self._run_every(disk, idle_check_ms, consumers.forget_idle_groups, "forgetting idle groups")


def _is_send(request: rpc.Request) -> bool:
    return request.method == Method.SEND_MESSAGE
