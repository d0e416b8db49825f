"""The groups at a broker: their offsets, committed and in flight, and which consumer holds which partition.

See DefaultOffsetManager and HeartbeatManager. A consumer holds a partition as long as it sends heartbeats.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tubemq_spark.embedded.broker.flow_control import Allowance
from tubemq_spark.embedded.files import JsonFile
from tubemq_spark.embedded.log.records import LogBounds
from tubemq_spark.embedded.scheduler import monotonic_ms, wall_ms
from tubemq_spark.protocol.constants import ReadStatus

NO_OFFSET: Final = -1
"""Stands for the offset in a register that asks for none."""


class OffsetKey(NamedTuple):
    """One partition as one group sees it."""

    group: str
    topic: str
    partition_id: int

    def __str__(self) -> str:
        """Return ``group:topic:partition``, as TubeMQ's texts have it."""
        return f"{self.group}:{self.topic}:{self.partition_id}"


class GroupPosition:
    """A group's position in a partition, in index bytes; hold ``lock`` for everything that must be atomic.

    ``committed`` is the offset of the first message that the group has not confirmed, ``in_flight`` how far
    the group has read beyond it. Until it is ``recorded``, the group has no position in the partition.
    """

    def __init__(self, committed: int | None = None) -> None:
        self.lock = threading.Lock()
        self.recorded = committed is not None
        self.committed = committed or 0
        self.in_flight = 0
        self.changes = 0
        """Rises whenever a consumer or an operator sets the committed offset, even to the same value."""

    def record(self, start: int) -> None:
        """Begin at ``start`` if the group has no position."""
        if not self.recorded:
            self._set(start)
            self.recorded = True

    def forget(self) -> None:
        """Forget the position."""
        self.recorded = False
        self.committed = 0
        self.in_flight = 0

    def register(self, read_status: int, offset: int, bounds: LogBounds) -> int:
        """Prepare the position for a new consumer; return where it starts.

        What is in flight is dropped. A group without a position starts at the beginning of the store with
        read status 0, and otherwise at its end. An offset that the consumer asks for is clamped.
        """
        from_start = read_status == ReadStatus.STORED_OR_EARLIEST
        self.record(bounds.earliest if from_start else bounds.latest)
        self.in_flight = 0
        if read_status == ReadStatus.LATEST_ALWAYS:
            self._set(bounds.latest)
        elif offset >= 0:
            self._set(bounds.clamp(offset))
        return self.committed

    def begin_read(
        self, *, manual: bool, last_consumed: bool, bounds: LogBounds, update: bool = True
    ) -> int | None:
        """Return where the next read starts, or None at the end of the store.

        In automatic mode ``last_consumed`` commits the previous read; in manual mode reads continue after
        what is in flight. A position before the store is moved to its beginning, and one beyond it to its
        end, unless ``update`` is false; in manual mode the move to the end waits for a commit.
        """
        self.record(0)
        if not manual and last_consumed:
            self.commit(consumed=True)
        start = self.committed + (self.in_flight if manual else 0)
        if start > bounds.latest and update:
            # The store lost its tail: only a crash does that, so what was committed there is gone.
            if manual:
                self.in_flight = bounds.latest - self.committed
            else:
                self.reset(bounds.latest)
        elif start < bounds.earliest:
            self.reset(bounds.earliest)
            start = bounds.earliest
        # At 0 the store itself says that it is empty, in other words.
        return None if start >= bounds.latest and start > 0 else start

    def end_read(self, distance: int, *, manual: bool, empty: bool) -> None:
        """Note that a read passed ``distance`` bytes of the index; ``empty``: it found no message."""
        if distance == 0:
            return
        if manual:
            self.in_flight += distance
            return
        self.in_flight = distance
        if empty:
            self.commit(consumed=True)

    def commit(self, *, consumed: bool) -> int:
        """Commit what is in flight, or drop it; return the committed offset."""
        self.record(0)
        if consumed and self.in_flight:
            self._set(self.committed + self.in_flight)
        self.in_flight = 0
        return self.committed

    def drop_in_flight(self) -> None:
        """Count what was read and not committed as not read; a group without a position gets none by this."""
        self.in_flight = 0

    def reset(self, offset: int) -> None:
        """Move to an offset; what is in flight is dropped."""
        self.record(offset)
        self._set(offset)
        self.in_flight = 0

    def _set(self, committed: int) -> None:
        self.committed = committed
        self.changes += 1


class _Saved(NamedTuple):
    """What the file holds: offsets, and when each group last changed one, in ms since the epoch."""

    offsets: Mapping[OffsetKey, int]
    changed_at_ms: Mapping[str, int]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Make the value from what ``to_json`` returned."""
        offsets = {
            OffsetKey(group, topic, int(partition_id)): int(committed)
            for group, topics in content["groups"].items()
            for topic, partitions in topics.items()
            for partition_id, committed in partitions.items()
        }
        # Files of the first release have no times.
        times = content.get("changed_at_ms", {})
        return cls(offsets, {group: int(changed_at_ms) for group, changed_at_ms in times.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the contents of the file."""
        groups: dict[str, dict[str, dict[str, int]]] = {}
        for key, committed in sorted(self.offsets.items()):
            groups.setdefault(key.group, {}).setdefault(key.topic, {})[str(key.partition_id)] = committed
        return {"groups": groups, "changed_at_ms": dict(sorted(self.changed_at_ms.items()))}


class OffsetTable:
    """All positions of a broker; looking one up takes no lock.

    A position that was once recorded is never removed, only forgotten. One that was never recorded is not
    kept, as refused requests would otherwise fill the memory. To change a position, get it from ``locked``:
    everyone gets the same object from there.
    """

    def __init__(self, path: Path, now_ms: Callable[[], int] = wall_ms) -> None:
        """Read the file that ``save`` wrote, if there is one."""
        self._now_ms = now_ms
        self._file = JsonFile(path, _Saved({}, {}), _Saved.from_json, _Saved.to_json)
        saved = self._file.value
        self._positions = {key: GroupPosition(committed) for key, committed in saved.offsets.items()}
        self._changes = dict.fromkeys(saved.offsets, 0)
        self._changed_at_ms = {
            group: saved.changed_at_ms.get(group, now_ms()) for group in {key.group for key in saved.offsets}
        }

    @contextlib.contextmanager
    def locked(self, key: OffsetKey) -> Iterator[GroupPosition]:
        """Lock a group's position, whether it is recorded or not."""
        while True:
            position = self._positions.get(key) or self._positions.setdefault(key, GroupPosition())
            with position.lock:
                if self._positions.get(key) is not position:
                    continue  # It was removed between the lookup and the lock.
                try:
                    yield position
                finally:
                    if not position.recorded and not position.changes:
                        del self._positions[key]
                return

    def find(self, key: OffsetKey) -> GroupPosition | None:
        """Return a group's position, if it has one."""
        position = self._positions.get(key)
        return position if position is not None and position.recorded else None

    def find_or_add(self, key: OffsetKey, start: int) -> GroupPosition:
        """Return a group's position; a new one begins at ``start``."""
        with self.locked(key) as position:
            position.record(start)
        return position

    def all(self) -> dict[OffsetKey, GroupPosition]:
        """Return all positions that are recorded."""
        # A copy is made in one step; making the pairs of `items` may run the garbage collector, and during
        # that other threads.
        return {key: position for key, position in self._positions.copy().items() if position.recorded}

    def forget_topic(self, topic: str) -> None:
        """Forget the positions in a removed topic, so that a new topic of the same name starts afresh."""
        self.forget(key for key in self.all() if key.topic == topic)

    def forget(self, partitions: Iterable[OffsetKey]) -> None:
        """Forget positions."""
        for key in partitions:
            with self.locked(key) as position:
                position.forget()

    def forget_idle(self, expiry_ms: int, busy: Container[str]) -> list[str]:
        """Forget groups that have not moved for longer than ``expiry_ms``; return their names.

        ``busy`` groups are kept: they have consumers that wait for messages. TubeMQ forgets those as well,
        and delivers all messages to them again (DefaultOffsetManager.loopProcess).
        """
        self.save()  # This records which groups have moved.
        with self._file.lock:
            since = self._now_ms() - expiry_ms
            idle = [
                group
                for group, changed_at_ms in self._changed_at_ms.items()
                if changed_at_ms < since and group not in busy
            ]
        self.forget(key for key in self.all() if key.group in idle)
        return idle

    def save(self) -> None:
        """Write the committed offsets to the file if they have changed since the last time."""
        with self._file.lock:
            positions = self.all()
            current = {key: position.committed for key, position in positions.items()}
            changes = {key: position.changes for key, position in positions.items()}
            if current == self._file.value.offsets and changes == self._changes:
                return
            now_ms = self._now_ms()
            moved = {key.group for key, count in changes.items() if count != self._changes.get(key)}
            groups = {key.group for key in current}
            changed_at_ms = {
                group: now_ms if group in moved else self._changed_at_ms.get(group, now_ms)
                for group in groups
            }
            self._file.replace(_Saved(current, changed_at_ms))
            self._changes, self._changed_at_ms = changes, changed_at_ms

    def close(self) -> None:
        """Commit what is in flight and save: a broker that stops counts it as consumed, as TubeMQ does."""
        for position in self.all().values():
            with position.lock:
                position.commit(consumed=True)
        self.save()


_MAX_REFUSED: Final = 1000
"""Leases of refused registers that are kept: group names are free, so more could fill the memory."""


@dataclasses.dataclass(slots=True)
class GrantedLease:
    """A consumer's lease on a partition; what may change when is said in ``consume``."""

    client_id: str
    key_codes: frozenset[int]
    """Hashes of the message types it subscribes to; none means all."""
    query_priority: int
    """What it may see, by TubeMQ's rules; 0 or below: the broker decides."""
    allowance: Allowance = dataclasses.field(default_factory=Allowance)
    """What flow control lets it read."""
    expires_at_ms: int = 0
    heard_at_ms: int = 0
    """When its last request came, in ms since the epoch."""


class LeaseTable:
    """The leases of a broker; grant and end one under the lock of the partition's position."""

    def __init__(self, timeout_ms: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._leases: dict[OffsetKey, GrantedLease] = {}
        self._refused: collections.deque[tuple[OffsetKey, GrantedLease]] = collections.deque()

    def find(self, key: OffsetKey) -> GrantedLease | None:
        """Return the lease of a partition, expired or not."""
        return self._leases.get(key)

    def grant(self, key: OffsetKey, lease: GrantedLease) -> None:
        """Give a partition to a consumer, also when another one holds it."""
        self.renew(lease)
        self._leases[key] = lease

    def limit_refused(self, key: OffsetKey, lease: GrantedLease) -> None:
        """Keep the lease of a refused register, as TubeMQ does; end the oldest of too many such leases."""
        self._refused.append((key, lease))
        if len(self._refused) > _MAX_REFUSED:
            oldest, refused = self._refused.popleft()
            if self._leases.get(oldest) is refused:
                self.end(oldest)

    def renew(self, lease: GrantedLease) -> None:
        """Start the lease's time again, because its consumer sent a request."""
        lease.expires_at_ms = self._now_ms() + self._timeout_ms
        lease.heard_at_ms = wall_ms()

    def has_expired(self, lease: GrantedLease) -> bool:
        """Whether the consumer has been silent for too long."""
        return self._now_ms() >= lease.expires_at_ms

    def end(self, key: OffsetKey) -> None:
        """Free a partition."""
        self._leases.pop(key, None)

    def expired(self) -> list[OffsetKey]:
        """Return the partitions whose leases have expired; they are held until ``end``."""
        return [key for key, lease in self._leases.copy().items() if self.has_expired(lease)]

    def forget_topic(self, topic: str) -> None:
        """Free the partitions of a removed topic."""
        for key in [key for key in list(self._leases) if key.topic == topic]:
            self.end(key)

    def all(self) -> dict[OffsetKey, GrantedLease]:
        """Return all leases."""
        return dict(self._leases)
