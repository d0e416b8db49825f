"""TubeMQ's own Java client, of any of several versions, driven from Python."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from integration_tests.real.artifacts import TUBEMQ_VERSION, client_class_path
from integration_tests.real.java_consumers import (
    BalanceConsumer,
    Bound,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Subscription,
)
from integration_tests.real.jvm import JavaClientError, Jvm, Login, client_config, java_errors

__all__ = [
    "Bound",
    "JavaClient",
    "JavaClientError",
    "Login",
    "OutgoingMessage",
    "ReceivedMessage",
    "SentMessage",
    "Subscription",
]


class JavaClient:
    """A JVM with one version of the Java client; making one starts it.

    Use it as a context manager, or call `close()`.
    """

    def __init__(self, version: str = TUBEMQ_VERSION) -> None:
        self.version = version
        self._jvm = Jvm(client_class_path(version))

    def inlong_msgs(self) -> JavaInLongMsgs:
        """Return InLong's encoder and decoder, which only the newest version comes with."""
        return JavaInLongMsgs(self._jvm)

    @contextmanager
    def producer(self, master: str, *topics: str, login: Login | None = None) -> Iterator[JavaProducer]:
        """Give a producer that has announced the topics it sends to."""
        with java_errors("making a producer"):
            producer = JavaProducer(self._jvm, master, topics, login)
        with producer:
            yield producer

    @contextmanager
    def push_consumer(self, subscription: Subscription, bound: Bound | None = None) -> Iterator[PushConsumer]:
        """Give a consumer whose threads fetch by themselves."""
        with java_errors("making a push consumer"):
            consumer = PushConsumer(self._jvm, subscription, bound)
        with consumer:
            yield consumer

    @contextmanager
    def pull_consumer(self, subscription: Subscription, bound: Bound | None = None) -> Iterator[PullConsumer]:
        """Give a consumer that fetches when asked."""
        with java_errors("making a pull consumer"):
            consumer = PullConsumer(self._jvm, subscription, bound)
        with consumer:
            yield consumer

    @contextmanager
    def balance_consumer(self, subscription: Subscription) -> Iterator[BalanceConsumer]:
        """Give a consumer that has no partition until it connects to one."""
        with java_errors("making a client-balance consumer"):
            consumer = BalanceConsumer(self._jvm, subscription)
        with consumer:
            yield consumer

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
        """
        subscription = Subscription(master, topic, group, tuple(filters))
        with java_errors(f"reading {topic}"), self.balance_consumer(subscription) as consumer:
            consumer.connect_all(offset=0)
            return consumer.read_to_the_end(expected, timeout_s)

    def close(self) -> None:
        """End the JVM."""
        self._jvm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


RECEIVE_OVERFLOW: Final = 419
OVERFLOW_PAUSE_S: Final = 0.2
OVERFLOW_PATIENCE_S: Final = 30.0


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


class JavaProducer:
    """A Java `MessageProducer`; `JavaClient.producer` makes one."""

    def __init__(self, jvm: Jvm, master: str, topics: Sequence[str], login: Login | None = None) -> None:
        self._jvm = jvm
        # Finding a class costs a call into the JVM, and this one would be looked for with each message.
        self._new_message = jvm.tubemq.corebase.Message
        self._factory = jvm.tubemq.client.factory.TubeMultiSessionFactory(client_config(jvm, master, login))
        try:
            self._producer = self._factory.createProducer()
            for topic in topics:
                self._producer.publish(topic)
        except BaseException:
            self._factory.shutdown()
            raise

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
        """
        message = OutgoingMessage(body, attributes or {}, message_type, message_time)
        with java_errors(f"sending to {topic}"):
            return self._send(topic, message)

    def send_all(
        self, topic: str, messages: Iterable[OutgoingMessage], *, threads: int = 4
    ) -> list[SentMessage]:
        """Send many messages, several at a time, and return the answers in their order.

        With more than one thread a partition does not get its messages in the given order.
        """
        with java_errors(f"sending to {topic}"), ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda message: self._send(topic, message), messages))

    def send_async(self, topic: str, message: OutgoingMessage) -> Future[SentMessage]:
        """Send one message without waiting; the Java client's callback completes what is returned."""
        answer = _SentCallback(self._jvm, f"sending to {topic}")
        with java_errors(answer.what):
            self._producer.sendMessage(self._java_message(topic, message), answer)
        return answer.future

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
            # A result holds its message; the body need not come back.
            result = self._jvm.plain(
                self._producer.sendMessage(self._java_message(topic, message)), bodies=False
            )
            if result["errCode"] != RECEIVE_OVERFLOW or time.monotonic() > deadline:
                return _sent(result, f"sending to {topic}")
            time.sleep(OVERFLOW_PAUSE_S)

    def _java_message(self, topic: str, message: OutgoingMessage) -> Any:
        # Py4J gives a bytearray to Java as byte[]; bytes would be a text.
        java_message = self._new_message(topic, bytearray(message.body))
        for key, value in message.attributes.items():
            java_message.setAttrKeyVal(key, value)
        if message.message_type is not None or message.message_time is not None:
            java_message.putSystemHeader(message.message_type, message.message_time)
        return java_message


class _SentCallback:
    """A Java `MessageSentCallback` that completes a future."""

    def __init__(self, jvm: Jvm, what: str) -> None:
        self.what = what
        self.future: Future[SentMessage] = Future()
        self._jvm = jvm

    def onMessageSent(self, result: Any) -> None:  # noqa: N802
        try:
            self.future.set_result(_sent(self._jvm.plain(result, bodies=False), self.what))
        except Exception as error:  # noqa: BLE001  the future raises it
            self.future.set_exception(error)

    def onException(self, error: Any) -> None:  # noqa: N802
        self.future.set_exception(JavaClientError(self.what, -1, str(error)))

    class Java:
        """Tells Py4J what it is in Java."""

        implements = ("org.apache.inlong.tubemq.client.producer.MessageSentCallback",)


def _sent(result: Mapping[str, Any], what: str) -> SentMessage:
    if not result["success"]:
        raise JavaClientError(what, result["errCode"], result["errMsg"])
    return SentMessage(
        broker_id=result["partition"]["brokerId"],
        partition_id=result["partition"]["partitionId"],
        message_id=result["messageId"],
        append_offset=result["appendOffset"],
        append_time_ms=result["appendTime"],
    )


_CAPACITY: Final = 4096
"""Where the encoder says that it is full; it takes more all the same."""


class ParsedMsg(NamedTuple):
    """What the Java decoder makes of a body."""

    version: int
    created_ms: int
    """-1 where it does not say."""
    sections: dict[str, list[bytes]]
    """The messages by the text of their attributes."""


class JavaInLongMsgs:
    """`org.apache.inlong.common.msg.InLongMsg`; `JavaClient.inlong_msgs` makes one."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._class = jvm.view.org.apache.inlong.common.msg.InLongMsg

    def build(
        self, version: int, messages: Iterable[tuple[str, bytes]], created_ms: int, *, compress: bool
    ) -> bytes:
        """Encode messages, each with its attributes; the encoder knows the versions 1 to 3."""
        encoder = self._class.newInLongMsg(_CAPACITY, compress, version)
        for attributes, body in messages:
            # Py4J gives a bytearray to Java as byte[]; bytes would be a text.
            encoder.addMsg(attributes, bytearray(body))
        return bytes(encoder.buildArray(created_ms))

    def build_binary(self, message: bytes, *, compress: bool) -> bytes:
        """Encode a binary message as version 4."""
        encoder = self._class.newInLongMsg(_CAPACITY, compress, 4)
        assert encoder.addMsg(bytearray(message))
        return bytes(encoder.buildArray())

    def parse(self, body: bytes) -> ParsedMsg | None:
        """Decode a body; None where the decoder finds no version."""
        parsed = self._class.parseFrom(bytearray(body))
        if parsed is None:
            return None
        sections = {text: self._messages(parsed, text) for text in list(parsed.getAttrs())}
        return ParsedMsg(parsed.getVersion(), parsed.getCreatetime(), sections)

    def _messages(self, parsed: Any, attributes: str) -> list[bytes]:
        to_list = self._jvm.view.com.google.common.collect.Lists.newArrayList
        return [base64.b64decode(text) for text in self._jvm.plain(to_list(parsed.getIterator(attributes)))]
