"""How an embedded TubeMQ behaves where TubeMQ lets its operator choose."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from tubemq_spark.embedded.log.records import INDEX_ENTRY

DEFAULT_ADMIN_TOKEN: Final = "abc"  # noqa: S105  TubeMQ's own, known to everybody


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """Times in ms, sizes in bytes. The defaults are TubeMQ's where nothing else is said."""

    lease_timeout_ms: int = 30_000
    """A partition is free again when its consumer was not heard of for so long (consumerRegTimeoutMs)."""
    client_timeout_ms: int = 30_000
    """The master forgets a client after this (producerHeartbeatTimeoutMs, consumerHeartbeatTimeoutMs)."""
    scan_period_ms: int = 1_000
    """How often to look for leases and clients that have run out."""
    broker_timeout_ms: int = 30_000
    """The master lists a broker for so long after it fell silent (brokerHeartbeatTimeoutMs; as shipped
    25 s). Then producers get no routes to it, consumers are told that it cannot be read, and the partitions
    that the master balances are taken from their consumers. Its address stays known."""
    broker_startup_ms: int = 0
    """For so long a broker that comes back after that, or is new, is not listed yet. TubeMQ takes 30 s
    until consumers see it and 5 s more until producers do; here both see it at once."""

    transfer_bytes: int = 512 << 10
    """One fetch stops after the message that reaches this (transferSize) ..."""
    first_transfer_bytes: int = 320 << 10
    """... the first one after a register after this."""
    max_entries: int = 6_000
    """Index entries that one fetch looks at, those of other partitions too."""

    data_segment_bytes: int = 1 << 30
    """A data file that has reached this is followed by a new one (maxSegmentSize)."""
    index_segment_bytes: int = 700_000 * INDEX_ENTRY.size
    """The same for index files (maxIndexSegmentSize); a fetch never crosses the border."""
    flush_check_ms: int = 200
    """How often to look whether data have to be brought to the disk."""
    offsets_save_ms: int = 1_000
    """How often to write committed offsets to their file: a kill loses that much (TubeMQ: up to 11 s)."""
    retention_check_ms: int = 180_000
    """How often to delete files that are too old (logClearupDurationMs)."""

    query_priority: int = 303
    """What consumers see that do not say it themselves. 303: everything at once. TubeMQ's own default is
    301: with it filtered consumers see a message only after it was brought to the disk."""
    halving_quirk: bool = False
    """Let a fetch look at half of the entries only, as TubeMQ does when it reads from files."""
    moving_404: bool = False
    """Answer 404 where a fetch passed entries of which none is for the consumer, as TubeMQ does when it
    reads from memory; the position has moved all the same."""

    update_consumer_offsets: bool = True
    """Move a group that stands beyond the end of a store to that end (updateConsumerOffsets)."""
    group_expiry_ms: int = 20 * 24 * 3_600_000
    """Forget where a group stands when it has not moved for so long (grpOffsetStgExpMs)."""
    group_expiry_check_ms: int = 600_000
    """How often to look for such groups."""
    offset_history_period_ms: int = 60_000
    """How often to write where all groups stand into __offset_history__ (groupOffsetScanDurMs); 0: never."""
    allowed_io_errors: int = 3
    """One read error more stops all reads, one write error more all writes: 503 (allowedReadIOExcptCnt,
    allowedWriteIOExcptCnt)."""
    max_unflushed_bytes: int = 0
    """Refuse messages (419) while a store holds so many bytes that are not brought to the disk, as TubeMQ
    does when its memory is full; 0: never. The store is flushed at its next ``flush_check_ms``."""

    balance_period_ms: int = 1_000
    """How often the master deals partitions out to groups that it balances (consumerBalancePeriodMs;
    TubeMQ: 60 s, as shipped 30 s)."""

    authenticate_producers: bool = False
    """Refuse (415) producers that do not say who they are, at the master and at the broker
    (startProduceAuthenticate)."""
    authenticate_consumers: bool = False
    """The same for consumers (startConsumeAuthenticate). TubeMQ's own Java consumers say it only when they
    are asked to, which is after they have registered: they cannot register at such a master."""
    users: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Passwords by user name. With none the master looks at the presence and the time of a proof only,
    as TubeMQ does without an authentication centre of its operator's."""
    check_visit_tokens: bool = False
    """Refuse (415) requests to the broker without a token of the master."""
    visit_token_period_ms: int = 0
    """How often the token changes (TubeMQ: every 4 minutes); 0 for never."""
    admin_token: str = dataclasses.field(default=DEFAULT_ADMIN_TOKEN, repr=False)
    """What changing calls of the master's web API must carry (confModAuthToken). A server that other machines
    reach must have one of its own. The broker's calls need none, as in TubeMQ."""
