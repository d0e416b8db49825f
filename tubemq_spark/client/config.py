"""The client's settings, checked once and never changed; partitioners, and names of reader groups.

Reads hold partitions under the names of reader groups, which a consumer group whose position counts must not
have.
"""

import dataclasses
import enum
import functools
import logging
import re
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from tubemq_spark.client.consumer_config import ConsumerConfig, checked_types
from tubemq_spark.client.names.guesses import answers_guesses
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint, TopicPartition
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.notation import listed
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


class BuiltInPartitioner(enum.Enum):
    """How messages without key and partition are spread; the value is what users write.

    In both ways a message with a key goes to the partition of its key.

        client.producer(partitioner=BuiltInPartitioner.STICKY)
    """

    ROUND_ROBIN = "roundRobin"
    """The partitions take turns, of up to 32 messages."""
    STICKY = "sticky"
    """All go to one partition, until its broker fails or falls behind; then to the next."""


class CustomPartitioner(Protocol):
    """Chooses the partition of each message that does not name one.

    A producer calls it in the thread that sends, once for each message that it accepts, and again when a
    message has to be sent again, since its partition may not take messages any more. The threads that share
    a threaded producer may call it at the same time, and so may the producer's own. It must not use the
    producer. What it raises for a new message is raised by ``send``, and the message is not accepted; what it
    raises for an accepted message ends the producer.

        class First:
            def choose(self, topic, key, value, partitions, available):
                return available[0]

        client.producer(partitioner=First()).send("clicks", b"home")
    """

    def choose(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        partitions: Sequence[TopicPartition],
        available: Sequence[TopicPartition],
    ) -> TopicPartition:
        """Return one of ``partitions``.

        Args:
            topic: the message's topic.
            key: the message's key, if it has one.
            value: the message's body.
            partitions: those to which the topic can be published now, as the master says: at least one,
                sorted, the same object until they change.
            available: those of them whose brokers are not failing and not behind; at least one. To send
                equal keys to equal partitions, choose among ``partitions``.
        """


def built_in_partitioner(name: str) -> BuiltInPartitioner:
    """Return the partitioner that users write as this name."""
    try:
        return BuiltInPartitioner(name)
    except ValueError:
        raise bad_partitioner(name) from None


def bad_partitioner(value: object) -> OptionError:
    """Return the error about something that cannot choose partitions."""
    names = ", ".join(repr(partitioner.value) for partitioner in BuiltInPartitioner)
    rule = f"{names} or an object with a method choose"
    return bad_setting("partitioner", repr(value), rule)


logger = logging.getLogger(__name__)

DEFAULT_READER_GROUPS: Final = 16
_READER_NAME: Final = re.compile(r"(.+)_(?:r[0-9]{2,}|probe)")


def default_reader_groups(group: str, size: int = DEFAULT_READER_GROUPS) -> tuple[str, ...]:
    """Return the names ``<group>_r00``, ``<group>_r01`` and so on.

    They are few and fixed because a broker keeps an offset entry for every name for 20 days.
    """
    return tuple(f"{group}_r{number:02d}" for number in range(size))


def probe_group(group: str) -> str:
    """Return the name for questions that end at once."""
    return f"{group}_probe"


def group_of_reader(name: str) -> str | None:
    """Return the group whose reads use a name; None if it is not such a name."""
    match = _READER_NAME.fullmatch(name)
    return None if match is None else match[1]


def check_consumer_group(group: str, reader_groups: Collection[str]) -> None:
    """Check the name of a group whose position counts; reads would move that if they had the name too.

    A group that is named as reads of others are is good, and warned of once in the process: it may be older
    than this package, and need not meet such a read.
    """
    if group in reader_groups:
        raise OptionError("TUBEMQ_GROUP_OF_READERS", group=group, groups=listed(sorted(reader_groups)))
    _warn_of_reader_name(group)


@functools.lru_cache(maxsize=1024)
def _warn_of_reader_name(group: str) -> None:
    reader = group_of_reader(group)
    if reader is not None:
        logger.warning(
            "the consumer group '%s' is named like a reader group of '%s': queries and clients of the group "
            "'%s' take partitions from it and move its position; choose another name, unless there are none",
            group,
            reader,
            reader,
        )


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
