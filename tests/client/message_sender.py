"""A batch sender for tests that look at single messages."""

import numpy as np

from tubemq_spark.client.producer.batch_sender import BatchSender
from tubemq_spark.protocol.send_batch import BytesColumn, Coded, MessageHeader, SendBatch


def single(
    topic, value, *, attributes=None, message_type=None, message_time=None, key=None, partition=None, number=1
):
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

    def send(self, topic, value, **fields):
        self.send_batch(single(topic, value, **fields, number=self._accepted + 1))
