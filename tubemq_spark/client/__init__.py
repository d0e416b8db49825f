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

_NAMES: Final = {
    "tubemq_spark.client.config": "BuiltInPartitioner ClientConfig CustomPartitioner",
    "tubemq_spark.client.consumer.assigned.consumer": "AssignedConsumer",
    "tubemq_spark.client.consumer.consumer": "GroupConsumer",
    "tubemq_spark.client.consumer.values": "Batch Confirmed PartitionStatus",
    "tubemq_spark.client.consumer_config": "BoundStart ConsumePosition ConsumerConfig Node Subscription",
    "tubemq_spark.client.metadata.admin": "BrokerAdmin MasterAdmin",
    "tubemq_spark.client.producer.futures": "SendFuture SendResult",
    "tubemq_spark.client.producer.producer": "Producer",
    "tubemq_spark.client.producer.statistics": "BrokerStatistics Latency ProducerStatistics",
    "tubemq_spark.client.reader.records": "Record",
    "tubemq_spark.client.registry": "OpenClient open_clients",
    "tubemq_spark.client.tubemq": "TubeMQClient",
    "tubemq_spark.model": "OffsetBounds TopicPartition",
    "tubemq_spark.net.tls": "TlsConfig",
    "tubemq_spark.protocol.send_batch": "MessageHeader SendBatch",
    "tubemq_spark.receipts": "Receipt",
    "tubemq_spark.source.inlong": "InLongMessage parse_inlong",
}
_MODULES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
