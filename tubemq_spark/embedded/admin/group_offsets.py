"""The offsets of groups, as a broker's web calls show and change them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import bad_request
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.model import PARTITIONS_PER_STORE
from tubemq_spark.offsets.units import INDEX_ENTRY_BYTES
from tubemq_spark.protocol.topic_strings import partition_ids

_NONE: Final = -2
"""Stands for a missing number."""


class GroupOffsets:
    """The groups of a broker and their offsets."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state

    def groups(self) -> list[str]:
        """Return the groups that have offsets."""
        return sorted({seat.group for seat in self._state.offsets.all()})

    def used_groups(self) -> list[str]:
        """Return the groups that consumed, or were queried, since the broker started."""
        return sorted({seat.group for seat, position in self._state.offsets.all().items() if position.used})

    def topics(self, group: str, wanted: Iterable[str], parameter: str) -> list[str]:
        """Return the topics of a group that still exist; only those in ``wanted``, unless that is empty.

        Raises:
            RefusedError: there are none; ``parameter`` is the parameter with the group.
        """
        known = {seat.topic for seat in self._state.offsets.all() if seat.group == group}
        if not known:
            what = f"subscribed topic set of {group} query result is null!"
            raise bad_request(f"Parameter {parameter}: {what}")
        chosen = known & set(wanted) if wanted else known
        if not chosen:
            what = f"{group} unsubscribed to the specified topic set!"
            raise bad_request(f"Parameter {parameter}: {what}")
        there = sorted(topic for topic in chosen if self._state.catalog.get(topic) is not None)
        if not there:
            what = "all topics subscribed by the group have been deleted!"
            raise bad_request(f"Parameter {parameter}: {what}")
        return there

    def partitions(self, topic: str) -> list[int]:
        """Return the partition ids of a topic; none if it does not exist."""
        spec = self._state.catalog.get(topic)
        return [] if spec is None else partition_ids(spec.stores, spec.partitions)

    def shown(self, group: str, topics: Iterable[str]) -> list[dict[str, Any]]:
        """Return a group's offsets in all partitions of topics, as JSON (GroupOffsetInfo)."""
        shown = []
        for topic in topics:
            offsets = [self._offset(Seat(group, topic, number)) for number in self.partitions(topic)]
            shown.append({"topicName": topic, "offsets": offsets, "partCount": len(offsets)})
        return shown

    def move(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set a group's offsets, by topic and partition id, rounded down to whole entries.

        What its consumers have in flight is dropped.
        """
        for (topic, partition_id), offset in offsets.items():
            with self._state.offsets.locked(Seat(group, topic, partition_id)) as position:
                position.reset(offset - offset % INDEX_ENTRY_BYTES)

    def _offset(self, seat: Seat) -> dict[str, int]:
        store = self._state.stores.all().get((seat.topic, seat.partition_id // PARTITIONS_PER_STORE))
        position = self._state.offsets.find(seat)
        lease = self._state.leases.find(seat)
        names = (
            "curOffset",
            "flightOffset",
            "curDataOffset",
            "offsetLag",
            "dataLag",
            "offsetMax",
            "dataMax",
        )
        item = dict.fromkeys(names, _NONE)
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
        return {"partitionId": seat.partition_id, **item}
