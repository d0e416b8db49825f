"""The embedded server in a process of its own, by its command: to be measured, and to be killed."""

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Self, cast

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
        started = time.perf_counter()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._output = cast("IO[str]", self._process.stdout)
        text = "".join(itertools.takewhile(lambda line: not line.startswith("Stop"), self._output))
        self.start_s = time.perf_counter() - started
        """Seconds from its start until its ports were open; the start of Python is most of it."""
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
    def cpu_s(self) -> float:
        """Processor time it has used, user and system."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        # The command's name, in brackets, may hold blanks.
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def bytes_read(self) -> int:
        """What it has read so far, of files and connections, from the page cache or not."""
        counters = Path(f"/proc/{self._process.pid}/io").read_text(encoding="ascii")
        return int(counters.split()[1])

    @property
    def peak_mb(self) -> float:
        """The most memory it has had resident so far, in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        match = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        if match is None:
            raise RuntimeError("the kernel does not tell a process's peak memory")
        return int(match[1]) * 1024 / 1e6

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def stop(self) -> None:
        """End the server in good order."""
        self._process.terminate()
        self._process.wait(_STOP_TIMEOUT_S)
