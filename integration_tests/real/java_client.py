"""The distribution's own Java client, driven from Python.

A gateway JVM holds the client; Py4J calls into it. One such call costs about 0.1 ms, so what
comes in bulk crosses in one piece: the JSON library of the distribution (Jackson) writes a
whole batch of messages, bodies in Base64, as one text.
"""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from .artifacts import distribution, py4j_jar
from .config_files import LOG4J2
from .processes import ProcessGroup, tail
from .waiting import wait_until

GATEWAY_CLASS: Final = "py4j.GatewayServer"
GATEWAY_START_TIMEOUT_S: Final = 30.0
HEAP_MB: Final = 512

# How long the Java client itself may block in one call before it tells that there is nothing.
FETCH_WAIT_MS: Final = 500
NO_DATA_WAIT_MS: Final = 50

OK: Final = 200
NOT_FOUND: Final = 404
RECEIVE_OVERFLOW: Final = 419
OVERFLOW_PAUSE_S: Final = 0.2
OVERFLOW_PATIENCE_S: Final = 30.0


class JavaClientError(Exception):
    """The Java client refused a call, or told of a failure."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what} failed with code {code}: {reason}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message as an application gives it to the Java producer."""

    body: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)
    message_type: str | None = None
    message_time: str | None = None
    """Twelve digits, `yyyyMMddHHmm`."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What the Java producer tells of a message that a broker took."""

    broker_id: int
    partition_id: int
    message_id: int
    append_offset: int
    append_time_ms: int


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message as the Java consumer hands it to an application."""

    topic: str
    broker_id: int
    partition_id: int
    message_id: int
    body: bytes
    attribute: str | None
    """All attributes as the one text the Java client shows: `key=value,key=value`."""

    message_type: str | None
    message_time: str | None

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes an application set, without the type and the time."""
        pairs = (item.partition("=") for item in (self.attribute or "").split(",") if item)
        return {key: value for key, _, value in pairs if not key.startswith("$msg")}


class JavaProducer:
    """A Java `MessageProducer`; `JavaClient.producer` makes one."""

    def __init__(self, jvm: Any, master: str, topics: Sequence[str]) -> None:
        self._new_message = jvm.org.apache.inlong.tubemq.corebase.Message
        client = jvm.org.apache.inlong.tubemq.client
        self._factory = client.factory.TubeMultiSessionFactory(client.config.TubeClientConfig(master))
        self._producer = self._factory.createProducer()
        self._result_json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        # A result holds its message; the body need not come back.
        byte_array = jvm.java.lang.Class.forName("[B")
        self._result_json.configOverride(byte_array).setIsIgnoredType(True)
        for topic in topics:
            self._producer.publish(topic)

    def send(
        self,
        topic: str,
        body: bytes,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
    ) -> SentMessage:
        """Send one message and wait for the broker's answer.

        While the broker says that its memory is full, the message is sent again.

        Raises:
            JavaClientError: the client or a broker refused the message.
        """
        message = OutgoingMessage(body, attributes or {}, message_type, message_time)
        with _java_errors(f"sending to {topic}"):
            return self._send(topic, message)

    def send_all(
        self, topic: str, messages: Iterable[OutgoingMessage], *, threads: int = 4
    ) -> list[SentMessage]:
        """Send many messages, several at a time, and return the answers in their order.

        With more than one thread a partition does not get its messages in the given order.
        """
        with _java_errors(f"sending to {topic}"), ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda message: self._send(topic, message), messages))

    def close(self) -> None:
        """Leave the master and the brokers."""
        self._producer.shutdown()
        self._factory.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, topic: str, message: OutgoingMessage) -> SentMessage:
        deadline = time.monotonic() + OVERFLOW_PATIENCE_S
        while True:
            result = self._send_once(topic, message)
            if result["success"]:
                return SentMessage(
                    broker_id=result["partition"]["brokerId"],
                    partition_id=result["partition"]["partitionId"],
                    message_id=result["messageId"],
                    append_offset=result["appendOffset"],
                    append_time_ms=result["appendTime"],
                )
            if result["errCode"] != RECEIVE_OVERFLOW or time.monotonic() > deadline:
                raise JavaClientError(f"sending to {topic}", result["errCode"], result["errMsg"])
            time.sleep(OVERFLOW_PAUSE_S)

    def _send_once(self, topic: str, message: OutgoingMessage) -> dict[str, Any]:
        # Py4J gives a bytearray to Java as byte[]; bytes would be a text.
        java_message = self._new_message(topic, bytearray(message.body))
        for key, value in message.attributes.items():
            java_message.setAttrKeyVal(key, value)
        if message.message_type is not None or message.message_time is not None:
            java_message.putSystemHeader(message.message_type, message.message_time)
        answer = self._producer.sendMessage(java_message)
        result: dict[str, Any] = json.loads(self._result_json.writeValueAsString(answer))
        return result


class _BalanceConsumer:
    """A Java `ClientBalanceConsumer` that holds all partitions of one topic."""

    def __init__(self, jvm: Any, master: str, topic: str, group: str, filters: Iterable[str]) -> None:
        self._tubemq = jvm.org.apache.inlong.tubemq
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        client = self._tubemq.client
        config = client.config.ConsumerConfig(master, group)
        config.setPullConsumeReadyWaitPeriodMs(FETCH_WAIT_MS)
        config.setMsgNotFoundWaitPeriodMs(NO_DATA_WAIT_MS)
        self._factory = client.factory.TubeMultiSessionFactory(config)
        self._consumer = self._factory.createBalanceConsumer(config)
        wanted = jvm.java.util.TreeSet()
        for text in filters:
            wanted.add(text)
        targets = jvm.java.util.HashMap()
        targets.put(topic, wanted)
        result = self._tubemq.corebase.rv.ProcessResult()
        self._consumer.start(targets, -1, 0, result)
        _check(result, f"registering group {group}")

    def connect_all(self) -> set[str]:
        """Take every partition from its earliest message on, and return their keys."""
        found = self._tubemq.client.common.QueryMetaResult()
        self._consumer.getPartitionMetaInfo(found)
        _check(found, "asking for the partitions")
        keys = set(found.getPartStatusMap())
        for key in keys:
            result = self._tubemq.corebase.rv.ProcessResult()
            self._consumer.connect2Partition(key, 0, result)
            _check(result, f"connecting to {key}")
        return keys

    def fetch(self) -> dict[str, Any]:
        """Fetch from whichever partition is next, confirm, and return the whole result."""
        fetched = self._tubemq.client.common.ConsumeResult()
        if self._consumer.getMessage(fetched):
            confirmed = self._tubemq.client.common.ConfirmResult()
            self._consumer.confirmConsume(fetched.getConfirmContext(), True, confirmed)
            _check(confirmed, "confirming")
        result: dict[str, Any] = json.loads(self._json.writeValueAsString(fetched))
        return result

    def close(self) -> None:
        self._consumer.shutdown()
        self._factory.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JavaClient:
    """A gateway JVM with the Java client; making one starts it.

    Use it as a context manager, or call `close()`.
    """

    def __init__(self) -> None:
        self._resources = ExitStack()
        directory = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tubemq-java-")))
        processes = self._resources.enter_context(ProcessGroup())
        try:
            port = _start_gateway(processes, directory)
        except BaseException:
            self.close()
            raise
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self._resources.callback(self._gateway.shutdown)

    @property
    def jvm(self) -> Any:
        """Py4J's view of the JVM, for tests that need more than this module offers."""
        return self._gateway.jvm

    @contextmanager
    def producer(self, master: str, *topics: str) -> Iterator[JavaProducer]:
        """Give a producer that has announced the topics it sends to."""
        with _java_errors("making a producer"):
            producer = JavaProducer(self.jvm, master, topics)
        with producer:
            yield producer

    def read_all(
        self,
        master: str,
        topic: str,
        group: str,
        *,
        expected: int = 0,
        filters: Iterable[str] = (),
        timeout_s: float = 60.0,
    ) -> list[ReceivedMessage]:
        """Read a topic from its earliest message to its end.

        Returns when every partition has said that it has no more, and when at least
        `expected` messages have come. Each partition's messages come in their order.

        Raises:
            TimeoutError: that did not happen in time.
            JavaClientError: the client told of a failure.
        """
        messages: list[ReceivedMessage] = []
        exhausted: set[str] = set()
        deadline = time.monotonic() + timeout_s
        with (
            _java_errors(f"reading {topic}"),
            _BalanceConsumer(self.jvm, master, topic, group, filters) as consumer,
        ):
            partitions = consumer.connect_all()
            while len(messages) < expected or exhausted != partitions:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"read {len(messages)} of {expected} messages of {topic} in {timeout_s:g} s"
                    )
                result = consumer.fetch()
                if result["errCode"] == OK:
                    messages += _received(result)
                elif result["errCode"] == NOT_FOUND:
                    exhausted.add(result["peerInfo"]["partitionKey"])
        return messages

    def close(self) -> None:
        """End the JVM."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_gateway(processes: ProcessGroup, directory: Path) -> int:
    """Start the gateway JVM and return the port it listens on."""
    logging = directory / "log4j2.xml"
    logging.write_text(LOG4J2, encoding="utf-8")
    log = directory / "gateway.log"
    command = [
        "java",
        f"-Xmx{HEAP_MB}m",
        f"-Dlog4j.configurationFile={logging}",
        "-cp",
        f"{py4j_jar()}:{distribution().client_class_path}",
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


def _received(result: Mapping[str, Any]) -> list[ReceivedMessage]:
    broker_id, topic, partition_id = result["peerInfo"]["partitionKey"].split(":")
    return [
        ReceivedMessage(
            topic=topic,
            broker_id=int(broker_id),
            partition_id=int(partition_id),
            message_id=item["indexId"],
            body=base64.b64decode(item["data"]),
            attribute=item["attribute"],
            message_type=item["msgType"],
            message_time=item["msgTime"],
        )
        for item in result["messageList"]
    ]


def _check(result: Any, what: str) -> None:
    """Raise what a Java `RetValue` tells, unless it tells success."""
    if not result.isSuccess():
        raise JavaClientError(what, result.getErrCode(), result.getErrMsg())


@contextmanager
def _java_errors(what: str) -> Iterator[None]:
    """Turn an exception of the Java client into ours."""
    try:
        yield
    except Py4JJavaError as error:
        raise JavaClientError(what, -1, str(error.java_exception)) from error
