"""What a group consumer asks for: topics, filters, and where a bound group starts. Checked once."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Self

from tubemq_spark.model import TopicPartition, require_aligned
from tubemq_spark.protocol.constants import (
    LONGEST_MESSAGE_TYPE,
    MAX_TOPICS,
    MOST_MESSAGE_TYPES,
    OFFSET_HISTORY_TOPIC,
    TOPIC_NAME,
    TOPIC_NAME_RULE,
)
from tubemq_spark.protocol.packed_strings import is_packable
from tubemq_spark.settings.fields import bad_setting, require_fitting, setting
from tubemq_spark.settings.kinds import BOOLEAN, MAX_INT, VERBATIM, integer

_LONGEST_SESSION_KEY: Final = 1024
_MEMBERS: Final = integer(1, MAX_INT)


@dataclasses.dataclass(frozen=True)
class BoundStart:
    """Where a *bound* group starts: its members name offsets, and the master waits until all are there.

    All members must give the same session key, member count and choice between offsets.

        start = BoundStart("run-7", source_count=2, offsets={partition: 2800}).validate(["clicks"])
        client.group_consumer("clicks", start=start)
    """

    session_key: str = setting(VERBATIM, "distinguishes this start of the group from others")
    source_count: int = setting(_MEMBERS, "how many members the group will have")
    offsets: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    """Where partitions start, in index bytes; the others start where the group stands."""
    select_big: bool = setting(
        BOOLEAN,
        "of several offsets that members name for a partition, whether the largest counts, or the smallest",
        default=True,
    )

    def validate(self, topics: Collection[str]) -> Self:
        """Return the start if it is valid for these topics.

        Raises:
            OptionError: a setting is not valid; the text names it.
            OffsetFormatError: an offset is negative or not a multiple of 28.
        """
        key = self.session_key
        if not is_packable(key) or len(key) > _LONGEST_SESSION_KEY:
            rule = f"1 to {_LONGEST_SESSION_KEY} characters without : # @ , ="
            raise bad_setting("session_key", repr(key), rule)
        require_fitting(self, apart_from=("session_key",))
        for partition, offset in self.offsets.items():
            if partition.topic not in topics:
                raise bad_setting(
                    "offsets", f"for {partition}", f"for partitions of {', '.join(sorted(topics))}"
                )
            require_aligned(offset, partition)
        return self


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """Which of several assigned consumers of a group one is.

    All give the same count and each a number of its own, which the master checks; what a number means for the
    partitions that a consumer takes is the user's choice.

        TubeMQClient(config, node=Node(source_count=2, node_id=0).validate())
    """

    source_count: int = setting(_MEMBERS, "how many consumers the group has")
    node_id: int = setting(integer(0, MAX_INT), "the number of this one, from 0 on")

    def validate(self) -> Self:
        """Return the node if there can be one.

        Raises:
            OptionError: a number is out of its range; the text names it.
        """
        require_fitting(self)
        if self.node_id >= self.source_count:
            raise bad_setting("node_id", self.node_id, f"a whole number from 0 to {self.source_count - 1}")
        return self


@dataclasses.dataclass(frozen=True)
class Subscription:
    """The topics of a consumer, each with the message types it wants; ``of`` checks them.

    For example:

        subscription = Subscription.of(["clicks", "orders"], {"orders": ["paid"]})
        TubeMQClient(config, subscription=subscription)
    """

    message_types: Mapping[str, frozenset[str]]
    """By topic; a topic without types is read whole."""
    start: BoundStart | None = None
    """Only for members of a bound group."""

    @classmethod
    def of(
        cls,
        topics: str | Iterable[str],
        message_types: Mapping[str, Iterable[str]] | None = None,
        start: BoundStart | None = None,
    ) -> Self:
        """Return a subscription.

        Args:
            topics: the topics; one text is one topic.
            message_types: the filters, for some of the topics or none.
            start: where a bound group starts.

        Raises:
            OptionError: there is no topic, a name is not valid, or a filter belongs to no topic.
            OffsetFormatError: an offset of ``start`` is not one.
        """
        names = dict.fromkeys([topics] if isinstance(topics, str) else topics)
        if not 0 < len(names) <= MAX_TOPICS:
            raise bad_setting("topics", f"a list of {len(names)}", f"1 to {MAX_TOPICS} topics")
        require_topic_names(names)
        types = {name: frozenset[str]() for name in names}
        for name, types_of_topic in (message_types or {}).items():
            if name not in types:
                raise bad_setting("message_types", f"for {name!r}", f"for topics among {', '.join(names)}")
            types[name] = checked_types(name, types_of_topic)
        return cls(MappingProxyType(types), None if start is None else start.validate(types))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, sorted."""
        return tuple(sorted(self.message_types))

    @property
    def filtered_topics(self) -> frozenset[str]:
        """The topics that are read with a filter."""
        return frozenset(topic for topic, types in self.message_types.items() if types)


def names_of(topics: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the topics that a user names, each once; one text is one topic, and None is none."""
    return tuple(dict.fromkeys([topics] if isinstance(topics, str) else topics or ()))


def require_topic_names(names: Iterable[str]) -> None:
    """Return when topics could have these names."""
    for name in names:
        if not TOPIC_NAME.fullmatch(name) and name != OFFSET_HISTORY_TOPIC:
            raise bad_setting("topics", f"with {name!r}", f"names of {TOPIC_NAME_RULE}")


def checked_types(topic: str, message_types: Iterable[str]) -> frozenset[str]:
    """Return the message types that a consumer wants of a topic."""
    if isinstance(message_types, str):
        raise bad_setting("message_types", f"{message_types!r} for {topic}", "a list of message types")
    types = frozenset(message_types)
    if len(types) > MOST_MESSAGE_TYPES:
        raise bad_setting(
            "message_types", f"{len(types)} for {topic}", f"at most {MOST_MESSAGE_TYPES} per topic"
        )
    for item in types:
        if not is_packable(item) or item != item.strip() or len(item) > LONGEST_MESSAGE_TYPE:
            shown = repr(item[:LONGEST_MESSAGE_TYPE])
            rule = f"1 to {LONGEST_MESSAGE_TYPE} characters without blanks around them and without : # @ , ="
            raise bad_setting("message_types", f"with {shown} for {topic}", rule)
    return types
