"""One server JVM, with its configuration: stopped, killed, and started again on the same files."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration_tests.real.artifacts import Distribution
from integration_tests.real.processes import ProcessGroup, kill, stop, tail
from tubemq_spark.model import INDEX_ENTRY_BYTES

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


MASTER_HOST: Final = "127.0.0.1"
ADMIN_TOKEN: Final = "abc"

LOG4J2: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="WARN">
  <Appenders>
    <Console name="console" target="SYSTEM_OUT">
      <PatternLayout pattern="%d{HH:mm:ss.SSS} %-5level %logger{1} %msg%n"/>
    </Console>
  </Appenders>
  <Loggers>
    <Logger name="org.apache.velocity" level="ERROR"/>
    <Root level="WARN"><AppenderRef ref="console"/></Root>
  </Loggers>
</Configuration>
"""
"""Warnings and errors to the console; the configuration shipped logs every step."""


@dataclass(frozen=True, slots=True)
class TlsStores:
    """Java's key stores: who the servers are, and whose certificates they take from clients."""

    key_store: Path
    trust_store: Path
    password: str


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a test may want otherwise; the defaults make small data do what large data does."""

    max_segment_bytes: int = 4 << 20
    """When a store's data log rolls over to its next file."""

    max_index_segment_bytes: int = 5_000 * INDEX_ENTRY_BYTES
    """When a store's index rolls over; no single fetch reaches across that border."""

    heartbeat_ms: int = 200
    """How often a broker reports to the master; changes of configuration travel with it."""

    consumer_timeout_ms: int = 20_000
    """After which silence a broker frees a partition; the broker allows no less than 20 s."""

    balance_period_ms: int = 500
    """How often the master shares out partitions to the groups it balances."""

    authenticate: bool = False
    """Whether the servers demand a user's name and signature of producers and consumers.

    The servers as published look whether there is a signature of these seconds, not whether it is right.
    """

    use_memory_store: bool = True
    """Whether a broker acknowledges from memory, as TubeMQ does by default."""

    audit: bool = False
    """Whether a broker counts messages for InLong's audit, for which there is no receiver here.

    That fails for a message without message time: the broker answers 500 although it has stored it.
    """

    tls: TlsStores | None = None
    """What the servers speak TLS with, on ports of their own; None: they have no such ports."""


AS_SHIPPED: Final = ServerSettings(max_segment_bytes=1 << 30, max_index_segment_bytes=22_020_096)
"""For measurements: near the end of an index file, each fetch brings half of what the one before brought."""


@dataclass(frozen=True, slots=True)
class MasterPorts:
    """Every port a master opens."""

    rpc: int
    web: int
    replication: int
    metrics: int
    tls: int


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """Every port a broker opens."""

    rpc: int
    web: int
    metrics: int
    tls: int


def master_ini(
    name: str, ports: MasterPorts, settings: ServerSettings, directory: Path, first: MasterPorts | None = None
) -> str:
    """Write the configuration of a master that keeps its state in Berkeley DB.

    It is a lone one, or joins the group that the first one has begun.
    """
    return _render(
        {
            "master": {
                "hostName": MASTER_HOST,
                "port": ports.rpc,
                "webPort": ports.web,
                "webResourcePath": "resources",
                "confModAuthToken": ADMIN_TOKEN,
                "consumerBalancePeriodMs": settings.balance_period_ms,
                "startVisitTokenCheck": str(settings.authenticate).lower(),
                "startProduceAuthenticate": str(settings.authenticate).lower(),
                "startConsumeAuthenticate": str(settings.authenticate).lower(),
            },
            "meta_bdb": {
                "repGroupName": "tubemqMasterGroup",
                "repNodeName": name,
                "repNodePort": ports.replication,
                "repHelperHost": f"{MASTER_HOST}:{(first or ports).replication}",
                "metaDataPath": directory / "meta",
                "metaLocalSyncPolicy": 1,
                "metaReplicaSyncPolicy": 3,
                "repReplicaAckPolicy": 1,
                "repStatusCheckTimeoutMs": 2000,
            },
            # The port is opened even when its use is switched off.
            "prometheus": {"promEnable": "false", "promHttpPort": ports.metrics},
            **_tls(settings.tls, ports.tls),
        }
    )


def broker_host(broker_id: int) -> str:
    """Return a broker's own loopback address.

    A master refuses two brokers on one address. Linux answers on all of 127.0.0.0/8 unasked.
    """
    return f"127.0.0.{broker_id}"


def broker_ini(
    broker_id: int,
    ports: BrokerPorts,
    settings: ServerSettings,
    directory: Path,
    master_address: str,
) -> str:
    """Write the configuration of one broker."""
    return _render(
        {
            "broker": {
                "brokerId": broker_id,
                "hostName": broker_host(broker_id),
                "port": ports.rpc,
                "webPort": ports.web,
                "masterAddressList": master_address,
                "primaryPath": data_directory(directory),
                "maxSegmentSize": settings.max_segment_bytes,
                "maxIndexSegmentSize": settings.max_index_segment_bytes,
                "transferSize": 524288,
                "consumerRegTimeoutMs": settings.consumer_timeout_ms,
                "heartbeatPeriodMs": settings.heartbeat_ms,
                "offsetStgCacheFlushMs": 1000,
                "logFlushMemDurMs": 10000,
                "logFlushDiskDurMs": 10000,
                "logClearupDurationMs": 60000,
                "enableMemStore": str(settings.use_memory_store).lower(),
            },
            "audit": {
                "auditEnable": str(settings.audit).lower(),
                "auditCacheFilePath": directory / "audit",
            },
            "prometheus": {"promEnable": "false", "promHttpPort": ports.metrics},
            **_tls(settings.tls, ports.tls),
        }
    )


def data_directory(directory: Path) -> Path:
    """Return where a broker with this directory keeps its messages."""
    return directory / "data"


def _tls(stores: TlsStores | None, port: int) -> Mapping[str, Mapping[str, object]]:
    """Return the section for mutual TLS: with one-way TLS, a server ends at its first connection."""
    if stores is None:
        return {}
    return {
        "tlsSetting": {
            "tlsEnable": "true",
            "tlsPort": port,
            "tlsKeyStorePath": stores.key_store,
            "tlsKeyStorePassword": stores.password,
            "tlsTwoWayAuthEnable": "true",
            "tlsTrustStorePath": stores.trust_store,
            "tlsTrustStorePassword": stores.password,
        }
    }


def _render(sections: Mapping[str, Mapping[str, object]]) -> str:
    blocks = (
        "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in values.items()), ""])
        for name, values in sections.items()
    )
    return "\n".join(blocks)
