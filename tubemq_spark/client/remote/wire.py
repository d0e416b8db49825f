"""What travels between a gateway and its clients of the values that stand above ``protocol``.

Those of ``protocol`` and ``model`` are converted by ``protocol.gateway``.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from tubemq_spark.client.config import (
    BuiltInPartitioner,
    ClientConfig,
    bad_partitioner,
    built_in_partitioner,
)
from tubemq_spark.client.consumer_config import ConsumePosition, ConsumerConfig
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.batches import MalformedMessageError

_NUMBERS: Final = (
    "rpc_timeout_ms",
    "connect_timeout_ms",
    "register_attempts",
    "register_retry_ms",
    "lease_wait_ms",
    "fetch_timeout_ms",
    "delivery_timeout_ms",
    "retry_ambiguous",
    "keep_order",
    "max_in_flight",
    "max_in_flight_bytes",
    "checksums",
)
"""Settings that have the same name and the same values on both sides."""
_OF_CONSUMERS: Final = ("confirm_timeout_ms", "rollback", "not_found_wait_ms", "rebalance_wait_ms")
"""The same, of consumers; those that are as usual are left to the gateway."""
_USUAL: Final = ConsumerConfig()
_SHORTEST_PERIOD_MS: Final = 1_000
"""How often a client may have heartbeats sent to masters and brokers."""


def settings_to_proto(config: ClientConfig) -> pb.SessionSettings:
    """Return the settings that a gateway uses for this client; how it is reached is not among them."""
    if not isinstance(config.partitioner, BuiltInPartitioner):
        raise bad_partitioner(config.partitioner)
    return pb.SessionSettings(
        group=config.group,
        username=config.username or "",
        password=config.password or "",
        reader_groups=config.reader_groups,
        message_types=config.message_types,
        partitioner=config.partitioner.value,
        consume_position=config.consumer.consume_position.value,
        heartbeat_period_ms=config.heartbeat_period_ms,
        **{name: getattr(config, name) for name in _NUMBERS},
        **{
            name: getattr(config.consumer, name)
            for name in _OF_CONSUMERS
            if getattr(config.consumer, name) != getattr(_USUAL, name)
        },
    )


def settings_from_proto(
    message: pb.SessionSettings, base: ClientConfig, most: Mapping[str, int] = MappingProxyType({})
) -> ClientConfig:
    """Return how the gateway deals with TubeMQ for a client: as ``base``, but for what the client asks for.

    ``most`` has the largest value that a client gets, by the name of a setting; a larger one becomes that.
    """

    def chosen(names: Iterable[str]) -> dict[str, Any]:
        values = {name: getattr(message, name) for name in names if message.HasField(name)}
        return {name: min(value, most.get(name, value)) for name, value in values.items()}

    changes = chosen(_NUMBERS)
    if message.username or message.password:
        changes |= {"username": message.username or None, "password": message.password or None}
    if message.partitioner:
        changes["partitioner"] = built_in_partitioner(message.partitioner)
    consumer = chosen(_OF_CONSUMERS)
    if message.consume_position:
        consumer["consume_position"] = ConsumePosition.of(message.consume_position)
    # What costs brokers and masters is not the client's choice alone.
    if "not_found_wait_ms" in consumer:
        consumer["not_found_wait_ms"] = max(consumer["not_found_wait_ms"], base.consumer.not_found_wait_ms)
    if message.HasField("heartbeat_period_ms"):
        changes["heartbeat_period_ms"] = max(message.heartbeat_period_ms, _SHORTEST_PERIOD_MS)
    changes["consumer"] = dataclasses.replace(base.consumer, **consumer)
    group = message.group or base.group
    return dataclasses.replace(
        base,
        group=group,
        reader_groups=tuple(message.reader_groups),
        message_types=tuple(message.message_types),
        **changes,
    ).validate()


def loss_to_proto(loss: LossRecord) -> pb.Loss:
    """Return a loss as a message; which partition it is of is known from the call."""
    return pb.Loss(kind=loss.loss.value, start=loss.start, end=loss.end, rows=loss.rows)


def loss_from_proto(message: pb.Loss, partition: TopicPartition) -> LossRecord:
    """Return the loss of a message."""
    try:
        kind = Loss(message.kind)
    except ValueError:
        raise MalformedMessageError(f"there is no loss of the kind {message.kind!r}") from None
    rows = message.rows if message.HasField("rows") else None
    return LossRecord(kind, partition, message.start, message.end, rows)
