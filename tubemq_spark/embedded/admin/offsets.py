"""A broker's web calls that query and change the offsets of groups."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tubemq_spark.embedded.admin.group_offsets import GroupOffsets
from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState, has_partition
from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.model import PARTITIONS_PER_STORE


class OffsetCalls:
    """The calls of BrokerAdminServlet about offsets; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self._groups = GroupOffsets(state)
        self.calls: Mapping[str, Call] = {
            "admin_query_group_offset": self.query_group_offset,
            "admin_query_offset": self.query_offset,
            "admin_get_booked_groupname": self.query_groups,
            "admin_query_group": self.query_groups,
            "admin_manual_set_current_offset": self.manual_set_current_offset,
            "admin_set_offset": self.set_offset,
            "admin_clone_offset": self.clone_offset,
            "admin_rmv_offset": self.remove_offset,
            "admin_backup_group_offsets": self.back_up,
        }

    def query_group_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return a store's bounds and, if asked for, a group's offset, which is thereby recorded."""
        seat = _seat(parameters)
        real = parameters.flag("requireRealOffset", default=False)
        store = self._store(seat)
        position, bounds = self._state.offsets.find(seat), store.bounds
        answer = {
            "result": True,
            "errCode": 0,
            "errMsg": "OK!",
            "tmpOffset": 0 if position is None else position.in_flight,
            "minOffset": bounds.earliest,
            "maxOffset": bounds.latest,
            "minDataOffset": bounds.data_earliest,
            "maxDataOffset": bounds.data_latest,
        }
        if real:
            lease = self._state.leases.find(seat)
            read_to = -1 if lease is None else max(lease.allowance.data_end, -1)
            answer["zkOffset"] = self._state.offsets.find_or_add(seat, 0).committed
            answer["curReadDataOffset"] = read_to
            answer["curRdDltDataOffset"] = -1 if read_to < 0 else bounds.data_latest - read_to
        return answer

    def query_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return the offsets of groups in all partitions of their topics."""
        wanted, topics = parameters.items("groupName"), parameters.items("topicName")
        data = []
        for group in self._groups.groups():
            if not wanted or group in wanted:
                info = self._groups.shown(group, self._topics_or_none(group, topics))
                data.append({"groupName": group, "subInfo": info, "topicCount": len(info)})
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data, "totalCnt": len(data)}

    def query_groups(self, parameters: Parameters) -> dict[str, Any]:
        """Return the groups that have offsets; if asked for, divided by use since the start."""
        groups = self._groups.groups()
        lists = {"all": groups}
        if parameters.flag("divide", default=False):
            used = self._groups.used_groups()
            lists = {"online": used, "offline": [group for group in groups if group not in used]}
        data = [{"type": kind, "groupName": names, "groupCount": len(names)} for kind, names in lists.items()]
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data, "dataCount": len(data)}

    def manual_set_current_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Move a group to an offset inside the store."""
        topic, group = parameters.required("topicName"), parameters.required("groupName")
        parameters.required("modifyUser")
        seat = Seat(group, topic, parameters.number("partitionId", least=0))
        asked = parameters.number("manualOffset")
        bounds = self._store(seat).bounds
        if asked < bounds.earliest:
            what = f"lower than Current MinOffset:({asked}<{bounds.earliest})"
            raise bad_request(f"Invalid parameter: manualOffset {what}")
        if asked > bounds.latest:
            what = f"bigger than Current MaxOffset:({asked}>{bounds.latest})"
            raise bad_request(f"Invalid parameter: manualOffset {what}")
        position = self._state.offsets.find(seat)
        old = 0 if position is None else position.committed
        self._groups.move(group, {(topic, seat.partition_id): asked})
        text = "Manual update current Offset success!"
        return {"result": True, "errCode": 0, "errMsg": text, "oldOffset": old}

    def set_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Set the offsets of groups to given ones, or to the end of topics."""
        groups = parameters.required_items("groupName")
        parameters.required("manualSet")
        by_hand = parameters.flag("manualSet", default=False)
        parameters.required("modifyUser")
        if by_hand:
            goals = self._goals(parameters.required("offsetJsonInfo"))
        else:
            goals = self._ends(parameters.required_items("topicName"))
        for group in groups:
            self._groups.move(group, goals)
        return {"result": True, "errCode": 0, "errMsg": "OK"}

    def clone_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Copy the offsets of a group to other groups."""
        source = parameters.required("sourceGroupName")
        topics = self._groups.topics(source, parameters.items("topicName"), "sourceGroupName")
        targets = parameters.required_items("targetGroupName")
        parameters.required("modifyUser")
        goals = {}
        for topic in topics:
            for number in self._groups.partitions(topic):
                position = self._state.offsets.find(Seat(source, topic, number))
                if position is not None:
                    bounds = self._open(topic, number).bounds
                    goals[topic, number] = bounds.clamp(position.committed)
        for group in targets:
            self._groups.move(group, goals)
        return {"result": True, "errCode": 0, "errMsg": "OK"}

    def remove_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Delete the offsets of groups; there is no difference between memory and disk here."""
        groups = parameters.required_items("groupName")
        parameters.required("modifyUser")
        wanted = parameters.items("topicName")
        parameters.flag("onlyMemory", default=False)
        chosen = {(group, topic) for group in groups for topic in self._topics_or_none(group, wanted)}
        self._state.offsets.forget(
            seat for seat in self._state.offsets.all() if (seat.group, seat.topic) in chosen
        )
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}

    def back_up(self, parameters: Parameters) -> dict[str, Any]:
        """Write the offsets to ``offsets.meta`` in a directory of the server."""
        path = parameters.text("backupPath")
        if path == "/":
            raise bad_request("Illegal parameter value, backupPath only include separator!")
        try:
            self._state.offsets.back_up(Path(path) if path else None, self._state.broker_id)
        except (OSError, ValueError) as error:  # ValueError: no path has such characters, as NUL
            raise bad_request(f"backup group offsets failed: {error}") from error
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": []}

    def _topics_or_none(self, group: str, wanted: list[str]) -> list[str]:
        try:
            return self._groups.topics(group, wanted, "groupName")
        except RefusedError:
            return []

    def _store(self, seat: Seat) -> Store:
        spec = self._state.catalog.get(seat.topic)
        if spec is None:
            raise bad_request("Invalid parameter: not found the topicName configure!")
        if not has_partition(spec, seat.partition_id):
            raise bad_request("Invalid parameter: not found the store by topicName!")
        return self._state.store(seat, "")

    def _open(self, topic: str, number: int) -> Store:
        return self._state.stores.open(topic, number // PARTITIONS_PER_STORE)

    def _goals(self, text: str) -> dict[tuple[str, int], int]:
        """Parse ``{"brokerId:topic:partitionId": offset}``; what belongs to other brokers is ignored."""
        try:
            items = json.loads(text)
            wanted_values = {
                str(key): int(offset) for key, offset in dict(items).items() if offset is not None
            }
        except (ValueError, TypeError) as error:
            what = f"value parse failure, error is {error}!"
            raise bad_request(f"Parameter offsetJsonInfo {what}") from error
        goals = {}
        for key, offset in wanted_values.items():
            seat = self._parse_seat(key)
            if seat is not None:
                topic, number = seat
                goals[topic, number] = self._open(topic, number).bounds.clamp(offset)
        if not goals:
            raise bad_request("Parameter offsetJsonInfo's value is invalid!")
        return goals

    def _parse_seat(self, key: str) -> tuple[str, int] | None:
        parts = [part.strip() for part in key.split(":")]
        if len(parts) != 3:
            what = f"key invalid:{key} must be brokerId:topicName:partitionId !"
            raise bad_request(f"Parameter offsetJsonInfo's {what}")
        broker_id, topic, number = parts
        spec = self._state.catalog.get(topic)
        if broker_id != str(self._state.broker_id) or spec is None:
            return None
        if not (number.isascii() and number.isdigit()):
            raise bad_request(f"Parameter offsetJsonInfo's key invalid:{key}'s partitionId value not number!")
        return (topic, int(number)) if has_partition(spec, int(number)) else None

    def _ends(self, topics: list[str]) -> dict[tuple[str, int], int]:
        return {
            (topic, number): self._open(topic, number).bounds.latest
            for topic in topics
            for number in self._groups.partitions(topic)
        }


def _seat(parameters: Parameters) -> Seat:
    topic, group = parameters.required("topicName"), parameters.required("groupName")
    return Seat(group, topic, parameters.number("partitionId", least=0))
