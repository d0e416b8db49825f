"""Fetched messages for the tests of the source, without any broker."""

import numpy as np

from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.fetch_columns import FetchedBatch, MessageColumns

PARTITION = TopicPartition("demo", 3, 10_001)
GAP = b"--"


def columns(messages, ordinals=None):
    """Return messages, given as (value, text of the attributes or None), as a decoder returns them.

    Their ids are 1000, 1001 and so on; other bytes lie between their parts.
    """
    data, places = b"", []
    for value, text in messages:
        attributes = b"" if text is None else text.encode()
        start = len(data) + len(GAP)
        middle = start + len(attributes)
        data += GAP + attributes + value
        places.append((start, middle, middle, middle + len(value)))
    starts = np.array(places, dtype=np.int64).reshape(-1, 4)
    count = len(messages)
    return MessageColumns(
        data=data + GAP,
        ordinals=np.arange(count, dtype=np.int64) if ordinals is None else np.array(ordinals, dtype=np.int64),
        message_ids=np.arange(1000, 1000 + count, dtype=np.int64),
        value_start=starts[:, 2],
        value_end=starts[:, 3],
        attribute_start=starts[:, 0],
        attribute_end=starts[:, 1],
        has_attributes=np.array([text is not None for _, text in messages], dtype=bool),
    )


def fetched(messages, start=0, ordinals=None, *, dense=True):
    """Return messages as the range reader hands them out."""
    batch = columns(messages, ordinals)
    return FetchedBatch(PARTITION, start, start + 28 * len(batch), batch, dense)
