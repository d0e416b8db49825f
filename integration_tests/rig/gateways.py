"""Two gateways before a server, which go in turn and come back at their addresses."""

import contextlib
import itertools
import threading
from collections.abc import Iterator

from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import load_settings


class Gateways:
    """Two gateways before a master, which queries have in its place."""

    def __init__(self, master: str) -> None:
        """Start both."""
        self._flags = {"master_servers": master, "listen": "127.0.0.1:0"}
        self._running = [self._start(self._flags) for _ in range(2)]
        self.addresses = [gateway.address for gateway in self._running]

    def options(self, **more: str) -> dict[str, str]:
        """Return the connection's options for Spark, and some more."""
        return {"tubemq.gateway.servers": ",".join(self.addresses), "tubemq.group": "it_group", **more}

    def kill(self, number: int) -> None:
        """Cut all that a gateway does, and start it again at its address."""
        self._restart(number, 0)

    def roll(self, number: int) -> None:
        """Restart a gateway as gateway does for a new release: it drains first."""
        self._restart(number, 30_000)

    def close(self) -> None:
        """End both."""
        for gateway in self._running:
            gateway.stop(0)

    @contextlib.contextmanager
    def killed_in_turn(self, every_s: float) -> Iterator[None]:
        """Kill gateway after the other, again and again."""
        over = threading.Event()

        def kill() -> None:
            for number in itertools.cycle((0, 1)):
                if over.wait(every_s):
                    return
                self.kill(number)

        thread = threading.Thread(target=kill, name="killer of gateways")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _restart(self, number: int, drain_ms: int) -> None:
        self._running[number].stop(drain_ms)
        self._running[number] = self._start({**self._flags, "listen": self.addresses[number]})

    def _start(self, flags: dict[str, str]) -> BackgroundGateway:
        gateway = BackgroundGateway(load_settings(flags=flags))
        gateway.start()
        return gateway


@contextlib.contextmanager
def two_gateways(master: str) -> Iterator[Gateways]:
    """Run two until the end of the block."""
    with contextlib.closing(Gateways(master)) as running:
        yield running
