"""One server JVM that can be stopped, killed, and started again on the same files."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .artifacts import Distribution
from .config_files import LOG4J2
from .processes import ProcessGroup, kill, stop, tail

MASTER_CLASS: Final = "org.apache.inlong.tubemq.server.tools.MasterStartup"
BROKER_CLASS: Final = "org.apache.inlong.tubemq.server.tools.BrokerStartup"

GRACEFUL_STOP_TIMEOUT_S: Final = 60.0

COMMON_FLAGS: Final = (
    "-XX:+UseSerialGC",
    "-Djava.net.preferIPv4Stack=true",
    # TubeMQ 2.4 is written for Java 8 and reaches into the JDK for its file channels.
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)


@dataclass(slots=True)
class JavaServer:
    """A master or a broker, running or not."""

    name: str
    main_class: str
    directory: Path
    """Its configuration, data and log."""

    jvm_flags: tuple[str, ...]
    distribution: Distribution
    processes: ProcessGroup
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def prepare(self, configuration: str) -> None:
        """Write the files the server starts from."""
        self.directory.mkdir(parents=True)
        (self.directory / "server.ini").write_text(configuration, encoding="utf-8")
        (self.directory / "log4j2.xml").write_text(LOG4J2, encoding="utf-8")

    @property
    def log(self) -> Path:
        """Where everything goes that the server prints, over all its starts."""
        return self.directory / "server.log"

    @property
    def is_running(self) -> bool:
        """Whether the process lives, which does not mean that it serves."""
        return self._child is not None and not self.has_died

    @property
    def has_died(self) -> bool:
        """Whether the process ended without being told to."""
        return self._child is not None and self._child.poll() is not None

    def start(self) -> None:
        """Start the process without waiting for it to serve."""
        if self.is_running:
            raise RuntimeError(f"{self.name} is running already")
        # The master finds its page templates relative to its working directory only, and
        # refuses symbolic links. Nothing is written there.
        home = self.distribution.home
        self._child = self.processes.spawn(self._command(), cwd=home, log=self.log)

    def stop(self) -> None:
        """End the server in good order: a broker writes what it holds in memory."""
        if self._child is not None:
            stop(self._child, timeout_s=GRACEFUL_STOP_TIMEOUT_S)
            self._child = None

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._child is not None:
            kill(self._child)
            self._child = None

    def pause(self) -> None:
        """Freeze the process; what it holds open stays open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        self._signal(signal.SIGCONT)

    def describe(self) -> str:
        """Tell how the server fares and what it printed last."""
        state = "runs" if self.is_running else "does not run"
        return f"--- {self.name} {state}; end of its log:\n{tail(self.log)}"

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    def _command(self) -> list[str]:
        return [
            "java",
            *self.jvm_flags,
            *COMMON_FLAGS,
            f"-Dtubemq.home={self.directory}",
            f"-Dtubemq.log.path={self.directory}",
            f"-Dtubemq.log.prefix={self.name}",
            f"-Dlog4j.configurationFile={self.directory / 'log4j2.xml'}",
            "-cp",
            self.distribution.server_class_path,
            self.main_class,
            "-f",
            str(self.directory / "server.ini"),
        ]
