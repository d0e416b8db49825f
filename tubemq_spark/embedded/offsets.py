"""Where groups stand in partitions: a committed offset and what is in flight (DefaultOffsetManager)."""

import threading
from pathlib import Path
from typing import Any, Final, NamedTuple

from tubemq_spark.embedded.files import read_json, write_json
from tubemq_spark.embedded.store import Bounds
from tubemq_spark.protocol.constants import ReadStatus

NO_WISH: Final = -1
"""A register that names no offset to start from."""


class Seat(NamedTuple):
    """One partition as one group sees it."""

    group: str
    topic: str
    partition_id: int


class Position:
    """A group's place in a partition, in index bytes; hold ``lock`` around everything that belongs together.

    ``committed`` is the next offset to read as far as the group has confirmed; ``in_flight`` the distance of
    what was read and not confirmed yet.
    """

    def __init__(self, committed: int) -> None:
        self.lock = threading.Lock()
        self.committed = committed
        self.in_flight = 0

    def register(self, read_status: int, wish: int, bounds: Bounds) -> int:
        """A consumer takes the partition: drop what is in flight, move where it wants; return the start."""
        self.in_flight = 0
        if read_status == ReadStatus.LATEST_ALWAYS:
            self.committed = bounds.latest
        elif wish >= 0:
            self.committed = bounds.clamp(wish)
        return self.committed

    def begin_read(self, *, manual: bool, last_consumed: bool, bounds: Bounds) -> int | None:
        """Return where the next read starts, or None at the end of the store.

        In automatic mode ``last_consumed`` confirms the read before; in manual mode reads go on behind what
        is in flight. A position outside the store is moved into it.
        """
        if not manual and last_consumed:
            self.commit(consumed=True)
        start = self.committed + (self.in_flight if manual else 0)
        if start > bounds.latest:
            # The store lost its end: only a crash does that, so what was confirmed there is gone.
            self.reset(bounds.latest)
        elif start < bounds.earliest:
            self.reset(bounds.earliest)
            start = bounds.earliest
        # At 0 the store itself says that it is empty, with another text.
        return None if start >= bounds.latest and start > 0 else start

    def end_read(self, distance: int, *, manual: bool, empty: bool) -> None:
        """A read went over ``distance`` bytes of the index; ``empty``: nothing in it was for the consumer."""
        if distance == 0:
            return
        if manual:
            self.in_flight += distance
            return
        self.in_flight = distance
        if empty:
            self.commit(consumed=True)

    def commit(self, *, consumed: bool) -> int:
        """Confirm what is in flight, or drop it; return the committed offset."""
        if consumed:
            self.committed += self.in_flight
        self.in_flight = 0
        return self.committed

    def reset(self, offset: int) -> None:
        """Stand somewhere else; what is in flight is dropped."""
        self.committed = offset
        self.in_flight = 0


class OffsetTable:
    """All positions of a broker; looking one up takes no lock."""

    def __init__(self, path: Path) -> None:
        """Read the file that ``save`` wrote, if there is one.

        Raises:
            DataLossError: the file cannot be understood; it is left as it is.
        """
        self._path = path
        self._lock = threading.Lock()
        saved = read_json(path, _positions) or {}
        self._positions = {seat: Position(committed) for seat, committed in saved.items()}
        self._saved = saved

    def find(self, seat: Seat) -> Position | None:
        """Return a group's position, if it has one."""
        return self._positions.get(seat)

    def find_or_add(self, seat: Seat, start: int) -> Position:
        """Return a group's position; a new one stands at ``start``."""
        found = self._positions.get(seat)
        if found is None:
            with self._lock:
                found = self._positions.setdefault(seat, Position(start))
        return found

    def all(self) -> dict[Seat, Position]:
        """Return all positions."""
        with self._lock:
            return dict(self._positions)

    def forget_topic(self, topic: str) -> None:
        """Remove the positions of a topic that is gone: a new one of its name starts afresh."""
        with self._lock:
            self._positions = {seat: found for seat, found in self._positions.items() if seat.topic != topic}

    def save(self) -> None:
        """Write the committed offsets to the file, if they changed since the last time.

        Raises:
            OSError: the file could not be written.
        """
        current = {seat: position.committed for seat, position in self.all().items()}
        if current != self._saved:
            write_json(self._path, {"groups": _content(current)})
            self._saved = current

    def close(self) -> None:
        """Confirm what is in flight and save: a broker that stops takes it as consumed, as TubeMQ does."""
        for position in self.all().values():
            with position.lock:
                position.commit(consumed=True)
        self.save()


def _content(offsets: dict[Seat, int]) -> dict[str, dict[str, dict[str, int]]]:
    groups: dict[str, dict[str, dict[str, int]]] = {}
    for seat, committed in sorted(offsets.items()):
        groups.setdefault(seat.group, {}).setdefault(seat.topic, {})[str(seat.partition_id)] = committed
    return groups


def _positions(content: dict[str, Any]) -> dict[Seat, int]:
    return {
        Seat(group, topic, int(partition_id)): int(committed)
        for group, topics in content["groups"].items()
        for topic, partitions in topics.items()
        for partition_id, committed in partitions.items()
    }
