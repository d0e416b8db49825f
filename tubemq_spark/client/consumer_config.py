"""The settings of consumers, and what they ask for: topics, filters, and where a bound group starts.

Checked once and never changed. How to reach the cluster, time-outs, heartbeats and registration are in
``ClientConfig``, which producers share.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, Self, TypedDict

from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.model import TopicPartition, require_aligned
from tubemq_spark.protocol.constants import (
    LONGEST_MESSAGE_TYPE,
    MAX_TOPICS,
    MOST_MESSAGE_TYPES,
    OFFSET_HISTORY_TOPIC,
    TOPIC_NAME,
    TOPIC_NAME_RULE,
    ReadStatus,
)
from tubemq_spark.protocol.packed_strings import is_packable
from tubemq_spark.settings.fields import bad_setting, require_fitting, setting
from tubemq_spark.settings.kinds import (
    BOOLEAN,
    DAY_MS,
    MAX_INT,
    MILLISECONDS,
    PAUSE_MS,
    VERBATIM,
    choice,
    integer,
)

WITHOUT_LIMIT: Final = -1
"""A wait that only ends when what is waited for has come, or the consumer is closed."""


class ConsumePosition(enum.Enum):
    """Where a consumer begins in a partition that it registers for the first time.

    The value is what users write. A partition that comes back to the consumer resumes at the group's
    position.

        client.group_consumer("clicks", consume_position=ConsumePosition.LATEST)
    """

    FIRST = "first"
    """At the group's position; a group that has none begins at the first message that is kept."""
    LATEST = "latest"
    """At the group's position; a group that has none begins behind the last message."""
    ALWAYS_LATEST = "alwaysLatest"
    """Behind the last message, even if the group has a position: what was not read before is passed over."""

    @property
    def read_status(self) -> ReadStatus:
        """What a first registration tells the broker; later ones say ``STORED_OR_EARLIEST``."""
        return _READ_STATUSES[self]

    @classmethod
    def of(cls, name: "str | ConsumePosition") -> "ConsumePosition":
        """Return the position of this name.

        Raises:
            OptionError: there is none.
        """
        try:
            return cls(name)
        except ValueError:
            names = ", ".join(repr(position.value) for position in cls)
            raise bad_setting("consume_position", repr(name), f"one of {names}") from None


_READ_STATUSES: Final = {
    ConsumePosition.FIRST: ReadStatus.STORED_OR_EARLIEST,
    ConsumePosition.LATEST: ReadStatus.STORED_OR_LATEST,
    ConsumePosition.ALWAYS_LATEST: ReadStatus.LATEST_ALWAYS,
}


class ConsumerSettings(TypedDict, total=False):
    """The settings of ``ConsumerConfig`` as keyword arguments; what is left out is as in the client's."""

    consume_position: ConsumePosition | str
    confirm_timeout_ms: int
    rollback: bool
    ready_wait_ms: int
    not_found_wait_ms: int
    rebalance_wait_ms: int
    shutdown_wait_ms: int
    report_interval: int
    misses_before_pause: int
    pause_after_misses_ms: int
    confirm_locally: bool
    layout_period_ms: int


@answers_guesses
@dataclasses.dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a consumer waits, confirms and gives partitions up. The defaults are those of TubeMQ's clients.

    For example:

        settings = ConsumerConfig(confirm_timeout_ms=300_000).validate()
        client.group_consumer("clicks", settings=settings)
    """

    consume_position: ConsumePosition = setting(
        choice(ConsumePosition),
        "where a partition begins that the group has not read before",
        ConsumePosition.LATEST,
    )
    confirm_timeout_ms: int = setting(
        MILLISECONDS,
        "how long the user may take to confirm a batch. Then the booking ends, and the context is refused",
        60_000,
    )
    rollback: bool = setting(
        BOOLEAN,
        "whether a batch that was not confirmed in time counts as not consumed, so that it is served again. "
        "Otherwise it counts as consumed",
        default=True,
    )
    ready_wait_ms: int = setting(
        integer(WITHOUT_LIMIT, DAY_MS),
        "how long a fetch waits for a partition that can be read; -1: until there is one, 0: not at all",
        60_000,
    )
    not_found_wait_ms: int = setting(
        PAUSE_MS,
        "how long a partition rests after its end was reached, unless a flow control rule says otherwise",
        400,
    )
    rebalance_wait_ms: int = setting(
        PAUSE_MS,
        "how long a partition that is to be given up waits for the confirmation of its last batch",
        3_000,
    )
    shutdown_wait_ms: int = setting(
        PAUSE_MS, "how long closing a group consumer waits for a rebalance that is under way", 10_000
    )
    report_interval: int = setting(
        integer(1, 1_000),
        "after so many heartbeats without it, the next one tells the master which partitions the consumer "
        "has",
        6,
    )
    misses_before_pause: int = setting(
        integer(1, 1_000),
        "after so many heartbeats in a row that failed, the next one is sent after `pause_after_misses_ms`",
        5,
    )
    # Shorter than the 30 s after which a master forgets a member: TubeMQ's clients wait for 60 s, and lose
    # the registration by that.
    pause_after_misses_ms: int = setting(
        integer(0, 29_000), "that pause; without effect when `heartbeat_period_ms` is longer", 20_000
    )
    confirm_locally: bool = setting(
        BOOLEAN,
        "whether a confirmation goes out with the partition's next fetch, and not at once. It saves a "
        "request per batch; when a consumer is killed in between, its group reads the batch again",
        default=False,
    )
    layout_period_ms: int = setting(
        PAUSE_MS,
        "how often an assigned consumer asks the master at most where partitions are; in between it repeats "
        "the last answer",
        10_000,
    )

    def validate(self) -> Self:
        """Return the settings if they are valid.

        Raises:
            OptionError: one of them is not; the text names it.
        """
        require_fitting(self)
        return self


def with_settings(config: ConsumerConfig, changes: ConsumerSettings) -> ConsumerConfig:
    """Return settings with others in place of some of them."""
    values: dict[str, Any] = dict(changes)
    if "consume_position" in values:
        values["consume_position"] = ConsumePosition.of(values["consume_position"])
    return dataclasses.replace(config, **values)


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
    """Raise ``OptionError`` if no topic can have one of these names."""
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
