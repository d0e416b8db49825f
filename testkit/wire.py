"""The other halves of what the package writes or reads of the wire, for tests, fuzzers and benchmarks."""

from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.fetch_columns import Int64s, MessageColumns
from tubemq_spark.protocol.fetch_decoder import FetchHeader, parse_fetch
from tubemq_spark.protocol.packed_strings import (
    FailureInfo,
    format_partition,
    parse_packed,
    read_name,
    read_number,
    split,
)


def decode_fetch(body: bytes | memoryview) -> tuple[FetchHeader, MessageColumns, Int64s]:
    """Read the answer to a fetch: ``parse_fetch`` and ``EncodedMessages.decode`` in one."""
    header, messages = parse_fetch(body)
    return header, *messages.decode()


def encode_response(response: rpc.Response) -> bytes:
    """Return the stream of a successful answer."""
    return rpc.answer_head(response.method, len(response.body)) + response.body


def format_failure_info(info: FailureInfo) -> str:
    """Write ``errCode:brokerId:host:port#topic:partitionId``."""
    failed = info.failed
    partition = format_partition(failed.broker_id, failed.endpoint, failed.topic, failed.partition_id)
    return f"{info.code}:{partition}"


def parse_required_partition(text: str) -> dict[TopicPartition, int]:
    """Read ``brokerId:topic:partitionId=offset,...``: where a bound group starts; may be empty."""

    def read(text: str) -> dict[TopicPartition, int]:
        return dict(_start(item) for item in text.split(",")) if text else {}

    return parse_packed(text, "brokerId:topic:partitionId=offset,...", read)


def _start(item: str) -> tuple[TopicPartition, int]:
    place, offset = split(item, "=", 2, 2)
    broker_id, topic, partition_id = split(place, ":", 3, 3)
    partition = TopicPartition(read_name(topic), read_number(broker_id), read_number(partition_id))
    return partition, read_number(offset, (1 << 63) - 1)
