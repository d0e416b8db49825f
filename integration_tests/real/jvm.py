"""A JVM with a Java client on its class path, driven through Py4J.

One call into it costs about 0.1 ms, so what comes in bulk crosses in one piece: the JSON library
of the distribution (Jackson) writes a whole batch of messages, bodies in Base64, as one text.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import (  # type: ignore[import-untyped]
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
)
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors.exceptions import captured

from integration_tests.real.artifacts import py4j_jar
from integration_tests.real.processes import ProcessGroup, tail, wait_until
from integration_tests.real.servers import LOG4J2

GATEWAY_CLASS: Final = "py4j.GatewayServer"
GATEWAY_START_TIMEOUT_S: Final = 30.0
HEAP_MB: Final = 512


class JavaClientError(Exception):
    """The Java client refused a call, or told of a failure."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what} failed with code {code}: {reason}")
        self.code = code
        self.reason = reason


@contextmanager
def java_errors(what: str) -> Iterator[None]:
    """Turn an exception of the Java client into ours."""
    try:
        yield
    except Py4JJavaError as error:
        raise JavaClientError(what, -1, str(error.java_exception)) from error


def check(result: Any, what: str) -> None:
    """Raise what a Java `RetValue` tells, unless it tells success."""
    if not result.isSuccess():
        raise JavaClientError(what, result.getErrCode(), result.getErrMsg())


def leave_exceptions_to_py4j() -> None:
    """Keep PySpark from looking up exceptions of this JVM in Spark's.

    PySpark converts what any gateway of the process throws, and asks Spark's JVM about it: by a number under
    which that JVM may have another object, such as an exception of a query.
    """
    convert = captured.convert_exception

    def convert_own(thrown: Any) -> Any:
        spark = SparkContext._gateway
        if spark is None or thrown._gateway_client is spark._gateway_client:
            return convert(thrown)
        return captured.UnknownException(desc="", stackTrace="")

    captured.convert_exception = convert_own


leave_exceptions_to_py4j()


class Jvm:
    """A gateway JVM; making one starts it, `close()` ends it."""

    def __init__(self, class_path: str) -> None:
        self._resources = ExitStack()
        directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tubemq-java-")))
        processes = self._resources.enter_context(ProcessGroup())
        try:
            port = _start_gateway(processes, directory, class_path)
            self._gateway = self._connect(port)
        except BaseException:
            self.close()
            raise
        self._writer = self.view.com.fasterxml.jackson.databind.ObjectMapper()
        self._bodiless_writer = self.view.com.fasterxml.jackson.databind.ObjectMapper()
        byte_array = self.view.java.lang.Class.forName("[B")
        self._bodiless_writer.configOverride(byte_array).setIsIgnoredType(True)

    @property
    def view(self) -> Any:
        """Py4J's view of the JVM."""
        return self._gateway.jvm

    @property
    def tubemq(self) -> Any:
        """The package of the Java client."""
        return self._gateway.jvm.org.apache.inlong.tubemq

    def plain(self, value: Any, *, bodies: bool = True) -> Any:
        """Return a Java object's properties as Python values, in which bytes are Base64.

        Without `bodies` all that is bytes is left out.
        """
        writer = self._writer if bodies else self._bodiless_writer
        return json.loads(writer.writeValueAsString(value))

    def texts(self, values: Iterable[str]) -> Any:
        """Return a Java `TreeSet<String>`."""
        tree_set = self.view.java.util.TreeSet()
        for value in values:
            tree_set.add(value)
        return tree_set

    def longs(self, values: Mapping[str, int]) -> Any:
        """Return a Java `HashMap<String, Long>`; Py4J itself would make small numbers an `Integer`."""
        named = self.view.java.lang.Class.forName
        map_type = self._writer.getTypeFactory().constructMapType(
            named("java.util.HashMap"), named("java.lang.String"), named("java.lang.Long")
        )
        return self._writer.readValue(json.dumps(dict(values)), map_type)

    def close(self) -> None:
        """End the JVM."""
        self._resources.close()

    def _connect(self, port: int) -> JavaGateway:
        """Join the JVM, and let it call back on a free port."""
        gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port),
            callback_server_parameters=CallbackServerParameters(
                port=0, daemonize=True, daemonize_connections=True
            ),
        )
        self._resources.callback(gateway.shutdown)
        server = gateway.java_gateway_server
        server.resetCallbackClient(
            server.getCallbackClient().getAddress(), gateway.get_callback_server().get_listening_port()
        )
        return gateway


def _start_gateway(processes: ProcessGroup, directory: Path, class_path: str) -> int:
    """Start the gateway JVM and return the port it listens on."""
    logging = directory / "log4j2.xml"
    logging.write_text(LOG4J2, encoding="utf-8")
    log = directory / "gateway.log"
    command = [
        "java",
        f"-Xmx{HEAP_MB}m",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog4j.configurationFile={logging}",
        "-cp",
        f"{py4j_jar()}:{class_path}",
        GATEWAY_CLASS,
        "0",
    ]
    processes.spawn(command, cwd=directory, log=log)
    try:
        # The first thing it prints is its port.
        wait_until(
            lambda: "\n" in log.read_text(),
            timeout_s=GATEWAY_START_TIMEOUT_S,
            what="the gateway JVM to name its port",
        )
        return int(log.read_text().split("\n", 1)[0])
    except (TimeoutError, ValueError) as error:
        error.add_note(tail(log))
        raise


HEARTBEAT_MS: Final = 300
"""How often a consumer asks its master; what a master that balances tells it travels with the answers."""

READY_WAIT_MS: Final = 100
"""How long one call for messages may wait for a partition that is free."""

NO_DATA_WAIT_MS: Final = 50
"""How long a partition rests that had no messages."""

REGISTER_PAUSE_MS: Final = 300
"""How long a consumer waits before it asks a master again that it did not reach."""

REGISTER_ATTEMPTS: Final = 2
"""How often a client asks a master to take it; the producer waits a second after each refusal."""

SHUTDOWN_WAIT_MS: Final = 2_000
"""How long a consumer that leaves waits for a rebalance under way."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user's name and password."""

    user: str
    password: str = field(repr=False)


def client_config(jvm: Jvm, master: str, login: Login | None) -> Any:
    """Return a Java `TubeClientConfig`."""
    return _common(jvm.tubemq.client.config.TubeClientConfig(master), login)


def consumer_config(jvm: Jvm, master: str, group: str, login: Login | None) -> Any:
    """Return a Java `ConsumerConfig` of a consumer that begins at the earliest message."""
    config = _common(jvm.tubemq.client.config.ConsumerConfig(master, group), login)
    config.setConsumePosition(jvm.tubemq.client.consumer.ConsumePosition.CONSUMER_FROM_FIRST_OFFSET)
    config.setHeartbeatPeriodMs(HEARTBEAT_MS)
    config.setPullConsumeReadyWaitPeriodMs(READY_WAIT_MS)
    config.setMsgNotFoundWaitPeriodMs(NO_DATA_WAIT_MS)
    config.setShutDownRebalanceWaitPeriodMs(SHUTDOWN_WAIT_MS)
    return config


def _common(config: Any, login: Login | None) -> Any:
    if login is not None:
        config.setAuthenticInfo(True, login.user, login.password)
    config.setMaxRegisterRetryTimes(REGISTER_ATTEMPTS)
    config.setRegFailWaitPeriodMs(REGISTER_PAUSE_MS)
    return config
