"""A gateway in a process of its own, by its command: to be attacked, measured and killed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import IO, Final, Self, cast

import psutil  # type: ignore[import-untyped]

_STOP_S: Final = 60


class GatewayProcess:
    """A gateway before a server; a context manager that ends it."""

    def __init__(self, master: str, *flags: str, web: str | None = None, log: Path | None = None) -> None:
        """Start it and wait until it serves."""
        command = [sys.executable, "-m", "tubemq_spark", "gateway"]
        command += ["--master-servers", master, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *flags]
        if web is not None:
            command += ["--master-web", web]
        self.log = log
        errors = None if log is None else log.open("ab")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        if errors is not None:
            errors.close()
        self._output = cast("IO[str]", self._process.stdout)
        self.address = self._read(r"serves at (\S+)")
        self.metrics = self._read(r"metrics at http://([^/\s]+)")
        """Where metrics and the status page are."""
        self.process = psutil.Process(self._process.pid)

    def _read(self, pattern: str) -> str:
        line = self._output.readline()
        match = re.search(pattern, line)
        if match is None:
            self._process.kill()
            self._process.wait()
            self._output.close()
            raise RuntimeError(f"the gateway did not start: {line!r}")
        return match[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, if it runs: it drains before."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._output.close()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()

    @property
    def cpu_s(self) -> float:
        """Processor time it has used, user and system, in seconds."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        """How much memory it has resident."""
        return int(self.process.memory_info().rss)

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return int(self.process.num_threads())

    def log_bytes(self) -> int:
        """Return how long its log is."""
        return 0 if self.log is None else self.log.stat().st_size

    def upstream(self, address: str) -> int:
        """Return how many connections it has to the host of a server, those of its clients left out."""
        own = int(self.address.rpartition(":")[2])
        host = address.rpartition(":")[0]
        return sum(
            1
            for one in self.process.net_connections("tcp")
            if one.raddr and one.laddr.port != own and one.raddr.ip == host
        )
