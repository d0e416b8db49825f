"""TubeMQ in Python, without Spark: produce, read, look at topics, administer a cluster.

    from tubemq_spark.client import TubeMQClient

    with TubeMQClient.connect("10.1.2.3:8715,10.1.2.4:8715", group="my_job") as client:
        with client.producer() as producer:
            producer.send("clicks", b"home", key=b"anna")
        for record in client.read("clicks"):
            print(record.partition, record.offset, record.value)

The names below are public; the modules of this package are not. Each is loaded when it is first asked for, so
that importing one module does not cost the others.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tubemq_spark.client.config import BuiltInPartitioner, ClientConfig, CustomPartitioner
    from tubemq_spark.client.consumer.assigned.consumer import AssignedConsumer
    from tubemq_spark.client.consumer.consumer import GroupConsumer
    from tubemq_spark.client.consumer.values import Batch, Confirmed, PartitionStatus
    from tubemq_spark.client.consumer_config import (
        BoundStart,
        ConsumePosition,
        ConsumerConfig,
        Node,
        Subscription,
    )
    from tubemq_spark.client.metadata.admin import BrokerAdmin, MasterAdmin
    from tubemq_spark.client.producer.futures import SendFuture, SendResult
    from tubemq_spark.client.producer.producer import Producer
    from tubemq_spark.client.producer.statistics import BrokerStatistics, Latency, ProducerStatistics
    from tubemq_spark.client.reader.records import Record
    from tubemq_spark.client.registry import OpenClient, open_clients
    from tubemq_spark.client.tubemq import TubeMQClient
    from tubemq_spark.model import OffsetBounds, TopicPartition
    from tubemq_spark.net.tls import TlsConfig
    from tubemq_spark.protocol.send_batch import MessageHeader, SendBatch
    from tubemq_spark.receipts import Receipt
    from tubemq_spark.source.inlong import InLongMessage, parse_inlong

__all__ = [
    "AssignedConsumer",
    "Batch",
    "BoundStart",
    "BrokerAdmin",
    "BrokerStatistics",
    "BuiltInPartitioner",
    "ClientConfig",
    "Confirmed",
    "ConsumePosition",
    "ConsumerConfig",
    "CustomPartitioner",
    "GroupConsumer",
    "InLongMessage",
    "Latency",
    "MasterAdmin",
    "MessageHeader",
    "Node",
    "OffsetBounds",
    "OpenClient",
    "PartitionStatus",
    "Producer",
    "ProducerStatistics",
    "Receipt",
    "Record",
    "SendBatch",
    "SendFuture",
    "SendResult",
    "Subscription",
    "TlsConfig",
    "TopicPartition",
    "TubeMQClient",
    "open_clients",
    "parse_inlong",
]

_MODULES: Final = {
    "AssignedConsumer": "tubemq_spark.client.consumer.assigned.consumer",
    "Batch": "tubemq_spark.client.consumer.values",
    "BoundStart": "tubemq_spark.client.consumer_config",
    "BrokerAdmin": "tubemq_spark.client.metadata.admin",
    "BrokerStatistics": "tubemq_spark.client.producer.statistics",
    "BuiltInPartitioner": "tubemq_spark.client.config",
    "ClientConfig": "tubemq_spark.client.config",
    "Confirmed": "tubemq_spark.client.consumer.values",
    "ConsumePosition": "tubemq_spark.client.consumer_config",
    "ConsumerConfig": "tubemq_spark.client.consumer_config",
    "CustomPartitioner": "tubemq_spark.client.config",
    "GroupConsumer": "tubemq_spark.client.consumer.consumer",
    "Latency": "tubemq_spark.client.producer.statistics",
    "MasterAdmin": "tubemq_spark.client.metadata.admin",
    "Node": "tubemq_spark.client.consumer_config",
    "MessageHeader": "tubemq_spark.protocol.send_batch",
    "OffsetBounds": "tubemq_spark.model",
    "OpenClient": "tubemq_spark.client.registry",
    "PartitionStatus": "tubemq_spark.client.consumer.values",
    "Producer": "tubemq_spark.client.producer.producer",
    "ProducerStatistics": "tubemq_spark.client.producer.statistics",
    "Receipt": "tubemq_spark.receipts",
    "Record": "tubemq_spark.client.reader.records",
    "SendBatch": "tubemq_spark.protocol.send_batch",
    "SendFuture": "tubemq_spark.client.producer.futures",
    "SendResult": "tubemq_spark.client.producer.futures",
    "Subscription": "tubemq_spark.client.consumer_config",
    "TlsConfig": "tubemq_spark.net.tls",
    "TopicPartition": "tubemq_spark.model",
    "TubeMQClient": "tubemq_spark.client.tubemq",
    "open_clients": "tubemq_spark.client.registry",
    "InLongMessage": "tubemq_spark.source.inlong",
    "parse_inlong": "tubemq_spark.source.inlong",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
