"""What the master and a broker have in common: a port that answers RPCs, and periodic tasks."""

import abc
from collections.abc import Callable, Iterable, Sequence

from tubemq_spark.embedded.scheduler import Scheduler, Task
from tubemq_spark.net.listener import Answer, Interceptor, Listener
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol import rpc


class RpcServer(abc.ABC):
    """Serves a port from its construction until ``close``."""

    def __init__(self, name: str, host: str, port: int, tls: ServerTls | None = None) -> None:
        """Open the port (0: any free one); ``serve`` is called from then on."""
        self._listener = Listener(name, host, port, self.serve, tls, setting=f"{name}_port")
        self._tasks: list[Task] = []

    @abc.abstractmethod
    def serve(self, requests: Sequence[rpc.Request]) -> Iterable[Answer]:
        """Answer the requests of one read in their order; it never raises."""

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._listener.endpoint.port

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return self._listener.connection_count

    def intercept(self, interceptor: Interceptor | None) -> None:
        """Put a function between the requests and their handlers; None removes it."""
        self._listener.interceptor = interceptor

    def freeze(self) -> None:
        """Read and answer nothing until ``thaw``; connections stay open."""
        self._listener.freeze()

    def thaw(self) -> None:
        """Resume with what arrived in the meantime."""
        self._listener.thaw()

    def close(self) -> None:
        """Cancel the tasks and close the port."""
        for task in self._tasks:
            task.cancel()
        self._listener.close()

    def _run_every(
        self, scheduler: Scheduler, period_ms: int, function: Callable[[], None], name: str
    ) -> None:
        """Run a task of this server periodically until ``close``."""
        self._tasks.append(scheduler.every(period_ms, function, name))
