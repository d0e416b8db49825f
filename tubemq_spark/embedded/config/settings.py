"""What TubeMQ lets its operators choose, for an embedded TubeMQ."""

import dataclasses
from collections.abc import Mapping

from tubemq_spark.embedded.log.records import INDEX_ENTRY
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol.constants import DEFAULT_ADMIN_TOKEN
from tubemq_spark.settings.fields import bad_setting


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Times are in ms, sizes in bytes. The defaults are TubeMQ's unless stated otherwise."""

    lease_timeout_ms: int = 30_000
    """A partition becomes free when its consumer has been silent this long (consumerRegTimeoutMs)."""
    client_timeout_ms: int = 30_000
    """The same for clients at the master (producerHeartbeatTimeoutMs, consumerHeartbeatTimeoutMs)."""
    scan_period_ms: int = 1_000
    """How often to look for leases and clients that have timed out."""
    broker_timeout_ms: int = 30_000
    """How long the master still lists a broker that has fallen silent (brokerHeartbeatTimeoutMs; 25 s in the
    shipped configuration). After that, producers get no routes to it, consumers are told that it cannot be
    read, and server-balanced groups lose its partitions. Its address stays known."""
    broker_startup_ms: int = 0
    """How long a broker that is new, or returns after that, is not yet listed. In TubeMQ it takes 30 s until
    consumers see it, and another 5 s until producers do; here both see it at once."""

    transfer_bytes: int = 512 << 10
    """A fetch stops after the message that reaches this size (transferSize) ..."""
    first_transfer_bytes: int = 320 << 10
    """... and the first fetch after a register, after this one."""
    max_entries: int = 6_000
    """Index entries that a fetch examines, including those of other partitions."""

    data_segment_bytes: int = 1 << 30
    """The size at which a new data file is started (maxSegmentSize)."""
    index_segment_bytes: int = 700_000 * INDEX_ENTRY.size
    """The same for index files (maxIndexSegmentSize); a fetch never reads beyond one file."""
    flush_check_ms: int = 200
    """How often to check whether data has to be flushed."""
    offsets_save_ms: int = 1_000
    """How often to save committed offsets: a kill loses up to this much (TubeMQ: up to 11 s)."""
    retention_check_ms: int = 180_000
    """How often to delete files that are too old (logClearupDurationMs)."""

    query_priority: int = 303
    """The query priority of consumers that do not state one. 303: they see everything at once. TubeMQ's
    default is 301, with which consumers with a filter see messages only after they were flushed."""
    halving_quirk: bool = False
    """Whether a fetch examines only half of the entries, as TubeMQ does when it reads from files."""
    moving_404: bool = False
    """Answer 404 if a fetch passed entries but none was for the consumer, as TubeMQ does when it reads from
    memory; the position moves nevertheless."""

    update_consumer_offsets: bool = True
    """Move a group whose offset is beyond the end of a store to that end (updateConsumerOffsets)."""
    group_expiry_ms: int = 20 * 24 * 3_600_000
    """Forget the offsets of a group that has not moved for this long (grpOffsetStgExpMs)."""
    group_expiry_check_ms: int = 600_000
    """How often to look for such groups."""
    allowed_io_errors: int = 3
    """One more read error stops all reads, one more write error all writes: 503 (allowedReadIOExcptCnt,
    allowedWriteIOExcptCnt)."""
    max_unflushed_bytes: int = 0
    """Refuse messages (419) while a store has this many bytes that are not flushed, as TubeMQ does when its
    memory is full; 0: never. The store is flushed at the next ``flush_check_ms``."""

    balance_period_ms: int = 1_000
    """How often the master assigns partitions to server-balanced groups (consumerBalancePeriodMs; TubeMQ:
    60 s, 30 s in the shipped configuration)."""

    authenticate_producers: bool = False
    """Refuse (415) producers that do not authenticate, at the master and at brokers
    (startProduceAuthenticate)."""
    authenticate_consumers: bool = False
    """The same for consumers (startConsumeAuthenticate). TubeMQ's own Java consumers authenticate only when
    they are asked to, which is after they have registered: they cannot register at such a master."""
    users: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Passwords by user name, for producers or consumers that have to log in. Without any, the master only
    checks that there is a proof, and its time, as TubeMQ does without an authentication service of its
    operator."""
    check_visit_tokens: bool = False
    """Refuse (415) requests to a broker without a visit token of the master."""
    visit_token_period_ms: int = 0
    """How often the visit token changes (TubeMQ: every 4 minutes); 0: never."""
    tls: ServerTls | None = None
    """What the master and the brokers speak TLS with on their ports, instead of plain TCP; their web ports do
    not. (TubeMQ opens additional ports: tlsSetting.)"""
    admin_token: str = dataclasses.field(default=DEFAULT_ADMIN_TOKEN, repr=False)
    """The token that calls of the master's web API need to change something (confModAuthToken). A server that
    other machines can reach must have its own. Calls of a broker need none, as in TubeMQ."""

    def __post_init__(self) -> None:
        """Check what would otherwise have no effect."""
        if self.users and not (self.authenticate_producers or self.authenticate_consumers):
            raise bad_setting(
                "users",
                "given alone, which lets everybody in",
                "given with authenticate_producers=True, authenticate_consumers=True or both",
            )
