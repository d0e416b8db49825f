"""The client's settings, checked once and never changed."""

import dataclasses
from typing import Final

from tubemq_spark.client.consumer_config import ConsumerConfig
from tubemq_spark.client.partitioners import BuiltInPartitioner, CustomPartitioner, bad_partitioner
from tubemq_spark.client.settings import DAY_MS, Bounds, bad_setting, require_booleans, require_whole_numbers
from tubemq_spark.client.subscription import checked_types
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.names import GROUP_NAME, GROUP_NAME_RULE

DEFAULT_GROUP: Final = "tubemq_spark"
DEFAULT_READER_GROUPS: Final = 16
DEFAULT_DELIVERY_TIMEOUT_MS: Final = 120_000


@dataclasses.dataclass(frozen=True, slots=True)
class ClientConfig:
    """How to reach TubeMQ, and the limits of time and memory. Picklable; ``repr`` leaves out passwords."""

    masters: tuple[Endpoint, ...]
    group: str
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    tls: TlsConfig | None = None
    """How to speak TLS with masters and brokers; ``masters`` are then their TLS ports. None: without TLS."""
    rpc_timeout_ms: int = 10_000
    connect_timeout_ms: int = 3_000
    heartbeat_period_ms: int = 13_000
    register_attempts: int = 5
    register_retry_ms: int = 1_000
    reader_groups: tuple[str, ...] = ()
    """The groups under which partitions are leased for reading; by default ``<group>_r00`` to ``_r15``."""
    message_types: tuple[str, ...] = ()
    """Read only messages of these types; none means all. The master is told, since it may allow a group only
    some."""
    lease_wait_ms: int = 45_000
    """How long to wait for a free reader group; a dead reader's lease lives for 35 s with the settings TubeMQ
    ships (``consumerRegTimeoutMs``), and the first request after that is refused as well."""
    fetch_timeout_ms: int = 600_000
    """How long reading a range may make no progress before it fails, whatever the cause. Longer than a
    broker's restart: a range that is planned has to be read, or its query fails."""
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    """How long a message that a producer accepted may take until a broker has stored it, and how long a
    producer waits for its masters and for a topic's partitions. A broker that restarts accepts messages again
    after 35 s."""
    retry_ambiguous: bool = True
    """Whether a message that a broker may have stored, although it did not say so, is sent again. Otherwise
    it fails. What was certainly not stored is sent again in any case."""
    partitioner: BuiltInPartitioner | CustomPartitioner = BuiltInPartitioner.ROUND_ROBIN
    """How a producer chooses the partitions of messages that do not name one."""
    max_in_flight: int = 512
    """Messages a producer sends before it waits for an answer."""
    max_in_flight_bytes: int = 16 << 20
    linger_ms: int = 1
    """How long a message of a threaded producer may wait for others that are then sent together with it."""
    checksums: bool = False
    """Whether the receipts of a producer have checksums, which cost it time for each byte of a body."""
    consumer: ConsumerConfig = dataclasses.field(default_factory=ConsumerConfig)
    """The settings of group consumers and assigned consumers."""

    def __post_init__(self) -> None:
        if not self.reader_groups:
            object.__setattr__(self, "reader_groups", default_reader_groups(self.group))

    def validate(self) -> "ClientConfig":
        """Return the settings if they are valid.

        Raises:
            OptionError: one of them is not; the text names it.
        """
        if not self.masters:
            raise bad_setting("masters", "empty", "at least one address")
        for name in (self.group, *self.reader_groups):
            if not GROUP_NAME.fullmatch(name):
                raise bad_setting("group", repr(name), GROUP_NAME_RULE)
        if (self.username is None) != (self.password is None):
            raise bad_setting(
                "username", "given alone" if self.username else "missing", "given with the password"
            )
        require_whole_numbers(self, _BOUNDS)
        require_booleans(self, "retry_ambiguous", "checksums")
        if not isinstance(self.partitioner, BuiltInPartitioner) and not callable(
            getattr(self.partitioner, "choose", None)
        ):
            raise bad_partitioner(self.partitioner)
        if self.tls is not None:
            self.tls.validate()
        checked_types("all topics", self.message_types)
        self.consumer.validate()
        return self


def default_reader_groups(group: str, size: int = DEFAULT_READER_GROUPS) -> tuple[str, ...]:
    """Return the names ``<group>_r00``, ``<group>_r01`` and so on.

    They are few and fixed because a broker keeps an offset entry for every name for 20 days.
    """
    return tuple(f"{group}_r{number:02d}" for number in range(size))


_BOUNDS: Final[Bounds] = {
    "rpc_timeout_ms": (1, DAY_MS),
    "connect_timeout_ms": (1, DAY_MS),
    "heartbeat_period_ms": (1, DAY_MS),
    "register_attempts": (1, 1_000),
    "register_retry_ms": (0, DAY_MS),
    "lease_wait_ms": (0, DAY_MS),
    "fetch_timeout_ms": (1, DAY_MS),
    "delivery_timeout_ms": (1, DAY_MS),
    "max_in_flight": (1, (1 << 31) - 1),
    "linger_ms": (0, DAY_MS),
    "max_in_flight_bytes": (1, (1 << 63) - 1),
}
