"""A broker's web call that returns the newest messages of a partition, without a group."""

import base64
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.broker.state import BrokerState, has_partition
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.log.reading import Batch, ReadLimits
from tubemq_spark.embedded.log.records import INDEX_ENTRY
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.errors import RemoteProtocolError, TubeMQError
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.payload import FLAG_ATTRIBUTES, decode_payload, java_hash

_ANY_PARTITION: Final = -1
_LEAST_COUNT: Final = 3
_MOST_COUNT: Final = 50
_FILTERED_FACTOR: Final = 5
_FAILED: Final = 501
"""A code that TubeMQ uses only here."""


class MessageCalls:
    """``admin_snapshot_message`` (BrokerServiceServer.getMessageSnapshot)."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.calls: Mapping[str, Call] = {"admin_snapshot_message": self.snapshot}

    def snapshot(self, parameters: Parameters) -> dict[str, Any]:
        """Return the last few messages of a partition, or of the first partition of the first open store.

        As many index entries are examined as the messages need if all partitions of the store have the same
        number of messages.
        """
        topic = parameters.required("topicName")
        partition_id = parameters.number("partitionId", _ANY_PARTITION, least=0)
        count = parameters.number("msgCount", _LEAST_COUNT, least=_LEAST_COUNT)
        if count > _MOST_COUNT:
            raise bad_request(f"Over max allowed msgCount value, allowed count is {_MOST_COUNT}!")
        types = parameters.items("filterConds")
        self._state.check_reads()
        if partition_id == _ANY_PARTITION:
            partition_id = self._first_partition(topic)
        try:
            batch = self._read(self._store(topic, partition_id), topic, partition_id, count, types)
        except (OSError, KeyError, ValueError, TubeMQError) as error:
            return {
                "result": False,
                "errCode": _FAILED,
                "errMsg": f"Get Message failure, exception is {error}",
            }
        if batch is None or not len(batch.records):
            text = f"Could not find message at position by topic ({topic})!"
            raise RefusedError(ErrCode.UNAUTHORIZED, text)
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "Success!",
            "dataSet": [
                {"index": index, **message} for index, message in enumerate(_messages(batch)[-count:])
            ],
        }

    def _first_partition(self, topic: str) -> int:
        numbers = [number for name, number in self._state.stores.all() if name == topic]
        if not numbers:
            raise bad_request(f"Invalid parameter: not found the store by topicName({topic})!")
        return numbers[0] * PARTITIONS_PER_STORE

    def _store(self, topic: str, partition_id: int) -> Store:
        spec = self._state.catalog.get(topic)
        if spec is None or not has_partition(spec, partition_id):
            last = -1 if spec is None else spec.partitions - 1
            raise ValueError(f"Wrong partition value {partition_id},valid partitions in (0,{last})")
        return self._state.stores.open(topic, partition_id // PARTITIONS_PER_STORE)

    def _read(
        self, store: Store, topic: str, partition_id: int, count: int, types: list[str]
    ) -> Batch | None:
        spec = self._state.catalog.get(topic)
        entries = (count + 1) * (1 if spec is None else spec.partitions)
        if types:
            entries *= _FILTERED_FACTOR
        bounds = store.bounds
        start = max(bounds.latest - entries * INDEX_ENTRY.size, bounds.earliest)
        key_codes = frozenset(map(java_hash, types))
        settings = self._state.settings
        limits = ReadLimits(bounds.latest, settings.transfer_bytes, settings.max_entries, key_codes)
        return store.read(partition_id, start, limits)


def _messages(batch: Batch) -> list[dict[str, str]]:
    """Return bodies in base64 and attributes (``null`` if there are none), without damaged messages."""
    messages = []
    for view, flag in zip(batch.records.payloads, batch.records.flags.tolist(), strict=True):
        payload = bytes(view)
        try:
            value = decode_payload(payload, flag).value
        except RemoteProtocolError:
            continue
        attributes = _attribute_text(payload, value) if flag & FLAG_ATTRIBUTES else ""
        messages.append({"data": base64.b64encode(value).decode(), "attr": attributes or "null"})
    return messages


def _attribute_text(payload: bytes, value: bytes) -> str:
    return payload[4 : len(payload) - len(value)].decode(errors="replace")
