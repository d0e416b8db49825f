"""Gateways and the embedded server in processes of their own: to be killed and started again."""

import contextlib
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final, Self, cast

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
        """Restart a gateway as for a new release: it drains first."""
        self._restart(number, 30_000)

    def close(self) -> None:
        """End both."""
        for gateway in self._running:
            gateway.stop(0)

    @contextlib.contextmanager
    def killed_in_turn(self, every_s: float) -> Iterator[None]:
        """Kill the two gateways in turn, again and again, and start each again."""
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


_PORTS: Final = ("master-port", "broker-port", "master-web-port", "broker-web-port")
_STOP_TIMEOUT_S: Final = 60


class ServerProcess:
    """A server on a directory; a context manager that kills what is left."""

    def __init__(self, data: Path, topics: Mapping[str, tuple[int, int]], log: Path) -> None:
        """Start it and wait until its ports are open; ``topics`` are stores, and partitions of each, by name.

        Topics of an earlier run on the directory are there again.
        """
        command = [sys.executable, "-m", "tubemq_spark", "embedded", "--data", str(data)]
        command += [f"--{port}=0" for port in _PORTS]
        for name, (stores, partitions) in topics.items():
            command += ["--topic", f"{name}:{stores}:{partitions}"]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._output = cast("IO[str]", self._process.stdout)
        text = "".join(itertools.takewhile(lambda line: not line.startswith("Stop"), self._output))
        addresses = dict(re.findall(r"^(master) +(\S+)$", text, re.MULTILINE))
        if "master" not in addresses:
            self.kill()
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        self.master = addresses["master"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bytes_read(self) -> int:
        """What it has read so far, of files and connections, from the page cache or not."""
        counters = Path(f"/proc/{self._process.pid}/io").read_text(encoding="ascii")
        return int(counters.split()[1])

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def stop(self) -> None:
        """End the server in good order."""
        self._process.terminate()
        self._process.wait(_STOP_TIMEOUT_S)
