"""The settings of group consumers and assigned consumers, checked once and never changed.

How to reach the cluster, time-outs, heartbeats and registration are in ``ClientConfig``, which producers
share. Topics, filters and the start of a bound group are in ``Subscription``.
"""

import dataclasses
import enum
from typing import Any, Final, Self, TypedDict

from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.settings.fields import bad_setting, require_fitting, setting
from tubemq_spark.settings.kinds import BOOLEAN, DAY_MS, MILLISECONDS, PAUSE_MS, choice, integer

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
