"""The client's settings, checked once and never changed."""

import dataclasses
from collections.abc import Sequence
from typing import Final

from tubemq_spark.client.consumer_config import ConsumerConfig
from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.client.names.readers import default_reader_groups, probe_group
from tubemq_spark.client.partitioners import BuiltInPartitioner, CustomPartitioner, bad_partitioner
from tubemq_spark.client.subscription import checked_types
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import GROUP_NAME, GROUP_NAME_RULE, USUAL_WEB_PORTS, is_encodable
from tubemq_spark.settings.fields import bad_setting, require_fitting, setting
from tubemq_spark.settings.kinds import (
    BOOLEAN,
    GROUP,
    GROUPS,
    MASTERS,
    MAX_INT,
    MAX_LONG,
    MESSAGE_TYPES,
    MILLISECONDS,
    PAUSE_MS,
    TIME_ZONE,
    VERBATIM,
    choice,
    integer,
)

DEFAULT_GROUP: Final = "tubemq_spark"
DEFAULT_DELIVERY_TIMEOUT_MS: Final = 120_000


@answers_guesses
@dataclasses.dataclass(frozen=True, slots=True)
class ClientConfig:
    """How to reach TubeMQ, and the limits of time and memory. Picklable; ``repr`` leaves out passwords.

    For example:

        masters = (Endpoint.parse("10.1.2.3:8715"),)
        client = TubeMQClient(ClientConfig(masters, group="etl", linger_ms=5).validate())
    """

    masters: tuple[Endpoint, ...] = setting(
        MASTERS, "the masters of the TubeMQ cluster, the active one of which is found automatically"
    )
    group: str = setting(GROUP, "the consumer group, for the cluster's access control and monitoring")
    username: str | None = setting(VERBATIM, "the user's name, for clusters that require a login", None)
    password: str | None = setting(
        VERBATIM, "the user's password. Only a signature made with it is sent", None, secret=True
    )
    tls: TlsConfig | None = None
    """How to speak TLS with masters and brokers; ``masters`` are then their TLS ports. None: without TLS."""
    rpc_timeout_ms: int = setting(
        MILLISECONDS, "how long a master or a broker may take to answer a request, in milliseconds", 10_000
    )
    connect_timeout_ms: int = setting(
        MILLISECONDS, "how long connecting to a server may take, in milliseconds", 3_000
    )
    # Shorter than the 30 s after which masters forget a client, and brokers its leases.
    heartbeat_period_ms: int = setting(
        integer(1, 29_000), "how often masters and brokers get a heartbeat", 13_000
    )
    register_attempts: int = setting(integer(1, 1_000), "how often a registration is tried", 5)
    register_retry_ms: int = setting(PAUSE_MS, "the pause before the next try", 1_000)
    reader_groups: tuple[str, ...] = setting(
        GROUPS,
        "the groups under which tasks read. A broker lets only one client of a group read a partition at a "
        "time; with several groups, retried tasks and other queries need not wait. Name them if the cluster "
        "admits only groups that it knows",
        (),
    )
    message_types: tuple[str, ...] = setting(
        MESSAGE_TYPES,
        "read only messages of these types. Brokers leave out the others; offsets and limits count them all "
        "the same",
        (),
    )
    # A dead reader's lease lives for 35 s with the settings TubeMQ ships (consumerRegTimeoutMs), and the
    # first request after that is refused as well.
    lease_wait_ms: int = setting(PAUSE_MS, "how long to wait for a free reader group", 45_000)
    # Longer than a broker's restart: a range that is planned has to be read, or its query fails.
    fetch_timeout_ms: int = setting(
        MILLISECONDS,
        "how long a read may make no progress, for any reason, before it fails, in milliseconds. A broker "
        "that is away is waited for that long",
        600_000,
    )
    delivery_timeout_ms: int = setting(
        MILLISECONDS,
        "how long a message may take until a broker has stored it, in milliseconds, counting all that goes "
        "wrong on the way: brokers or masters that are away, refuse or do not answer, topics that cannot be "
        "published to. Then it fails. A broker that restarts can be written to again after about 35 s",
        DEFAULT_DELIVERY_TIMEOUT_MS,
    )
    retry_ambiguous: bool = setting(
        BOOLEAN,
        "whether a message that may be stored although no broker said so is sent again: its answer was "
        "lost, did not come in time, or told of a failure while storing. Sending it again may store it "
        "twice, and loses none. With `false` it fails instead (`TUBEMQ_SEND_FAILED.AMBIGUOUS`); what was "
        "certainly not stored is sent again all the same",
        default=True,
    )
    keep_order: bool = setting(
        BOOLEAN,
        "whether a partition has the messages of a producer in the order of sending also when one had to be "
        "sent again. Each partition then has one message under way at a time, so a producer is slower, "
        "and a message with a key stays in the partition that was chosen for it. Messages without key and "
        "partition are not ordered",
        default=False,
    )
    partitioner: BuiltInPartitioner | CustomPartitioner = setting(
        choice(BuiltInPartitioner),
        "how messages without a key and without a partition are spread: with `roundRobin` the partitions "
        "take turns, of up to 32 messages; with `sticky` a producer sends to one partition, until its "
        "broker fails or falls behind, and then to the next",
        BuiltInPartitioner.ROUND_ROBIN,
    )
    max_in_flight: int = setting(
        integer(1, MAX_INT),
        "how many messages a producer may have in flight, without those that wait for a broker that does not "
        "answer",
        512,
    )
    max_in_flight_bytes: int = setting(
        integer(1, MAX_LONG),
        "how many bytes of messages a producer may have in flight; an equal share of them may wait for a "
        "broker that does not answer",
        16 << 20,
    )
    linger_ms: int = setting(
        PAUSE_MS,
        "how long a message of a producer may wait for others that are then sent together with it",
        1,
    )
    stamp_message_time: bool = setting(
        BOOLEAN,
        "whether a message of a producer that is given no time gets that of sending. Without times, a topic "
        "cannot be read by time. The time counts 22 bytes towards a message's size limit",
        default=True,
    )
    message_time_zone: str = setting(
        TIME_ZONE, "the time zone in which the time of sending is written: the one that readers assume", "UTC"
    )
    checksums: bool = setting(
        BOOLEAN,
        "whether the receipts of a producer have checksums, which cost it time for each byte of a body",
        default=False,
    )
    consumer: ConsumerConfig = dataclasses.field(default_factory=ConsumerConfig)
    """The settings of group consumers and assigned consumers."""

    def __post_init__(self) -> None:
        if not self.reader_groups:
            object.__setattr__(self, "reader_groups", default_reader_groups(self.group))

    @property
    def probe_groups(self) -> tuple[str, ...]:
        """The groups for questions that end at once: one that no reader takes comes before the reader groups.

        Reader groups that the user has named are all there are: the cluster may admit no others.
        """
        groups = self.reader_groups
        named = groups != default_reader_groups(self.group, len(groups))
        return groups if named else (probe_group(self.group), *groups)

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
        for name, text in (("username", self.username), ("password", self.password)):
            if text is not None and not is_encodable(text):
                raise bad_setting(name, "bytes that are no text", VERBATIM.expected)
        require_fitting(self, apart_from=_WITH_RULES)
        if not isinstance(self.partitioner, BuiltInPartitioner) and not callable(
            getattr(self.partitioner, "choose", None)
        ):
            raise bad_partitioner(self.partitioner)
        if self.tls is not None:
            self.tls.validate()
        checked_types("all topics", self.message_types)
        self.consumer.validate()
        return self


_WITH_RULES: Final = frozenset(
    {"masters", "group", "username", "password", "reader_groups", "message_types", "partitioner"}
)
"""The settings that ``validate`` checks one by one."""


def usual_web_servers(masters: Sequence[Endpoint]) -> tuple[Endpoint, ...]:
    """Return where masters may serve their administration API, first where TubeMQ does as shipped."""
    return tuple(Endpoint(master.host, port) for port in USUAL_WEB_PORTS for master in masters)
