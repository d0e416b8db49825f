"""Parts of batches: what the loop ``messages`` hands out, and what its limit leaves for the next one.

TubeMQ confirms batches as a whole. So a batch of which a part was handed out stays booked until the rest was,
too, unless the group can be moved to where the rest begins.
"""

import collections
import dataclasses
from collections.abc import Callable
from typing import Final, Self

from tubemq_spark.client.consumer.values import Batch
from tubemq_spark.client.reader.records import Record
from tubemq_spark.settings.fields import bad_setting
from tubemq_spark.settings.kinds import MAX_LONG, integer

_LIMIT: Final = integer(1, MAX_LONG)


def checked_limit(limit: int | None) -> int | None:
    """Return how many messages a loop may hand out; None: any number."""
    if limit is not None and not _LIMIT.fits(limit):
        raise bad_setting("limit", repr(limit), _LIMIT.expected)
    return limit


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Consecutive records of a batch, which a loop hands out one by one."""

    batch: Batch
    begin: int
    """The row of the first one."""
    end: int
    """The row behind the last one."""

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return all of a batch."""
        return cls(batch, 0, len(batch))

    def of_at_most(self, count: int | None) -> Self:
        """Return the first records of this part; None: all."""
        end = self.end if count is None else min(self.end, self.begin + count)
        return dataclasses.replace(self, end=end)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def records(self) -> tuple[Record, ...]:
        """The records."""
        return self.batch.records[self.begin : self.end]

    @property
    def rest(self) -> int:
        """How many records of the batch follow."""
        return len(self.batch) - self.end

    @property
    def end_offset(self) -> int | None:
        """Where the first record is that follows, in index bytes; None if that is not known."""
        return self.batch.records[self.end].offset

    def following(self) -> Self:
        """Return all records of the batch that follow."""
        return dataclasses.replace(self, begin=self.end, end=len(self.batch))


class UnfinishedParts:
    """What is left of batches that a limit has cut; threads may share it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: collections.deque[Part] = collections.deque()

    def keep_rest(self, part: Part) -> None:
        """Keep what follows a part for the next loop."""
        self._parts.append(part.following())

    def take(self, is_out: Callable[[Batch], bool]) -> Part | None:
        """Return the oldest part whose batch can still be confirmed; None if there is none."""
        while True:
            try:
                part = self._parts.popleft()
            except IndexError:
                return None
            if is_out(part.batch):
                return part
