"""The three Java consumers: push, pull, and the one whose application shares out the partitions.

All begin at the earliest message of a partition that their group has not read from yet.
"""

from __future__ import annotations

import base64
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Self

from integration_tests.real.jvm import NO_DATA_WAIT_MS, Jvm, Login, check, consumer_config

OK: Final = 200
NOT_FOUND: Final = 404
NONE_READY: Final = frozenset({405, 406, 407, 408})
"""Said by the client itself while it has no partition, or none that is free."""
QUIET_S: Final = 10 * NO_DATA_WAIT_MS / 1000
"""In this time a push consumer asks each of its partitions a few times."""


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


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a consumer reads, and as whom."""

    master: str
    topic: str
    group: str
    filters: tuple[str, ...] = ()
    """Only messages of these types, or all."""

    login: Login | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a group begins to read, which its members say together."""

    session: str
    members: int
    offsets: Mapping[str, int]
    """Where the partitions begin that this member names, by `broker:topic:partition`."""

    take_larger: bool = True
    """Which of several members' offsets counts for one partition."""


class JavaConsumer(ABC):
    """A consumer of one topic; `JavaClient` makes it."""

    tells_exhausted = True
    """Whether `exhausted` is kept: a push consumer does not show which of its fetches had no message."""

    def __init__(self, jvm: Jvm, subscription: Subscription) -> None:
        self.exhausted: set[str] = set()
        """Keys of partitions that have said they have no message; `read_to_the_end` and `drain` empty it."""
        self._jvm = jvm
        self._subscription = subscription
        self._config = consumer_config(jvm, subscription.master, subscription.group, subscription.login)
        self._factory = jvm.tubemq.client.factory.TubeMultiSessionFactory(self._config)
        self._closed = False
        try:
            self._consumer = self._make()
            self._start()
        except BaseException:
            self._abandon()
            raise

    @abstractmethod
    def take(self) -> list[ReceivedMessage]:
        """Return messages that have come since the last call; they count as consumed."""

    @property
    def partitions(self) -> set[str]:
        """The partitions it holds, as `broker:topic:partition`."""
        return set(self._consumer.getCurConsumedPartitions().keySet())

    def close(self) -> None:
        """Give back the partitions and leave the group."""
        if not self._closed:
            self._closed = True
            self._consumer.shutdown()
            self._factory.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _abandon(self) -> None:
        """Clean up when the consumer could not join."""
        self._factory.shutdown()

    @abstractmethod
    def _make(self) -> Any:
        """Return the Java consumer."""

    @abstractmethod
    def _start(self) -> None:
        """Subscribe, and join the group."""


class _GroupMember(JavaConsumer):
    """A member of a group among whose members the master shares out the partitions."""

    def __init__(self, jvm: Jvm, subscription: Subscription, bound: Bound | None = None) -> None:
        self._bound = bound
        super().__init__(jvm, subscription)

    def _join(self) -> None:
        if self._bound is None:
            self._consumer.completeSubscribe()
        else:
            self._consumer.completeSubscribe(
                self._bound.session,
                self._bound.members,
                self._bound.take_larger,
                self._jvm.longs(self._bound.offsets),
            )


class PullConsumer(_GroupMember):
    """A Java `PullMessageConsumer`."""

    def take(self) -> list[ReceivedMessage]:
        """Fetch from whichever partition is next, and confirm."""
        fetched = self._consumer.getMessage()
        if not fetched.isSuccess():
            if fetched.getErrCode() == NOT_FOUND:
                self.exhausted.add(fetched.getPartitionKey())
            elif fetched.getErrCode() not in NONE_READY:
                check(fetched, "fetching")
            return []
        messages = _received(self._jvm.plain(fetched))
        check(self._consumer.confirmConsume(fetched.getConfirmContext(), True), "confirming")
        return messages

    def _make(self) -> Any:
        return self._factory.createPullConsumer(self._config)

    def _start(self) -> None:
        self._consumer.subscribe(self._subscription.topic, self._jvm.texts(self._subscription.filters))
        self._join()


class PushConsumer(_GroupMember):
    """A Java `PushMessageConsumer`: its own threads fetch and call a listener, which is this object."""

    tells_exhausted = False

    def take(self) -> list[ReceivedMessage]:
        """Return what the listener was given since the last call."""
        return self._listener.take()

    def _make(self) -> Any:
        self._listener = _Listener(self._jvm)
        return self._factory.createPushConsumer(self._config)

    def _start(self) -> None:
        filters = self._jvm.texts(self._subscription.filters)
        self._consumer.subscribe(self._subscription.topic, filters, self._listener)
        self._join()

    def _abandon(self) -> None:
        """Leave it as it is: a shutdown would wait for ever for threads that wait for partitions."""


class _Listener:
    """A Java `MessageListener` that keeps what it is given."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._lock = threading.Lock()
        self._messages: list[ReceivedMessage] = []

    def take(self) -> list[ReceivedMessage]:
        with self._lock:
            taken, self._messages = self._messages, []
        return taken

    def receiveMessages(self, peer: Any, messages: Any) -> None:  # noqa: N802
        came = _received({"peerInfo": self._jvm.plain(peer), "messageList": self._jvm.plain(messages)})
        with self._lock:
            self._messages += came

    def getExecutor(self) -> None:  # noqa: N802
        """Return None: the consumer's own threads call."""

    def stop(self) -> None:
        """Need nothing at the end."""

    class Java:
        """Tells Py4J what it is in Java."""

        implements = ("org.apache.inlong.tubemq.client.consumer.MessageListener",)


class BalanceConsumer(JavaConsumer):
    """A Java `ClientBalanceConsumer` that takes every partition of its topic."""

    @property
    def partitions(self) -> set[str]:
        """The partitions it holds, as `broker:topic:partition`."""
        return set(self._consumer.getCurRegisteredPartSet())

    def take(self) -> list[ReceivedMessage]:
        """Fetch from whichever partition is next, and confirm."""
        return _received(self.fetch())

    def connect_all(self, offset: int = -1) -> set[str]:
        """Take every partition from an offset on, or from the group's own, and return their keys."""
        keys = self.all_partitions()
        for key in keys:
            self.connect(key, offset)
        return keys

    def all_partitions(self) -> set[str]:
        """Return the keys of all partitions of the topic; before this the client can connect to none."""
        result = self._jvm.tubemq.client.common.QueryMetaResult()
        self._consumer.getPartitionMetaInfo(result)
        check(result, "asking for the partitions")
        return set(result.getPartStatusMap())

    def connect(self, key: str, offset: int = -1) -> None:
        """Take one partition from an offset on, or from the group's own."""
        result = self._jvm.tubemq.corebase.rv.ProcessResult()
        self._consumer.connect2Partition(key, offset, result)
        check(result, f"connecting to {key}")

    def disconnect(self, key: str) -> None:
        """Give one partition back."""
        result = self._jvm.tubemq.corebase.rv.ProcessResult()
        self._consumer.disconnectFromPartition(key, result)
        check(result, f"disconnecting from {key}")

    def fetch(self) -> dict[str, Any]:
        """Fetch from whichever partition is next, confirm, and return the whole result."""
        fetched = self._jvm.tubemq.client.common.ConsumeResult()
        if self._consumer.getMessage(fetched):
            confirmed = self._jvm.tubemq.client.common.ConfirmResult()
            self._consumer.confirmConsume(fetched.getConfirmContext(), True, confirmed)
            check(confirmed, "confirming")
        result: dict[str, Any] = self._jvm.plain(fetched)
        if result["errCode"] == NOT_FOUND:
            self.exhausted.add(result["peerInfo"]["partitionKey"])
        return result

    def read_to_the_end(self, expected: int, timeout_s: float) -> list[ReceivedMessage]:
        """Read until at least `expected` messages have come and every partition has said it has no more."""
        messages: list[ReceivedMessage] = []
        self.exhausted.clear()
        deadline = time.monotonic() + timeout_s
        while len(messages) < expected or not self.partitions <= self.exhausted:
            if time.monotonic() > deadline:
                topic = self._subscription.topic
                raise TimeoutError(
                    f"read {len(messages)} of {expected} messages of {topic} in {timeout_s:g} s"
                )
            messages += self.take()
        return messages

    def _make(self) -> Any:
        return self._factory.createBalanceConsumer(self._config)

    def _start(self) -> None:
        targets = self._jvm.view.java.util.HashMap()
        targets.put(self._subscription.topic, self._jvm.texts(self._subscription.filters))
        result = self._jvm.tubemq.corebase.rv.ProcessResult()
        self._consumer.start(targets, -1, 0, result)
        check(result, f"registering group {self._subscription.group}")


def collect(
    consumers: Sequence[JavaConsumer], expected: int, *, timeout_s: float = 60.0
) -> list[list[ReceivedMessage]]:
    """Take messages until all consumers together have as many as expected; return those of each."""
    taken: list[list[ReceivedMessage]] = [[] for _ in consumers]
    deadline = time.monotonic() + timeout_s
    while (count := sum(map(len, taken))) < expected:
        if time.monotonic() > deadline:
            raise TimeoutError(f"got {count} of {expected} messages in {timeout_s:g} s")
        for consumer, of_one in zip(consumers, taken, strict=True):
            of_one.extend(consumer.take())
        time.sleep(0.005)
    return taken


def drain(
    consumers: Sequence[JavaConsumer], partitions: AbstractSet[str], *, timeout_s: float = 20.0
) -> list[list[ReceivedMessage]]:
    """Take what still comes until each partition has said once that it has no more; return those of each.

    What a push consumer holds is waited for a moment instead.
    """
    taken: list[list[ReceivedMessage]] = [[] for _ in consumers]
    begun = time.monotonic()
    for consumer in consumers:
        consumer.exhausted.clear()
    quiet_s = 0.0 if all(consumer.tells_exhausted for consumer in consumers) else QUIET_S
    while (open_ones := partitions - _done(consumers)) or time.monotonic() < begun + quiet_s:
        if time.monotonic() > begun + timeout_s:
            raise TimeoutError(f"{sorted(open_ones)} did not say in {timeout_s:g} s that they have no more")
        for consumer, of_one in zip(consumers, taken, strict=True):
            of_one.extend(consumer.take())
        time.sleep(0.005)
    for consumer, of_one in zip(consumers, taken, strict=True):
        of_one.extend(consumer.take())
    return taken


def _done(consumers: Sequence[JavaConsumer]) -> set[str]:
    """Return the partitions that have no more, and those whose consumer does not tell."""
    return set().union(*(one.exhausted if one.tells_exhausted else one.partitions for one in consumers))


def _received(result: Mapping[str, Any]) -> list[ReceivedMessage]:
    items: Iterable[Mapping[str, Any]] = result["messageList"] or ()
    return [_message(result["peerInfo"]["partitionKey"], item) for item in items]


def _message(key: str, item: Mapping[str, Any]) -> ReceivedMessage:
    broker_id, topic, partition_id = key.split(":")
    return ReceivedMessage(
        topic=topic,
        broker_id=int(broker_id),
        partition_id=int(partition_id),
        message_id=item["indexId"],
        body=base64.b64decode(item["data"]),
        attribute=item["attribute"],
        message_type=item["msgType"],
        message_time=item["msgTime"],
    )
