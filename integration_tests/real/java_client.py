"""TubeMQ's own Java client, of any of several versions, driven from Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from .client_jars import client_class_path
from .java_config import Login
from .java_consumers import (
    BalanceConsumer,
    Bound,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Subscription,
)
from .java_gateway import JavaClientError, Jvm, java_errors
from .java_inlong import JavaInLongMsgs
from .java_producer import JavaProducer, OutgoingMessage, SentMessage
from .pins import TUBEMQ_VERSION

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
