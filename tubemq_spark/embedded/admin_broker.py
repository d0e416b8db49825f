"""The broker's web calls: where stores begin and end, where groups stand, and how to move them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin_http import Call, Parameters, bad_request
from tubemq_spark.embedded.offsets import Seat
from tubemq_spark.embedded.settings import BROKER_ID
from tubemq_spark.embedded.state import BrokerState, has_partition
from tubemq_spark.embedded.store import Store
from tubemq_spark.model import PARTITIONS_A_STORE
from tubemq_spark.protocol.infostrings import partition_ids

_NONE: Final = -2
"""What stands for a number that there is not."""


class BrokerCalls:
    """The calls of BrokerAdminServlet that concern offsets; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.calls: Mapping[str, Call] = {
            "admin_query_pubinfo": self.query_pubinfo,
            "admin_query_group_offset": self.query_group_offset,
            "admin_query_offset": self.query_offset,
            "admin_manual_set_current_offset": self.manual_set_current_offset,
            "admin_set_offset": self.set_offset,
        }

    def query_pubinfo(self, parameters: Parameters) -> dict[str, Any]:
        """Return the bounds of the stores that are open, partition by partition."""
        wanted = parameters.items("topicName")
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, number), store in self._state.stores.all().items():
            spec = self._state.catalog.get(topic)
            if spec is not None and (not wanted or topic in wanted):
                bounds = store.bounds
                topics.setdefault(topic, []).extend(
                    {
                        "partitionId": number * PARTITIONS_A_STORE + index,
                        "offsetMin": bounds.earliest,
                        "offsetMax": bounds.latest,
                        "dataMin": bounds.data_earliest,
                        "dataMax": bounds.data_latest,
                    }
                    for index in range(spec.partitions)
                )
        data = [
            {"topicName": topic, "offsetInfo": items, "itemCount": len(items)}
            for topic, items in topics.items()
        ]
        return _success(dataSet=data, dataCount=len(data))

    def query_group_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return a store's bounds and, when asked, where a group stands; the latter makes a record."""
        seat, store = self._seat(parameters)
        position = self._state.offsets.find(seat)
        bounds = store.bounds
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
        if parameters.flag("requireRealOffset", default=False):
            answer["zkOffset"] = self._state.offsets.find_or_add(seat, 0).committed
            answer["curReadDataOffset"] = -1
            answer["curRdDltDataOffset"] = -1
        return answer

    def query_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Return where groups stand in all partitions of their topics."""
        groups, topics = parameters.items("groupName"), parameters.items("topicName")
        booked: dict[str, set[str]] = {}
        for seat in sorted(self._state.offsets.all()):
            if (not groups or seat.group in groups) and (not topics or seat.topic in topics):
                booked.setdefault(seat.group, set()).add(seat.topic)
        data = [
            {
                "groupName": group,
                "subInfo": [self._offsets_of(group, topic) for topic in sorted(names)],
                "topicCount": len(names),
            }
            for group, names in booked.items()
        ]
        return _success(dataSet=data, totalCnt=len(data))

    def manual_set_current_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Move a group to an offset inside the store."""
        seat, store = self._seat(parameters)
        parameters.required("modifyUser")
        wish = parameters.number("manualOffset")
        bounds = store.bounds
        if wish < bounds.earliest:
            what = f"lower than Current MinOffset:({wish}<{bounds.earliest})"
            raise bad_request(f"Invalid parameter: manualOffset {what}")
        if wish > bounds.latest:
            what = f"bigger than Current MaxOffset:({wish}>{bounds.latest})"
            raise bad_request(f"Invalid parameter: manualOffset {what}")
        old = self._move(seat, store, wish)
        return {
            "result": True,
            "errCode": 0,
            "errMsg": "Manual update current Offset success!",
            "oldOffset": old,
        }

    def set_offset(self, parameters: Parameters) -> dict[str, Any]:
        """Move groups to given offsets, or to the end of topics."""
        groups = parameters.required_items("groupName")
        parameters.required("manualSet")
        parameters.required("modifyUser")
        if parameters.flag("manualSet", default=False):
            goals = self._goals(parameters.required("offsetJsonInfo"))
        else:
            goals = list(self._ends(parameters.required_items("topicName")))
        for group in groups:
            for topic, partition_id, offset in goals:
                seat = Seat(group, topic, partition_id)
                self._move(seat, self._state.store(seat, ""), offset)
        return {"result": True, "errCode": 0, "errMsg": "OK"}

    def _seat(self, parameters: Parameters) -> tuple[Seat, Store]:
        seat = Seat(
            parameters.required("groupName"),
            parameters.required("topicName"),
            parameters.number("partitionId"),
        )
        spec = self._state.catalog.get(seat.topic)
        if spec is None:
            raise bad_request("Invalid parameter: not found the topicName configure!")
        if not has_partition(spec, seat.partition_id):
            raise bad_request("Invalid parameter: not found the store by topicName!")
        return seat, self._state.store(seat, "")

    def _move(self, seat: Seat, store: Store, offset: int) -> int:
        """Set a group's position, clamped to the store; return where it was."""
        position = self._state.offsets.find_or_add(seat, 0)
        with position.lock:
            old = position.committed
            position.reset(store.bounds.clamp(offset))
        return old

    def _offsets_of(self, group: str, topic: str) -> dict[str, Any]:
        spec = self._state.catalog.get(topic)
        numbers = partition_ids(spec.stores, spec.partitions) if spec is not None else []
        offsets = [self._offset(Seat(group, topic, number)) for number in numbers]
        return {"topicName": topic, "offsets": offsets, "partCount": len(offsets)}

    def _offset(self, seat: Seat) -> dict[str, int]:
        store = self._state.stores.all().get((seat.topic, seat.partition_id // PARTITIONS_A_STORE))
        position = self._state.offsets.find(seat)
        item = dict.fromkeys(
            ("curOffset", "flightOffset", "curDataOffset", "offsetLag", "dataLag", "offsetMax", "dataMax"),
            _NONE,
        )
        if store is not None:
            bounds = store.bounds
            item.update(offsetMax=bounds.latest, dataMax=bounds.data_latest)
        if position is not None:
            item.update(curOffset=position.committed, flightOffset=position.in_flight)
        if store is not None and position is not None:
            item["offsetLag"] = item["offsetMax"] - position.committed
        return {"partitionId": seat.partition_id, **item}

    def _goals(self, text: str) -> list[tuple[str, int, int]]:
        """Read ``{"brokerId:topic:partitionId": offset}``; what is not of this broker is passed over."""
        try:
            wishes = {str(key): int(offset) for key, offset in dict(json.loads(text)).items()}
        except (ValueError, TypeError) as error:
            raise bad_request(f"Parameter offsetJsonInfo's value is invalid: {error}") from error
        goals = []
        for key, offset in wishes.items():
            goal = self._goal(key, offset)
            if goal is not None:
                goals.append(goal)
        if not goals:
            raise bad_request("Parameter offsetJsonInfo's value is invalid!")
        return goals

    def _goal(self, key: str, offset: int) -> tuple[str, int, int] | None:
        parts = [part.strip() for part in key.split(":")]
        if len(parts) != 3:
            what = f"key invalid:{key} must be brokerId:topicName:partitionId !"
            raise bad_request(f"Parameter offsetJsonInfo's {what}")
        broker_id, topic, number = parts
        spec = self._state.catalog.get(topic)
        if broker_id != str(BROKER_ID) or spec is None:
            return None
        if not (number.isascii() and number.isdigit()):
            raise bad_request(f"Parameter offsetJsonInfo's key invalid:{key}'s partitionId value not number!")
        return (topic, int(number), offset) if has_partition(spec, int(number)) else None

    def _ends(self, topics: Iterable[str]) -> Iterable[tuple[str, int, int]]:
        for topic in topics:
            spec = self._state.catalog.get(topic)
            for number in partition_ids(spec.stores, spec.partitions) if spec is not None else ():
                store = self._state.store(Seat("", topic, number), "")
                yield topic, number, store.bounds.latest


def _success(**fields: object) -> dict[str, Any]:
    return {"result": True, "errCode": 0, "errMsg": "Success!", **fields}
