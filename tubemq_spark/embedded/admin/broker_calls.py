"""The web calls of a broker (BrokerAdminServlet): its stores, the offsets of groups, and who reads what."""

from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request, ok
from tubemq_spark.embedded.broker.groups import OffsetKey
from tubemq_spark.embedded.broker.state import BrokerState, has_partition
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.protocol.packed_strings import partition_ids

_NONE: Final = -2
"""Stands for a missing number."""
_OFFSET_FIELDS: Final = (
    "curOffset",
    "flightOffset",
    "curDataOffset",
    "offsetLag",
    "dataLag",
    "offsetMax",
    "dataMax",
)


class BrokerCalls:
    """The calls by name; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.calls: Mapping[str, Call] = {
            "admin_query_pubinfo": self.query_pubinfo,
            "admin_query_group_offset": self.query_group_offset,
            "admin_query_offset": self.query_offset,
            "admin_get_partition_reginfo": self.query_registered,
        }

    def query_pubinfo(self, parameters: Parameters) -> dict[str, Any]:
        """Return the bounds of the open stores, by partition."""
        data = []
        for topic, stores in self._open_stores(parameters).items():
            spec = self._state.catalog.get(topic)
            partitions = 0 if spec is None else spec.partitions
            items = [item for number, store in stores.items() for item in _bounds(store, number, partitions)]
            data.append({"topicName": topic, "offsetInfo": items, "itemCount": len(items)})
        return ok("Success!", dataSet=data, dataCount=len(data))

    def query_group_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return a store's bounds and, if asked for, a group's offset, which is thereby recorded."""
        topic, group = parameters.required("topicName"), parameters.required("groupName")
        partition = OffsetKey(group, topic, parameters.number("partitionId", least=0))
        real = parameters.flag("requireRealOffset", default=False)
        store = self._store(partition)
        position, bounds = self._state.offsets.find(partition), store.bounds
        answer = {
            **ok("OK!", tmpOffset=0 if position is None else position.in_flight),
            "minOffset": bounds.earliest,
            "maxOffset": bounds.latest,
            "minDataOffset": bounds.data_earliest,
            "maxDataOffset": bounds.data_latest,
        }
        if real:
            lease = self._state.leases.find(partition)
            read_to = -1 if lease is None else max(lease.allowance.data_end, -1)
            answer["zkOffset"] = self._state.offsets.find_or_add(partition, 0).committed
            answer["curReadDataOffset"] = read_to
            answer["curRdDltDataOffset"] = -1 if read_to < 0 else bounds.data_latest - read_to
        return answer

    def query_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return the offsets of groups in all partitions of those of their topics that still exist."""
        groups, topics = parameters.items("groupName"), parameters.items("topicName")
        subscribed: dict[str, set[str]] = {}
        for partition in self._state.offsets.all():
            if not groups or partition.group in groups:
                subscribed.setdefault(partition.group, set()).add(partition.topic)
        data = []
        for group, names in sorted(subscribed.items()):
            info = self._group_info(group, sorted(names & set(topics) if topics else names))
            data.append({"groupName": group, "subInfo": info, "topicCount": len(info)})
        return ok("Success!", dataSet=data, totalCnt=len(data))

    def query_registered(self, parameters: Parameters) -> dict[str, Any]:
        """Return which consumer holds which partition."""
        groups = parameters.items("groupName")
        leases = sorted(self._state.leases.all().items(), key=lambda item: item[0])
        data = [
            {
                "Partition": f"{partition.group}:{partition.topic}:{partition.partition_id}",
                "Consumer": lease.client_id,
                "index": index,
            }
            for index, (partition, lease) in enumerate(
                (
                    (partition, lease)
                    for partition, lease in leases
                    if not groups or partition.group in groups
                ),
                1,
            )
        ]
        return ok("Success!", dataSet=data, totalCnt=len(data))

    def _open_stores(self, parameters: Parameters) -> dict[str, dict[int, Store]]:
        """Return the open stores of the topics in the call, or of all topics, by topic and number."""
        names = parameters.items("topicName")
        topics: dict[str, dict[int, Store]] = {}
        for (topic, number), store in self._state.stores.all().items():
            if (not names or topic in names) and self._state.catalog.get(topic) is not None:
                topics.setdefault(topic, {})[number] = store
        return topics

    def _store(self, partition: OffsetKey) -> Store:
        spec = self._state.catalog.get(partition.topic)
        if spec is None:
            raise bad_request("Invalid parameter: not found the topicName configure!")
        if not has_partition(spec, partition.partition_id):
            raise bad_request("Invalid parameter: not found the store by topicName!")
        return self._state.store(partition, "")

    def _group_info(self, group: str, topics: list[str]) -> list[dict[str, Any]]:
        """Return a group's offsets in all partitions of topics (GroupOffsetInfo)."""
        items = []
        for topic in topics:
            if (spec := self._state.catalog.get(topic)) is not None:
                numbers = partition_ids(spec.stores, spec.partitions)
                offsets = [self._offset(OffsetKey(group, topic, number)) for number in numbers]
                items.append({"topicName": topic, "offsets": offsets, "partCount": len(offsets)})
        return items

    def _offset(self, partition: OffsetKey) -> dict[str, int]:
        store = self._state.stores.find(partition.topic, partition.partition_id // PARTITIONS_PER_STORE)
        position = self._state.offsets.find(partition)
        lease = self._state.leases.find(partition)
        item = dict.fromkeys(_OFFSET_FIELDS, _NONE)
        if position is not None:
            item.update(curOffset=position.committed, flightOffset=position.in_flight)
        if lease is not None and lease.allowance.data_end >= 0:
            item["curDataOffset"] = lease.allowance.data_end
        if store is not None:
            bounds = store.bounds
            item.update(offsetMax=bounds.latest, dataMax=bounds.data_latest)
            if position is not None:
                item["offsetLag"] = bounds.latest - item["curOffset"]
            if item["curDataOffset"] != _NONE:
                item["dataLag"] = bounds.data_latest - item["curDataOffset"]
        return {"partitionId": partition.partition_id, **item}


def _bounds(store: Store, number: int, partitions: int) -> list[dict[str, int]]:
    bounds = store.bounds
    return [
        {
            "partitionId": number * PARTITIONS_PER_STORE + index,
            "offsetMin": bounds.earliest,
            "offsetMax": bounds.latest,
            "dataMin": bounds.data_earliest,
            "dataMax": bounds.data_latest,
        }
        for index in range(partitions)
    ]
