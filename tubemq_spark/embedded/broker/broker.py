"""The broker of an embedded TubeMQ: its port, its handlers, and what it does every so often."""

import itertools
from collections.abc import Sequence

from tubemq_spark.embedded.broker.consume import ConsumerHandlers
from tubemq_spark.embedded.broker.history import OffsetHistory
from tubemq_spark.embedded.broker.produce import SendHandler
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.dispatch import Dispatcher
from tubemq_spark.embedded.troubles import Troubles
from tubemq_spark.net.listener import Answer, Interceptor, Listener
from tubemq_spark.net.scheduler import Scheduler
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import Method, ServiceType


class Broker:
    """Serves one ``BrokerState`` on a port, from the start."""

    def __init__(self, state: BrokerState, host: str, port: int, scheduler: Scheduler) -> None:
        """Open the port (0: any free one).

        Raises:
            TubeMQConnectionError: the port cannot be opened.
        """
        self.state = state
        consumers = ConsumerHandlers(state)
        services = frozenset({ServiceType.BROKER_READ, ServiceType.BROKER_WRITE})
        # Sends are not in the table: they are handled many at a time.
        self._dispatcher = Dispatcher(services, consumers.operations)
        self._sends = SendHandler(state, self._dispatcher)
        settings = state.settings
        # What waits for the disk has a thread of its own: leases must run out in time on a slow one, too.
        self._disk = disk = Scheduler()
        troubles = Troubles()
        save = troubles.guarded("Saving offsets", state.offsets.save)
        self._listener = Listener("broker", host, port, self.serve)
        self._tasks = [
            scheduler.every(settings.scan_period_ms, consumers.expire_leases, "expiring leases"),
            disk.every(settings.flush_check_ms, state.stores.flush_due, "flushing stores"),
            disk.every(settings.offsets_save_ms, save, "saving offsets"),
            disk.every(settings.retention_check_ms, state.stores.expire, "deleting old data"),
            disk.every(
                settings.group_expiry_check_ms, consumers.forget_idle_groups, "forgetting idle groups"
            ),
        ]
        self._history = OffsetHistory(state) if settings.offset_history_period_ms else None
        if self._history is not None:
            period_ms = settings.offset_history_period_ms
            self._tasks.append(disk.every(period_ms, self._history.write, "writing the offset history"))

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
        answers: list[Answer] = []
        for is_send, group in itertools.groupby(requests, key=_is_send):
            if is_send:
                answers += self._sends.serve(list(group))
            else:
                answers += [self._dispatcher.answer(request) for request in group]
        return answers

    def freeze(self) -> None:
        """Read and answer nothing from now on."""
        self._listener.freeze()

    def thaw(self) -> None:
        """Go on with what came meanwhile."""
        self._listener.thaw()

    def close(self, *, last_snapshot: bool = True) -> None:
        """Refuse new requests, close the port, write a last snapshot; the state is its owner's to close."""
        self.state.stopping.set()
        for task in self._tasks:
            task.cancel()
        self._disk.close()
        self._listener.close()
        if self._history is not None and last_snapshot:
            self._history.write()


def _is_send(request: rpc.Request) -> bool:
    return request.method == Method.SEND_MESSAGE
