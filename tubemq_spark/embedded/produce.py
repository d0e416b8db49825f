"""Sends: a producer pipelines them, so all that came with one read are stored with one write a store."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from tubemq_spark.embedded.dispatch import (
    MAX_NAME_CHARACTERS,
    Dispatcher,
    RefusedError,
    required,
    trimmed,
    unreadable,
)
from tubemq_spark.embedded.records import NO_KEY, NewRecord
from tubemq_spark.embedded.state import BrokerState
from tubemq_spark.embedded.store import Appended
from tubemq_spark.embedded.stores import StoreKey
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import PARTITIONS_A_STORE
from tubemq_spark.net.listener import Answer
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import ATTRIBUTE_ALLOWANCE_BYTES, OFFSET_HISTORY_TOPIC
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import checksum, java_hash
from tubemq_spark.protocol.pb.broker_pb2 import SendMessageRequestP2B, SendMessageResponseB2P

logger = logging.getLogger(__name__)

_NO_CHECKSUM: Final = -1
"""The producer leaves the checksum to the broker; all known ones do."""

_hash_of_type = functools.lru_cache(maxsize=4096)(java_hash)


@dataclasses.dataclass(slots=True)
class _Window:
    """The messages of one read for one store, and which requests they came with."""

    records: list[NewRecord] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)


class _Checks:
    """TubeMQ's checks of a message, in its order; what one read repeats is checked once."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._clients: set[str] = set()
        self._partitions: dict[tuple[str, int], tuple[StoreKey, int]] = {}

    def record(self, message: SendMessageRequestP2B) -> tuple[StoreKey, NewRecord]:
        """Return a message as a record, and the store it goes to.

        Raises:
            RefusedError: the message cannot be taken.
        """
        state = self._state
        state.check_running("Write StoreService")
        if state.settings.check_visit_tokens:
            state.check_token(message.authInfo)
        if message.clientId not in self._clients:
            required("clientId", message.clientId, MAX_NAME_CHARACTERS)
            self._clients.add(message.clientId)
        partition_id = message.partitionId
        place = self._partitions.get((message.topicName, partition_id))
        if place is None:
            place = self._partition(message.topicName, partition_id)
            self._partitions[message.topicName, partition_id] = place
        key, limit = place
        data = message.data
        if not 0 < len(data) <= limit:
            raise _wrong_length(len(data), limit)
        crc = checksum(data)
        if message.checkSum not in (_NO_CHECKSUM, crc):
            claim = f"{message.checkSum} of {key[0]} not equal to the data's checksum of {crc}"
            raise RefusedError(ErrCode.FORBIDDEN, f"Checksum msg data failure: {claim}")
        message_type = trimmed("msgType", message.msgType)
        key_code = _hash_of_type(message_type) if message_type else NO_KEY
        return key, NewRecord(partition_id, data, crc, key_code, message.sentAddr, message.flag)

    def _partition(self, name: str, partition_id: int) -> tuple[StoreKey, int]:
        """Return the store of a partition, and how long the messages of its topic may be."""
        if trimmed("topicName", name) == OFFSET_HISTORY_TOPIC:
            text = f"topicName {OFFSET_HISTORY_TOPIC} does not allow producers to send data!"
            raise RefusedError(ErrCode.FORBIDDEN, text)
        topic, spec = self._state.open_partition(name, partition_id)
        return (topic, partition_id // PARTITIONS_A_STORE), spec.max_message_bytes + ATTRIBUTE_ALLOWANCE_BYTES


class SendHandler:
    """Answers method 13 (BrokerServiceServer.sendMessageP2B)."""

    def __init__(self, state: BrokerState, dispatcher: Dispatcher) -> None:
        """Take what the broker's handlers share; the dispatcher knows which services there are."""
        self._state = state
        self._dispatcher = dispatcher

    def serve(self, requests: Sequence[rpc.Request]) -> list[Answer]:
        """Store the messages of some requests and return their answers; it never raises."""
        answers: list[Answer] = [b""] * len(requests)
        windows: dict[StoreKey, _Window] = {}
        checks = _Checks(self._state)
        for place, request in enumerate(requests):
            if (fault := self._dispatcher.misdirected(request)) is not None:
                answers[place] = fault
                continue
            try:
                key, record = checks.record(_parse(request.body))
            except RemoteProtocolError as error:
                answers[place] = unreadable(error)
            except RefusedError as refused:
                answers[place] = _failure(refused.code, refused.text)
            else:
                window = windows.get(key) or windows.setdefault(key, _Window())
                window.records.append(record)
                window.places.append(place)
        for key, window in windows.items():
            for place, answer in zip(window.places, self._store(key, window.records), strict=True):
                answers[place] = answer
        return answers

    def _store(self, key: StoreKey, records: list[NewRecord]) -> list[bytes]:
        try:
            appended = self._state.stores.open(*key).append(records)
        except (OSError, KeyError, TubeMQError) as error:
            logger.exception("%d messages for store %s-%d could not be stored", len(records), *key)
            text = f"Put message failed from {self._state.host} {error}"
            return [_failure(ErrCode.INTERNAL_SERVER_ERROR, text)] * len(records)
        return [_success(appended, number) for number in range(len(records))]


def _parse(body: bytes) -> SendMessageRequestP2B:
    """Do what ``rpc.parse_message`` does, but look at the texts only where they are used."""
    message = SendMessageRequestP2B()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return rpc.parse_message(SendMessageRequestP2B, body)  # It knows how to say what is wrong.
    return message if message.IsInitialized() else rpc.parse_message(SendMessageRequestP2B, body)


def _wrong_length(length: int, limit: int) -> RefusedError:
    if length:
        text = f"data length over max length, allowed max length is {limit}, data length is {length}"
    else:
        text = "data length is zero!"
    return RefusedError(ErrCode.BAD_REQUEST, text)


def _success(appended: Appended, number: int) -> bytes:
    message_id = appended.message_id + number
    return SendMessageResponseB2P(
        success=True,
        errCode=ErrCode.SUCCESS,
        errMsg=str(message_id),  # Old clients parse the id out of the text.
        requireAuth=False,
        messageId=message_id,
        appendTime=appended.time_ms,
        appendOffset=appended.offset + number * INDEX_ENTRY_BYTES,
    ).SerializeToString()


def _failure(code: ErrCode, text: str) -> bytes:
    return SendMessageResponseB2P(success=False, errCode=code, errMsg=text).SerializeToString()
