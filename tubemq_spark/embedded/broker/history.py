"""Snapshots of offsets in TubeMQ's own topic ``__offset_history__`` (OffsetRecordService).

Periodically the broker writes one message per group, with the group's offsets in all its partitions as JSON.
Consumers can read the topic like any other; only the broker writes to it.
"""

import datetime
import json
import logging
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from tubemq_spark.embedded.broker.leases import GrantedLease
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.clock import wall_ms
from tubemq_spark.embedded.log.reading import ReadLimits
from tubemq_spark.embedded.log.records import NewRecord
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.errors import TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC
from tubemq_spark.protocol.payload import (
    FLAG_ATTRIBUTES,
    GROUP_NAME_KEY,
    MSG_TIME_KEY,
    MSG_TYPE_KEY,
    checksum,
    java_hash,
    sent_address,
)

logger = logging.getLogger(__name__)

_PARTITIONS: Final = 10
_STORE: Final = 0
_VERSION: Final = 3
_ATTRIBUTE_LENGTH: Final = struct.Struct(">i")
_MINUTE_FORMAT: Final = "%Y%m%d%H%M"


class Snapshot(NamedTuple):
    """The offsets of a group in all its partitions at one time."""

    group: str
    time_ms: int
    content: dict[str, Any]
    """The JSON of the message (OffsetHistoryInfo.buildRecordInfo)."""

    @property
    def minute(self) -> str:
        """When it was written, as ``yyyyMMddHHmm`` in the server's time zone."""
        return _minute(self.time_ms)

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the committed offsets by topic and partition id."""
        return {
            (topic["topic"], part["partId"]): part["iCfm"]
            for topic in self.content["records"]
            for store in topic["offsets"]
            for part in store["parts"]
        }


class OffsetHistory:
    """Writes and finds snapshots."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state

    def write(self) -> None:
        """Write a snapshot of every group that has offsets; a failure is only logged."""
        if self._state.writes.stopped:
            return
        now_ms = wall_ms()
        try:
            records = [self._record(group, seats, now_ms) for group, seats in self._seats().items()]
            if records:
                self._store().append(records)
        except (OSError, TubeMQError) as error:
            self._state.writes.count_error(error)
            logger.exception("the offsets of the groups could not be written to the history")

    def find(self, group: str, since_ms: int, max_reads: int) -> Iterator[list[Snapshot]]:
        """Yield a group's snapshots since a time, oldest first.

        Each list is the result of one read, and may contain snapshots of groups whose names have the same
        hash.

        Raises:
            OSError: the files could not be read.
        """
        store = self._store()
        offset = store.first_since(since_ms)
        code = java_hash(group)
        for _ in range(max_reads):
            settings = self._state.settings
            limits = ReadLimits(
                store.bounds.latest, settings.transfer_bytes, settings.max_entries, frozenset({code})
            )
            batch = store.read(_partition(code), offset, limits)
            if batch is None:
                return
            found = [_snapshot(bytes(payload)) for payload in batch.records.payloads]
            if found:
                yield found
            offset = batch.next_offset

    def _store(self) -> Store:
        return self._state.stores.open(OFFSET_HISTORY_TOPIC, _STORE)

    def _seats(self) -> dict[str, list[Seat]]:
        """Return the seats that have an offset or a lease, by group."""
        groups: dict[str, list[Seat]] = {}
        for seat in sorted({*self._state.offsets.all(), *self._state.leases.all()}):
            groups.setdefault(seat.group, []).append(seat)
        return groups

    def _record(self, group: str, seats: list[Seat], now_ms: int) -> NewRecord:
        code = java_hash(group)
        attributes = (
            f"{MSG_TYPE_KEY}={code},{MSG_TIME_KEY}={_minute(now_ms)},{GROUP_NAME_KEY}={group}".encode()
        )
        content = json.dumps(self._content(group, seats, now_ms), separators=(",", ":"), ensure_ascii=False)
        payload = _ATTRIBUTE_LENGTH.pack(len(attributes)) + attributes + content.encode()
        address = sent_address(self._state.host)
        return NewRecord(_partition(code), payload, checksum(payload), code, address, FLAG_ATTRIBUTES)

    def _content(self, group: str, seats: list[Seat], now_ms: int) -> dict[str, Any]:
        leases = {seat: lease for seat in seats if (lease := self._state.leases.find(seat)) is not None}
        clients = {lease.client_id: lease for lease in leases.values()}
        numbers = {client_id: number for number, client_id in enumerate(clients)}
        topics: dict[str, dict[int, list[Seat]]] = {}
        for seat in seats:
            stores = topics.setdefault(seat.topic, {})
            stores.setdefault(seat.partition_id // PARTITIONS_PER_STORE, []).append(seat)
        return {
            "dt": now_ms,
            "bId": self._state.broker_id,
            "ver": _VERSION,
            "group": group,
            "on": int(bool(leases)),
            "flt": int(any(lease.key_codes for lease in leases.values())),
            "clients": [
                {"recId": number, "cltId": client_id, "lstTm": clients[client_id].heard_at_ms}
                for client_id, number in numbers.items()
            ],
            "records": [
                {
                    "topic": topic,
                    "offsets": [
                        self._store_content(topic, number, held, leases, numbers)
                        for number, held in stores.items()
                    ],
                }
                for topic, stores in topics.items()
            ],
        }

    def _store_content(
        self,
        topic: str,
        number: int,
        seats: list[Seat],
        leases: Mapping[Seat, GrantedLease],
        numbers: Mapping[str, int],
    ) -> dict[str, Any]:
        store = self._state.stores.all().get((topic, number))
        bounds = None if store is None else store.bounds
        parts = []
        for seat in seats:
            position = self._state.offsets.at(seat)
            part = {
                "partId": seat.partition_id,
                "iCfm": position.committed,
                "iFlt": position.in_flight,
            }
            if seat in leases:
                part["recId"] = numbers[leases[seat].client_id]
            parts.append(part)
        return {
            "storeId": number,
            "iMin": 0 if bounds is None else bounds.earliest,
            "iMax": 0 if bounds is None else bounds.latest,
            "dMin": 0 if bounds is None else bounds.data_earliest,
            "dMax": 0 if bounds is None else bounds.data_latest,
            "parts": parts,
        }


def _snapshot(payload: bytes) -> Snapshot:
    # Not from the attributes: a group's name may contain the characters that separate them.
    (length,) = _ATTRIBUTE_LENGTH.unpack_from(payload)
    content = json.loads(payload[_ATTRIBUTE_LENGTH.size + length :])
    return Snapshot(content["group"], content["dt"], content)


def _partition(code: int) -> int:
    return abs(code) % _PARTITIONS


def _minute(now_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).astimezone()
    return moment.strftime(_MINUTE_FORMAT)
