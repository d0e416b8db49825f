"""Which records of topics a read yields, checked when it is asked for and before any server is."""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Final, Literal, Self, TypeAlias

from tubemq_spark.client.consumer_config import require_topic_names
from tubemq_spark.client.reader.times import milliseconds
from tubemq_spark.model import TopicPartition, require_aligned
from tubemq_spark.offsets.offset_spec import FIRST_MS
from tubemq_spark.settings.fields import bad_setting
from tubemq_spark.settings.kinds import MAX_LONG, integer

PartitionName: TypeAlias = TopicPartition | tuple[int, int] | str
"""A partition; of a single topic also its broker id and partition id, as two numbers or as ``"1:10000"``."""
Offsets: TypeAlias = Mapping[TopicPartition, int] | Mapping[tuple[int, int], int] | Mapping[str, int]
"""An offset of each partition, in index bytes."""
Place: TypeAlias = datetime.datetime | int | Offsets
"""A time with a time zone, milliseconds since 1970, or offsets."""
StartPlace: TypeAlias = Place | Literal["earliest"]
EndPlace: TypeAlias = Place | Literal["latest"]

_OFFSETS: Final = (
    "a datetime with a time zone, milliseconds since 1970, or a mapping from partitions to offsets"
)
_COUNT: Final = integer(1, MAX_LONG)


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Which records of topics a read yields; ``of`` checks it."""

    topics: tuple[str, ...]
    start: int | Mapping[TopicPartition, int] | None = None
    """In milliseconds since 1970, or offsets; None: where the logs begin."""
    end: int | Mapping[TopicPartition, int] | None = None
    """As ``start``; None: where the logs end."""
    limit: int | None = None
    last: int | None = None
    partitions: frozenset[TopicPartition] | None = None
    """None: all."""

    @classmethod
    def of(
        cls,
        topics: Iterable[str],
        start: StartPlace | None = None,
        end: EndPlace | None = None,
        limit: int | None = None,
        last: int | None = None,
        partitions: Iterable[PartitionName] | None = None,
    ) -> Self:
        """Return the selection by the arguments of ``TubeMQClient.read``."""
        names = tuple(dict.fromkeys(topics))
        require_topic_names(names)
        for name, count in ("limit", limit), ("last", last):
            if count is not None and not _COUNT.fits(count):
                raise bad_setting(name, repr(count), _COUNT.expected)
        if last is not None and start is not None:
            raise bad_setting("start", "given with last", "left out: last counts back from the end")
        chosen = None if partitions is None else _partitions(partitions, names)
        first = _place("start", start, names, chosen)
        final = _place("end", end, names, chosen)
        _check_order(first, final)
        return cls(names, first, final, limit, last, chosen)


def _partitions(partitions: Iterable[PartitionName], topics: tuple[str, ...]) -> frozenset[TopicPartition]:
    if isinstance(partitions, str | TopicPartition):
        raise bad_setting("partitions", repr(partitions), "a list of partitions")
    chosen = frozenset(_partition("partitions", name, topics) for name in partitions)
    if not chosen:
        raise bad_setting("partitions", "empty", "at least one partition, or left out")
    return chosen


def _partition(argument: str, name: object, topics: tuple[str, ...]) -> TopicPartition:
    """Return the partition of a name."""
    if isinstance(name, TopicPartition):
        if name.topic not in topics:
            raise bad_setting(argument, f"with {name}", f"of partitions of {', '.join(topics)}")
        return name
    numbers = name.split(":") if isinstance(name, str) else name
    if isinstance(numbers, list | tuple) and len(numbers) == 2 and len(topics) == 1:
        try:
            broker_id, partition_id = map(int, numbers)
        except (TypeError, ValueError):
            pass
        else:
            return TopicPartition(topics[0], broker_id, partition_id)
    short = ', or of its topic such as "1:10000"' if len(topics) == 1 else ""
    raise bad_setting(argument, f"with {name!r}", f"of partitions, each a TopicPartition{short}")


def _place(
    argument: Literal["start", "end"],
    value: object,
    topics: tuple[str, ...],
    chosen: frozenset[TopicPartition] | None,
) -> int | Mapping[TopicPartition, int] | None:
    """Return a place as ``Selection`` has it."""
    edge = "earliest" if argument == "start" else "latest"
    rule = f"'{edge}', {_OFFSETS}"
    if value is None or value == edge:
        return None
    if value == "latest":
        raise bad_setting(
            argument, repr(value), f"{rule}: a read ends where logs end now; to wait for more, use a consumer"
        )
    if isinstance(value, Mapping):
        return {
            partition: _offset(argument, partition, offset)
            for partition, offset in _offsets_of_partitions(argument, value, topics, chosen).items()
        }
    ms = milliseconds(value, argument, rule)
    if 0 < ms < FIRST_MS:
        raise bad_setting(
            argument,
            ms,
            f"{rule}; in milliseconds this is before the year 2000, and an offset has a partition",
        )
    return ms


def _offsets_of_partitions(
    argument: str,
    offsets: Mapping[object, object],
    topics: tuple[str, ...],
    chosen: frozenset[TopicPartition] | None,
) -> dict[TopicPartition, object]:
    named = {_partition(argument, name, topics): offset for name, offset in offsets.items()}
    if chosen is not None and (others := named.keys() - chosen):
        raise bad_setting(argument, f"for {min(others)}", "for partitions among those of partitions")
    return named


def _offset(argument: str, partition: TopicPartition, offset: object) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool):
        raise bad_setting(argument, f"{offset!r} for {partition}", "an offset, in index bytes")
    return require_aligned(offset, partition)


def _check_order(
    start: int | Mapping[TopicPartition, int] | None, end: int | Mapping[TopicPartition, int] | None
) -> None:
    """Return unless a read would end before it begins, as far as that is known."""
    if isinstance(start, int) and isinstance(end, int) and end < start:
        raise bad_setting("end", "before start", "at start or later")
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        for partition in start.keys() & end.keys():
            if end[partition] < start[partition]:
                raise bad_setting("end", f"{end[partition]} for {partition}", f"{start[partition]} or more")
