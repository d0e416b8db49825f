"""A producer: messages go out ahead of their answers, and are stored at least once."""

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.outgoing import BrokerLinks, OutgoingMessage
from tubemq_spark.client.producer_session import ProducerSession
from tubemq_spark.client.routing import ProducerRouting, PublishedTopic
from tubemq_spark.client.send_log import SendLog
from tubemq_spark.client.send_window import SendWindow
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.net.pipeline import Pipelines
from tubemq_spark.net.pool import ChannelPool
from tubemq_spark.net.retry import Wait
from tubemq_spark.protocol.constants import ATTRIBUTE_ALLOWANCE_BYTES
from tubemq_spark.protocol.payload import Payload, encode_payload
from tubemq_spark.receipts import Receipt, describe_message, summarise

__all__ = ["Producer", "Receipt"]

logger = logging.getLogger(__name__)


class Producer:
    """Sends messages to any number of topics; for use by one thread.

    **At least once.** ``send`` accepts a message and returns; ``flush`` returns when brokers have stored
    all accepted messages. A message whose broker is full, stopped, unreachable or silent is sent again
    until ``delivery_timeout_ms`` have passed (without key or partition, to the next partition). When the
    answer to a message was lost, the message may be stored twice: TubeMQ cannot recognise a repetition.
    ``send`` waits as long for a master, and for a topic none of whose partitions can be published to now.

    **Order.** A partition holds this producer's messages in the order of sending, except that a message
    that had to be sent again may come after later ones.

    **First error wins.** When an accepted message cannot be stored, ``send`` and ``flush`` raise that
    ``ProduceError`` from then on, and nothing more is sent. A message that ``send`` refuses (too long, no
    such topic) was not accepted and does no harm to the others.

    **No thread.** Messages move only inside ``send`` and ``flush``; whoever sends seldom calls ``flush``
    after each message.

    As a context manager it flushes and closes; when the block fails, it closes at once.
    """

    def __init__(
        self, config: ClientConfig, pool: ChannelPool, wait: Wait = time.sleep, name: str = ""
    ) -> None:
        """Reach no server yet: the first ``send`` registers this producer at the master.

        Args:
            config: how to reach TubeMQ; bounds of the window, time-outs.
            pool: channels to the masters; the producer makes its own connections to brokers.
            wait: passes the seconds until the master is asked again for a topic that is not there yet.
            name: how this producer calls itself in errors and in the log; by default its client id.
        """
        self._session = ProducerSession(config, pool, wait)
        self._wait = wait
        self._log = SendLog(name or f"producer {self._session.client_id}")
        links = BrokerLinks()
        self._routing = ProducerRouting(config, pool, self._session, links, self._log, self._wait_working)
        pipelines = Pipelines(config.connect_timeout_ms)
        self._window = SendWindow(config, self._routing, links, pipelines, self._log)
        self._accepted = 0
        self._registered = False
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None:
                self.flush()
        finally:
            self.close()

    @property
    def retried(self) -> int:
        """How often a message was sent again; 0 means that nothing can be stored twice."""
        return self._window.retried

    @property
    def unacknowledged(self) -> int:
        """How many accepted messages no broker has acknowledged yet."""
        return self._window.unacknowledged

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        attributes: Mapping[str, str] | None = None,
        message_type: str | None = None,
        message_time: str | None = None,
        key: bytes | None = None,
        partition: tuple[int, int] | None = None,
    ) -> None:
        """Accept a message; wait while as many are under way as the window holds.

        Args:
            topic: where it goes.
            value: the body, at least one byte.
            attributes: the user's pairs.
            message_type: filter item by which consumers may select, without blanks around it.
            message_time: yyyyMMddHHmm.
            key: messages of equal keys go to the same partition, as long as the topic keeps its
                partitions; the key itself is not stored.
            partition: broker id and partition id; by default the key decides, and without a key the
                partitions take turns.

        Raises:
            ProduceError: an earlier message could not be stored; or this one is too long, or its topic
                or partition does not exist, or could not be published to in time.
            OptionError: the value is empty or an attribute cannot be written.
            TubeMQConnectionError: no master answered in time.
        """
        if self._closed or self._window.error is not None:
            self._refuse()
        number = self._accepted + 1
        if not isinstance(value, bytes):
            raise OptionError(
                "TUBEMQ_BAD_MESSAGE",
                what=f"its value is of type {type(value).__name__}, not bytes (message {number})",
            )
        try:
            payload = encode_payload(value, attributes, message_type, message_time)
        except OptionError as error:
            what = f"{error.parameters['what']} ({self._describe(value)})"
            raise OptionError("TUBEMQ_BAD_MESSAGE", what=what) from error
        if not self._registered:
            self._routing.open()
            self._registered = True
        target = self._routing.topic(topic)
        if len(payload.data) > target.max_message_bytes:
            _check_size(payload, value, target, self._describe(value))
        destination = self._routing.choose(target, key, partition)
        self._accepted = number
        self._window.submit(
            OutgoingMessage(
                destination, number, payload, message_type, message_time, key, partition is not None
            )
        )

    def flush(self) -> None:
        """Return when every accepted message is stored.

        Raises:
            ProduceError: one could not be stored.
        """
        if self._closed and self._window.unacknowledged:
            self._refuse()
        self._window.flush()

    def receipts(self) -> list[Receipt]:
        """Return what each partition has acknowledged so far; complete after ``flush``."""
        return self._routing.receipts()

    def close(self) -> None:
        """Close the connections and leave the master; messages not acknowledged are abandoned.

        Call ``flush`` first, or use the producer as a context manager, to have them stored.
        """
        if self._closed:
            return
        self._closed = True
        if self._window.unacknowledged and self._window.error is None:
            logger.warning(
                "producer %s closed with %d messages not acknowledged; some of them may be stored",
                self._session.client_id,
                self._window.unacknowledged,
            )
        self._window.close()
        self._session.close()
        if self._accepted:
            self._log.summary(summarise(self.receipts()))

    def _describe(self, value: bytes) -> str:
        return describe_message(self._accepted + 1, self._log.sender, value)

    def _wait_working(self, seconds: float) -> None:
        """Wait, but serve the messages that are under way."""
        self._window.work()
        self._wait(seconds)

    def _refuse(self) -> None:
        if self._window.error is not None:
            raise self._window.error
        raise ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=self._window.unacknowledged)


def _check_size(payload: Payload, value: bytes, topic: PublishedTopic, message: str) -> None:
    """Check what Java's producer checks, and what the broker checks.

    The first counts attributes in UTF-16 code units, the second everything in bytes with an allowance
    (SimpleMessageProducer.checkMessageAndStatus, BrokerServiceServer.sendMessageP2B).
    """
    limit = topic.max_message_bytes
    attributes = payload.data[4 : len(payload.data) - len(value)].decode() if payload.flag else ""
    units = len(attributes.encode("utf-16-le")) // 2
    for size, allowed in (
        (len(value) + units, limit),
        (len(payload.data), limit + ATTRIBUTE_ALLOWANCE_BYTES),
    ):
        if size > allowed:
            raise ProduceError(
                "TUBEMQ_MESSAGE_TOO_LONG", topic=topic.name, size=size, limit=allowed, message=message
            )
