"""The broker of an embedded TubeMQ: its port, its periodic tasks, and sends.

Producers pipeline sends, so all sends of one read are stored with one write per store.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from tubemq_spark.embedded.broker.consume import ConsumerHandlers
from tubemq_spark.embedded.broker.state import BrokerState, StoreKey, error_text
from tubemq_spark.embedded.dispatch import (
    MAX_NAME_CHARACTERS,
    Dispatcher,
    RefusedError,
    RpcServer,
    required,
    trimmed,
    unreadable,
)
from tubemq_spark.embedded.log.records import NO_KEY, Appended, NewRecord
from tubemq_spark.embedded.scheduler import FailureLog, Scheduler
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, PARTITIONS_PER_STORE
from tubemq_spark.net.listener import Answer
from tubemq_spark.protocol import rpc
from tubemq_spark.protocol.constants import (
    ATTRIBUTE_ALLOWANCE_BYTES,
    OFFSET_HISTORY_TOPIC,
    Method,
    ServiceType,
)
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import checksum, java_hash
from tubemq_spark.protocol.pb.broker_pb2 import SendMessageRequestP2B, SendMessageResponseB2P

logger = logging.getLogger(__name__)

_NO_CHECKSUM: Final = -1
"""The producer leaves the checksum to the broker, as all known producers do."""
_LONGEST_KNOWN_TYPE: Final = 256
"""Longer types are not cached: they can have megabytes, and every message can have another one."""


def _key_code(message_type: str | bytes) -> int:
    """Return the index's code for a message's type; RemoteProtocolError: it is not UTF-8."""
    is_short = len(message_type) <= _LONGEST_KNOWN_TYPE
    return _known_key_code(message_type) if is_short else _new_key_code(message_type)


def _new_key_code(message_type: str | bytes) -> int:
    text = trimmed("msgType", message_type)
    return java_hash(text) if text else NO_KEY


_known_key_code = functools.lru_cache(maxsize=4096)(_new_key_code)


@dataclasses.dataclass(slots=True)
class _StoreBatch:
    """The messages of one read for one store, and the places of their requests in the read."""

    records: list[NewRecord] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)


class _Checks:
    """TubeMQ's checks of a message, in TubeMQ's order; what repeats within one read is checked once."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._check_tokens = state.settings.check_visit_tokens or state.settings.authenticate_producers
        self._clients: set[str] = set()
        self._partitions: dict[tuple[str, int], tuple[StoreKey, int]] = {}

    def record(self, message: SendMessageRequestP2B) -> tuple[StoreKey, NewRecord]:
        """Return a message as a record, and its store."""
        self._state.check_writes()
        if self._check_tokens:
            self._state.check_token(message.authInfo, producer=True)
        client_id = message.clientId
        if client_id not in self._clients:
            required("clientId", client_id, MAX_NAME_CHARACTERS)
            self._clients.add(client_id)
        partition_id = message.partitionId
        partition = message.topicName, partition_id
        place = self._partitions.get(partition)
        if place is None:
            place = self._partitions[partition] = self._partition(*partition)
        key, limit = place
        data = message.data
        if not 0 < len(data) <= limit:
            raise _wrong_length(len(data), limit)
        crc = checksum(data)
        claimed = message.checkSum
        if claimed not in (_NO_CHECKSUM, crc):
            claim = f"{claimed} of {key[0]} not equal to the data's checksum of {crc}"
            raise RefusedError(ErrCode.FORBIDDEN, f"Checksum msg data failure: {claim}")
        message_type = message.msgType
        key_code = _key_code(message_type) if message_type else NO_KEY
        return key, NewRecord(partition_id, data, crc, key_code, message.sentAddr, message.flag)

    def _partition(self, name: str, partition_id: int) -> tuple[StoreKey, int]:
        """Return the store of a partition, and the size limit of its topic's messages."""
        if trimmed("topicName", name) == OFFSET_HISTORY_TOPIC:
            text = f"topicName {OFFSET_HISTORY_TOPIC} does not allow producers to send data!"
            raise RefusedError(ErrCode.FORBIDDEN, text)
        topic, spec = self._state.open_partition(name, partition_id)
        key = (topic, partition_id // PARTITIONS_PER_STORE)
        return key, spec.max_message_bytes + ATTRIBUTE_ALLOWANCE_BYTES


class SendHandler:
    """Answers method 13 (BrokerServiceServer.sendMessageP2B)."""

    def __init__(self, state: BrokerState, dispatcher: Dispatcher) -> None:
        """Take what the broker's handlers share; the dispatcher knows the services of the port."""
        self._state = state
        self._dispatcher = dispatcher

    def serve(self, requests: Sequence[rpc.Request]) -> list[Answer]:
        """Store the messages of the requests of one read and return the answers; it never raises."""
        answers: list[Answer] = [b""] * len(requests)
        windows: dict[StoreKey, _StoreBatch] = {}
        checks = _Checks(self._state)
        # All have the same method, so their service alone decides whether they belong here.
        by_service = {request.service: request for request in requests}
        faults = {service: self._dispatcher.misdirected(request) for service, request in by_service.items()}
        for place, request in enumerate(requests):
            if (fault := faults[request.service]) is not None:
                answers[place] = fault
                continue
            try:
                key, record = checks.record(_parse(request.body))
            except RemoteProtocolError as error:
                answers[place] = unreadable(error)
            except RefusedError as refused:
                answers[place] = _failure(refused.code, refused.text)
            else:
                window = windows.get(key) or windows.setdefault(key, _StoreBatch())
                window.records.append(record)
                window.places.append(place)
        for key, window in windows.items():
            for place, answer in zip(window.places, self._store(key, window.records), strict=True):
                answers[place] = answer
        return answers

    def _store(self, key: StoreKey, records: list[NewRecord]) -> list[bytes]:
        try:
            store = self._state.stores.open(*key)
            if store.full:
                text = f"Put message failed from {self._state.host}, server receive message overflow!"
                return [_failure(ErrCode.SERVER_RECEIVE_OVERFLOW, text)] * len(records)
            appended = store.append(records)
        except (OSError, KeyError, TubeMQError) as error:
            logger.info("%d messages for store %s-%d could not be stored: %r", len(records), *key, error)
            self._state.writes.count_error(error)
            text = f"Put message failed from {self._state.host} {error_text(error)}"
            return [_failure(ErrCode.INTERNAL_SERVER_ERROR, text)] * len(records)
        self._state.writes.count_success()
        return _successes(appended, len(records))


def _parse(body: bytes) -> SendMessageRequestP2B:
    """Do what ``rpc.parse_message`` does, but validate texts only where they are used."""
    message = SendMessageRequestP2B()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return rpc.parse_message(SendMessageRequestP2B, body)  # Raises an error that says what is wrong.
    return message if message.IsInitialized() else rpc.parse_message(SendMessageRequestP2B, body)


def _wrong_length(length: int, limit: int) -> RefusedError:
    if length:
        text = f"data length over max length, allowed max length is {limit}, data length is {length}"
    else:
        text = "data length is zero!"
    return RefusedError(ErrCode.BAD_REQUEST, text)


def _successes(appended: Appended, count: int) -> list[bytes]:
    """Return the answers to messages that were stored in sequence."""
    # One message object for all: creating one costs as much as filling and serialising it.
    answer = SendMessageResponseB2P(
        success=True, errCode=ErrCode.SUCCESS, requireAuth=False, appendTime=appended.time_ms
    )
    bodies = []
    for number in range(count):
        message_id = appended.message_id + number
        answer.errMsg = str(message_id)  # Old clients parse the id from the text.
        answer.messageId = message_id
        answer.appendOffset = appended.offset + number * INDEX_ENTRY_BYTES
        bodies.append(answer.SerializeToString())
    return bodies


def _failure(code: ErrCode, text: str) -> bytes:
    return SendMessageResponseB2P(success=False, errCode=code, errMsg=text).SerializeToString()


class Broker(RpcServer):
    """Serves one ``BrokerState``."""

    def __init__(self, state: BrokerState, host: str, port: int) -> None:
        """Open the port (0: any free one)."""
        self.state = state
        self._consumers = ConsumerHandlers(state)
        services = frozenset({ServiceType.BROKER_READ, ServiceType.BROKER_WRITE})
        # Sends are not in the table: they are handled many at a time.
        self._dispatcher = Dispatcher(services, self._consumers.operations)
        self._sends = SendHandler(state, self._dispatcher)
        # Tasks that wait for the disk have a thread of their own, so that a slow disk does not keep leases
        # from expiring on time.
        self._disk = Scheduler()
        super().__init__("broker", host, port, state.settings.tls)
        self._start_tasks()

    def serve(self, requests: Sequence[rpc.Request]) -> Iterator[Answer]:
        """Answer the requests of one read in their order, each when it is asked for; it never raises."""
        for is_send, group in itertools.groupby(requests, key=_is_send):
            if is_send:
                yield from self._sends.serve(list(group))
            else:
                yield from map(self._dispatcher.answer, group)

    def close(self) -> None:
        """Refuse new requests, and close the port.

        The state stays open; the caller that opened it closes it.
        """
        self.state.stopping.set()
        self._disk.close()
        super().close()

    def _start_tasks(self) -> None:
        settings, state, consumers, disk = self.state.settings, self.state, self._consumers, self._disk
        save = FailureLog().wrap("Saving offsets", state.offsets.save)
        idle_check_ms = settings.group_expiry_check_ms
        self._scheduler.every(settings.scan_period_ms, consumers.expire_leases, "expiring leases")
        disk.every(settings.flush_check_ms, state.stores.flush_due, "flushing stores")
        disk.every(settings.offsets_save_ms, save, "saving offsets")
        disk.every(settings.retention_check_ms, state.stores.expire, "deleting old data")
        disk.every(idle_check_ms, consumers.forget_idle_groups, "forgetting idle groups")


def _is_send(request: rpc.Request) -> bool:
    return request.method == Method.SEND_MESSAGE
