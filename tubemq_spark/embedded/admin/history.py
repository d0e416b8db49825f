"""A broker's web calls that query ``__offset_history__`` and restore offsets from it."""

import datetime
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.group_offsets import GroupOffsets
from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.broker.history import OffsetHistory, Snapshot
from tubemq_spark.embedded.broker.offsets import Seat
from tubemq_spark.embedded.broker.state import BrokerState

_DATE_FORMAT: Final = "%Y%m%d%H%M%S"
_USUAL_RANGE_MS: Final = 300_000
_QUERY_READS, _MOST_QUERY_READS = 2, 30
_RESET_READS, _MOST_RESET_READS = 50, 100


class HistoryCalls:
    """The calls of BrokerAdminServlet about the history of offsets; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self._groups = GroupOffsets(state)
        self._history = OffsetHistory(state)
        self.calls: Mapping[str, Call] = {
            "admin_get_group_history_offset": self.query_history,
            "admin_set_offset_by_time": self.set_offset_by_time,
        }

    def query_history(self, parameters: Parameters) -> dict[str, Any]:
        """Return the first few snapshots of groups since a time, at most those of one read."""
        groups = parameters.required_items("groupName")
        count = parameters.number("msgCount", 1, least=1)
        reads = parameters.number("maxRetryCnt", _QUERY_READS, least=1, most=_MOST_QUERY_READS)
        since_ms = _moment_ms(_required_date(parameters, "recordTime"))
        self._check_reads()
        data = [self._records(group, since_ms, count, reads) for group in groups]
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}

    def set_offset_by_time(self, parameters: Parameters) -> dict[str, Any]:
        """Restore a group's offsets from its first snapshot since a time.

        TubeMQ 2.4.0 looks in a snapshot for a field ``offsets`` that does not exist, and so refuses every
        call that finds a snapshot; here the call works.
        """
        group = parameters.required("groupName")
        parameters.required("modifyUser")
        since_ms = _moment_ms(_required_date(parameters, "recordTime"))
        end = parameters.date("endTime")
        end_ms = since_ms + _USUAL_RANGE_MS if end is None else _moment_ms(end)
        if end_ms < since_ms:
            raise bad_request("Parameter endTime value must >= recordTime")
        topics = parameters.items("topicName")
        reads = parameters.number("maxRetryCnt", _RESET_READS, least=1, most=_MOST_RESET_READS)
        self._check_reads()
        offsets = self._snapshot(group, since_ms, end_ms, reads).offsets()
        chosen = {
            (topic, number): self._state.store(Seat(group, topic, number), "").bounds.clamp(offset)
            for (topic, number), offset in offsets.items()
            if (not topics or topic in topics) and number in self._groups.partitions(topic)
        }
        if not chosen:
            raise bad_request(f"Not found required topics [{', '.join(topics)}] in history offset value!")
        before = self._shown(group, topics)
        self._groups.move(group, chosen)
        data = [{"groupName": group, "before": before, "after": self._shown(group, topics)}]
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": 1}

    def _records(self, group: str, since_ms: int, count: int, reads: int) -> dict[str, Any]:
        for snapshots in self._history.find(group, since_ms, reads):
            found = [snapshot.content for snapshot in snapshots if snapshot.group == group][:count]
            if found:
                return {
                    "groupName": group,
                    "result": True,
                    "errMsg": "ok",
                    "records": found,
                    "recordCount": len(found),
                }
        return {"groupName": group, "result": False, "errMsg": "Could not find record!"}

    def _snapshot(self, group: str, since_ms: int, end_ms: int, reads: int) -> Snapshot:
        for snapshots in self._history.find(group, since_ms, reads):
            for snapshot in snapshots:
                if _minute_ms(snapshot.time_ms) > end_ms:
                    what = f"current time is {snapshot.minute}"
                    raise bad_request(f"Over required endTime range, {what}")
                if snapshot.group == group:
                    return snapshot
        raise bad_request("Not found record in required search range")

    def _shown(self, group: str, topics: list[str]) -> list[dict[str, Any]]:
        known = {seat.topic for seat in self._state.offsets.all() if seat.group == group}
        return self._groups.shown(group, sorted(known & set(topics) if topics else known))

    def _check_reads(self) -> None:
        if self._state.reads.stopped:
            raise bad_request("Read StoreService temporary unavailable!")


def _required_date(parameters: Parameters, name: str) -> str:
    parameters.required(name)
    return parameters.date(name) or ""


def _moment_ms(text: str) -> int:
    """Return a time ``yyyyMMddHHmmss`` in the server's time zone as ms since the epoch."""
    return int(datetime.datetime.strptime(text, _DATE_FORMAT).astimezone().timestamp()) * 1000


def _minute_ms(time_ms: int) -> int:
    return time_ms - time_ms % 60_000
