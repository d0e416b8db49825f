"""What a query reads: named topics, topics whose names match a pattern, or single partitions.

Each form answers the same questions, so that no other module has to tell them apart.
"""

import abc
import collections
import dataclasses
import itertools
import json
import re
import zlib
from collections.abc import Callable, Collection
from typing import ClassVar, Final

from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition, TopicsLayout
from tubemq_spark.offsets.notation import OffsetReader, listed

ASSIGN: Final = "assign"
ASSIGN_EXAMPLE: Final = '{"demo":["1:0","1:10000"]}'


class TopicSubscription(abc.ABC):
    """What a query reads; picklable, comparable, safe to log."""

    option: ClassVar[str]
    """The option that says so."""
    chosen_one_by_one: ClassVar[bool] = False
    """Whether the user names each partition, so that none is new because an administrator has added it."""
    finds_topics: ClassVar[bool] = False
    """Whether the topics are those that there are, so that none can be missing."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """A name for it; subscriptions to different sets of topics have different ones."""

    @abc.abstractmethod
    def topics(self, existing: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """Return the topics to ask the master for; ``existing`` finds out which there are."""

    def others(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return which of some partitions, which may no longer exist, are not part of it."""
        topics = {partition.topic for partition in partitions}
        unread = topics.difference(self.topics(lambda: topics))
        return [partition for partition in partitions if partition.topic in unread] if unread else []

    def of(self, layout: TopicsLayout) -> TopicsLayout:
        """Return the part of a layout that is read."""
        return layout

    def refuse_missing(self, layout: TopicsLayout) -> None:  # noqa: B027  by default the master refuses
        """Refuse partitions that the user names and that do not exist."""


@dataclasses.dataclass(frozen=True, slots=True)
class Topics(TopicSubscription):
    """All partitions of the topics with these names: ``subscribe``."""

    option: ClassVar[str] = "subscribe"
    names: tuple[str, ...]
    """At least one topic, each once."""

    @property
    def label(self) -> str:
        """The names in their order."""
        return "-".join(sorted(self.names))

    def topics(self, existing: Callable[[], Collection[str]]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names, without asking."""
        return self.names


@dataclasses.dataclass(frozen=True, slots=True)
class TopicPattern(TopicSubscription):
    """All partitions of all topics whose whole names match: ``subscribePattern``."""

    option: ClassVar[str] = "subscribePattern"
    finds_topics: ClassVar[bool] = True
    expression: str
    """A regular expression of Python."""

    @property
    def label(self) -> str:
        """A checksum of the pattern."""
        return f"pattern-{zlib.crc32(self.expression.encode()):08x}"

    def topics(self, existing: Callable[[], Collection[str]]) -> tuple[str, ...]:
        """Return the existing topics that match, in their order."""
        return tuple(sorted(topic for topic in existing() if re.fullmatch(self.expression, topic)))


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment(TopicSubscription):
    """These partitions: ``assign``."""

    option: ClassVar[str] = ASSIGN
    chosen_one_by_one: ClassVar[bool] = True
    partitions: frozenset[TopicPartition]
    """At least one."""

    @property
    def label(self) -> str:
        """The names of the topics in their order: a group may read one topic in several queries."""
        return "-".join(self._topics)

    def topics(self, existing: Callable[[], Collection[str]]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the topics of the partitions, without asking."""
        return self._topics

    def others(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return those that are none of them."""
        return [partition for partition in partitions if partition not in self.partitions]

    def of(self, layout: TopicsLayout) -> TopicsLayout:
        """Return a layout of these partitions that remembers the others of their topics."""
        chosen = {
            partition: endpoint
            for partition, endpoint in layout.partitions.items()
            if partition in self.partitions
        }
        others = frozenset(layout.partitions.keys() - chosen.keys())
        return dataclasses.replace(layout, partitions=chosen, unread=others)

    def refuse_missing(self, layout: TopicsLayout) -> None:
        """See ``TopicSubscription``."""
        missing = sorted(self.partitions - layout.partitions.keys())
        if missing:
            raise OptionError(
                "TUBEMQ_OFFSETS_UNKNOWN_PARTITIONS",
                option=ASSIGN,
                unknown=listed(missing),
                known=listed(sorted({*layout.partitions, *layout.unread})),
                advice="Leave the others out",
            )

    @property
    def _topics(self) -> tuple[str, ...]:
        return tuple(sorted({partition.topic for partition in self.partitions}))


def parse_assignment(text: str) -> Assignment:
    """Read the value of ``assign``: for each topic a list of ``brokerId:partitionId``."""
    reader = OffsetReader(f"Option '{ASSIGN}'", text.strip(), f"write for example {ASSIGN_EXAMPLE}")
    partitions: list[TopicPartition] = []
    for topic, keys in reader.load().items():
        if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
            reader.fail(f"the value of topic {topic!r} is not a list of brokerId:partitionId")
        partitions += [reader.partition(topic, key) for key in keys]
    if not partitions:
        reader.fail("it names no partition")
    twice = [partition for partition, count in collections.Counter(partitions).items() if count > 1]
    if twice:
        reader.fail(f"it names {twice[0]} twice")
    return Assignment(frozenset(partitions))


def format_assignment(assignment: Assignment) -> str:
    """Return the text that ``parse_assignment`` reads as this assignment."""
    by_topic = itertools.groupby(sorted(assignment.partitions), key=lambda partition: partition.topic)
    keys = {topic: [partition.local_id for partition in partitions] for topic, partitions in by_topic}
    return json.dumps(keys, separators=(",", ":"))
