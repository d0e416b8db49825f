"""A batch sender for tests that look at single messages."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.client.producer.broker_pipeline import BrokerPipeline
from tubemq_spark.net.connections import Connections
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, OnRefused, SendBatch


def single(
    topic: str,
    value: bytes,
    *,
    attributes: Mapping[str, str] | None = None,
    message_type: str | None = None,
    message_time: str | None = None,
    key: bytes | None = None,
    partition: tuple[int, int] | None = None,
    number: int = 1,
) -> SendBatch:
    """Return a batch of one message."""
    only = np.zeros(1, np.int64)
    return SendBatch(
        Coded((topic,), only),
        BytesColumn.of([value]),
        Coded((MessageHeader(attributes, message_type, message_time),), only),
        None if key is None else BytesColumn.of([key]),
        None if partition is None else Coded((partition,), only),
        first_row=number,
    )


class MessageSender(BatchSender):
    """Sends batches of one message, too."""

    def __init__(self, config: ClientConfig, connections: Connections, name: str = "") -> None:
        pipeline = BrokerPipeline(
            config, connections, name, detailed=False, run_user_code=lambda call: call()
        )
        super().__init__(pipeline)
        self._accepted = 0

    def send(self, topic: str, value: bytes, **fields: Any) -> None:  # noqa: ANN401 (those of single)
        """Send one message."""
        self.send_batch(single(topic, value, **fields, number=self._accepted + 1))

    def send_batch(self, batch: SendBatch, on_refused: OnRefused | None = None) -> None:
        """Send messages, and count them."""
        super().send_batch(batch, on_refused)
        self._accepted += len(batch)
