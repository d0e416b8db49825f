"""Which protobuf messages ask and answer each method (TubeMQ's PbEnDecoder)."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import broker_pb2, master_pb2


class MessagePair(NamedTuple):
    """The types of a method's messages."""

    request: type[Message]
    response: type[Message]


MESSAGES: Final[Mapping[Method, MessagePair]] = {
    Method.PRODUCER_REGISTER: MessagePair(master_pb2.RegisterRequestP2M, master_pb2.RegisterResponseM2P),
    Method.PRODUCER_HEARTBEAT: MessagePair(master_pb2.HeartRequestP2M, master_pb2.HeartResponseM2P),
    Method.PRODUCER_CLOSE: MessagePair(master_pb2.CloseRequestP2M, master_pb2.CloseResponseM2P),
    Method.CONSUMER_REGISTER: MessagePair(master_pb2.RegisterRequestC2M, master_pb2.RegisterResponseM2C),
    Method.CONSUMER_HEARTBEAT: MessagePair(master_pb2.HeartRequestC2M, master_pb2.HeartResponseM2C),
    Method.CONSUMER_CLOSE: MessagePair(master_pb2.CloseRequestC2M, master_pb2.CloseResponseM2C),
    Method.BROKER_REGISTER: MessagePair(master_pb2.RegisterRequestB2M, master_pb2.RegisterResponseM2B),
    Method.BROKER_HEARTBEAT: MessagePair(master_pb2.HeartRequestB2M, master_pb2.HeartResponseM2B),
    Method.BROKER_CLOSE: MessagePair(master_pb2.CloseRequestB2M, master_pb2.CloseResponseM2B),
    Method.SEND_MESSAGE: MessagePair(broker_pb2.SendMessageRequestP2B, broker_pb2.SendMessageResponseB2P),
    Method.PARTITION_REGISTER: MessagePair(broker_pb2.RegisterRequestC2B, broker_pb2.RegisterResponseB2C),
    Method.PARTITION_HEARTBEAT: MessagePair(broker_pb2.HeartBeatRequestC2B, broker_pb2.HeartBeatResponseB2C),
    Method.GET_MESSAGE: MessagePair(broker_pb2.GetMessageRequestC2B, broker_pb2.GetMessageResponseB2C),
    Method.COMMIT_OFFSET: MessagePair(broker_pb2.CommitOffsetRequestC2B, broker_pb2.CommitOffsetResponseB2C),
    Method.BALANCE_REGISTER: MessagePair(master_pb2.RegisterRequestC2MV2, master_pb2.RegisterResponseM2CV2),
    Method.BALANCE_HEARTBEAT: MessagePair(master_pb2.HeartRequestC2MV2, master_pb2.HeartResponseM2CV2),
    Method.BALANCE_PARTITION_META: MessagePair(
        master_pb2.GetPartMetaRequestC2M, master_pb2.GetPartMetaResponseM2C
    ),
}
"""All methods that travel; every response has ``errCode`` and ``errMsg``."""
