"""Every option: what users may write, where it has an effect, and what the reference page says of it.

An option is a field of one of these dataclasses, or it sets a field of ``ClusterConfig``, ``ClientConfig`` or
``TlsConfig`` and stands in ``_CLUSTER``, ``_CLIENT`` or ``_TLS``. To add one, add that; then ``make docs``.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

from tubemq_spark.client.config import DEFAULT_READER_GROUPS, ClientConfig
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.offset_spec import TIMESTAMPS_EXAMPLE, Edge, OffsetSpec
from tubemq_spark.offsets.ranges import MOST_RANGES, MOST_ROWS
from tubemq_spark.offsets.subscription import (
    ASSIGN_EXAMPLE,
    Assignment,
    TopicPattern,
    Topics,
    TopicSubscription,
)
from tubemq_spark.options.option import (
    ASSIGNMENT,
    DURATION,
    FOLDER,
    PATTERN,
    Option,
    named,
    offset_spec,
    option,
    options_for,
    size,
    timestamp,
    timestamps_of,
    until,
)
from tubemq_spark.options.values import (
    ALL,
    BATCH,
    READS,
    READS_AND_VIEWS,
    STREAM,
    WRITES,
    MessageTime,
    Mode,
    NoMatch,
    OnError,
    OnReplayDiffers,
    ParseMode,
    PayloadFormat,
    TimestampSearch,
    ViewName,
    Visibility,
)
from tubemq_spark.settings.fields import settings_of
from tubemq_spark.settings.kinds import (
    BOOLEAN,
    DAY_MS,
    MAX_INT,
    MAX_LONG,
    PAUSE_MS,
    TIME_ZONE,
    TOPIC,
    TOPICS,
    choice,
    integer,
)

_GRAIN: Final = (
    "Times are compared by the minute. TubeMQ has no index of them: the place is found by looking here and "
    "there, see `timestampSearch`."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Subscribing:
    """What a read is about."""

    topics: tuple[str, ...] | None = option("subscribe", READS_AND_VIEWS, TOPICS)(
        "The topics to read, separated by commas. A read needs one of `subscribe`, `subscribePattern` and "
        "`assign`.",
        default_doc="required, or one of the next two",
    )
    pattern: str | None = option("subscribePattern", READS_AND_VIEWS, PATTERN)(
        "Read all topics whose whole names match this regular expression. A stream looks for new ones about "
        "every ten seconds, and reads them from their beginning. The topics are listed by the masters' "
        "administration API, see `tubemq.master.web`."
    )
    assigned: Assignment | None = option("assign", READS_AND_VIEWS, ASSIGNMENT)(
        f"Read only these partitions: JSON with a list of `brokerId:partitionId` for each topic, such as "
        f"`{ASSIGN_EXAMPLE}`. A partition that a stream did not read before begins at its earliest offset, "
        "also when the stream goes on with `subscribe` or `subscribePattern`."
    )
    view: ViewName = option(
        "view", READS_AND_VIEWS | {Mode.LOSSES_VIEW, Mode.RECEIPTS_VIEW}, choice(ViewName)
    )(
        "What a batch read returns: the `messages`, or a [view](../spark/views.md) of something else. A "
        "view refuses options that have no effect in it, and a stream refuses views.",
        ViewName.MESSAGES,
    )

    def subscription(self) -> TopicSubscription | None:
        """Return the subscription; None: no topic or partition is named."""
        if self.topics is not None:
            return Topics(self.topics)
        return self.assigned if self.pattern is None else TopicPattern(self.pattern)


@dataclasses.dataclass(frozen=True, slots=True)
class Positions:
    """Where a read begins and ends: a time for all goes before times for some, and both before offsets."""

    starting_offsets: OffsetSpec | None = option("startingOffsets", READS, offset_spec("startingOffsets"))(
        "Where a new query begins: `earliest`, `latest`, `group` (where `tubemq.group` stands, or at the "
        "beginning if it has no position), or [offsets as JSON](#offsets). A stream that has a checkpoint "
        "resumes from it instead, and partitions that appear later are read from their beginning. A batch "
        "read cannot begin at `latest`.",
        default_doc="`earliest` for a batch read, `latest` for a stream",
    )
    starting_timestamp: OffsetSpec | None = option(
        "startingTimestamp", READS, timestamp("startingTimestamp")
    )(
        "Where a new query begins: at the first record of this time or later. A time without a zone is UTC. "
        f"{_GRAIN} It takes precedence over the other two options that say where to begin."
    )
    starting_by_timestamp: OffsetSpec | None = option(
        "startingOffsetsByTimestamp", READS, timestamps_of("startingOffsetsByTimestamp")
    )(
        f"As `startingTimestamp` for each partition, such as `{TIMESTAMPS_EXAMPLE}`. It takes precedence "
        "over `startingOffsets`."
    )
    ending_offsets: OffsetSpec = option("endingOffsets", BATCH, offset_spec("endingOffsets"))(
        "Where a batch read ends: `latest` or [offsets as JSON](#offsets), but not `earliest`. `latest` is "
        "looked up once, at the first action on the DataFrame. A stream refuses this option.",
        Edge.LATEST,
    )
    ending_timestamp: OffsetSpec | None = option("endingTimestamp", BATCH, timestamp("endingTimestamp"))(
        "Where a batch read ends: before the first record of this time or later; at the end if there "
        "is none. A time without a zone is UTC. It takes precedence over the other two options that say "
        "where to end."
    )
    ending_by_timestamp: OffsetSpec | None = option(
        "endingOffsetsByTimestamp", BATCH, timestamps_of("endingOffsetsByTimestamp")
    )("As `endingTimestamp` for each partition. It takes precedence over `endingOffsets`.")

    def start(self, default: Edge) -> OffsetSpec:
        """Return where to begin."""
        return self.starting_timestamp or self.starting_by_timestamp or self.starting_offsets or default

    def end(self) -> OffsetSpec:
        """Return where a batch read ends."""
        return self.ending_timestamp or self.ending_by_timestamp or self.ending_offsets


def _message_time_zone() -> str:
    zone: str = option("messageTimeZone", READS | WRITES | {Mode.LAG_VIEW}, TIME_ZONE)(
        "The time zone of message times, which TubeMQ stores as text without one. The column `timestamp` is "
        "converted from them when reading, and to them when writing.",
        "UTC",
    )
    return zone


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a read needs, checked; picklable; safe to log."""

    cluster: ClusterConfig
    """How TubeMQ is reached."""
    subscription: TopicSubscription
    """What is read."""
    starting: OffsetSpec
    """Where a batch read or a new stream begins; a stream's checkpoint wins over it."""
    ending: OffsetSpec | None = None
    """Where a batch read ends; None for a stream."""
    no_match: NoMatch = option("startingOffsetsByTimestampStrategy", READS, choice(NoMatch))(
        "What to do if no record of a partition is of the time to begin at, or later: `error` fails, "
        "`latest` begins at the end.",
        NoMatch.ERROR,
    )
    timestamp_search: TimestampSearch = option("timestampSearch", READS, choice(TimestampSearch))(
        "How a read that begins or ends at a time finds its messages. `probe` looks into each partition here "
        "and there. Where message times rise, the range is exact to the minute. Where the looks see times go "
        "back, the range has twice as much to spare, and a warning says so: it then has messages of other "
        "times as well, and lacks only those that are farther out of order. `exact`, for batch reads, reads "
        "every message of the partitions and gives those whose `timestamp` is in the range, in any "
        "order; messages without a time are left out. See [ranges by "
        "time](../spark/reading.md#ranges-by-time).",
        TimestampSearch.PROBE,
    )
    wait_for_topics: bool = option("waitForTopics", STREAM, BOOLEAN)(
        "Whether a stream starts although a topic of `subscribe` or `assign` does not exist yet. It is read "
        "from its beginning once it is there. With `false` the query fails.",
        default=False,
    )
    until: OffsetSpec | None = option("availableNowUntil", STREAM, until("availableNowUntil"))(
        "Where a run of the trigger `availableNow` ends at the latest: before the first record of a time, in "
        "milliseconds since 1970, or at [offsets as JSON](#offsets). The place of a time is found as "
        "`timestampSearch=probe` says. The next run goes on from there, with a later end or with none. With "
        "any other trigger the query fails. See [a stretch of history](../spark/reading.md"
        "#a-stretch-of-history).",
        default_doc="where the topics end when the run begins",
    )
    max_offsets_per_trigger: int | None = option("maxOffsetsPerTrigger", STREAM, integer(1, MAX_LONG))(
        "The most rows in a micro-batch, divided among the topics' stores in proportion to their backlog. A "
        "share below one row is rounded up to one, so a micro-batch may exceed the limit by up to one row "
        "per store.",
        default_doc="no limit",
    )
    max_bytes_per_trigger: int | None = option("maxBytesPerTrigger", STREAM, size(MAX_LONG))(
        "About the most bytes in a micro-batch, values and attributes, such as `64m`; alone or with "
        "`maxOffsetsPerTrigger`, and divided in the same way. A broker does not say how large messages are, "
        "so the driver reads the first ones of what comes next, of each store, and takes the rest for as "
        "large: the limit is met as far as that is so. See [how "
        "precise](../guarantees/guarantees.md#limits-of-a-micro-batch).",
        default_doc="no limit",
    )
    min_offsets_per_trigger: int = option("minOffsetsPerTrigger", STREAM, integer(1, MAX_LONG))(
        "The fewest rows for which a micro-batch starts. While there are fewer, the stream waits for more, "
        "until `maxTriggerDelay` has passed since the last micro-batch. The first micro-batch of a run does "
        "not wait, and neither do the triggers `once` and `availableNow`.",
        0,
        default_doc="1",
    )
    max_trigger_delay_ms: int = option("maxTriggerDelay", STREAM, DURATION)(
        "How long `minOffsetsPerTrigger` may hold rows back.", 15 * 60_000
    )
    min_partitions: int | None = option("minPartitions", READS, integer(1, MAX_INT))(
        "How many tasks should read at least. When there are fewer ranges than that, long ones are cut in "
        "proportion, as Spark's Kafka source does; the number of tasks may differ a little by rounding. "
        "When there are more, so few of the short ones share a task that there are about as many tasks. "
        "Several tasks then read one partition under different reader groups, so there should be as many of "
        "those as tasks of one partition that run at once.",
        default_doc="one task for each range, or for several short ones",
    )
    max_records_per_partition: int | None = option("maxRecordsPerPartition", READS, integer(1, MAX_LONG))(
        "The most rows per task: longer ranges are cut. Where several partitions share a store, a task gets "
        "fewer, since the rows of all of them count.",
        default_doc="no limit",
    )
    max_ranges_per_task: int | None = option("maxRangesPerTask", READS, integer(1, MAX_INT))(
        "The most ranges that one task reads, one after the other. Only short ranges of one broker share a "
        "task; with `1` none do.",
        default_doc=f"{MOST_RANGES}, with at most {MOST_ROWS:,} rows together",
    )
    fail_on_data_loss: bool = option("failOnDataLoss", READS, BOOLEAN)(
        "Whether the query fails when records are damaged, or gone before they were read (retention, a "
        "broker that lost its log). With `false` they are skipped, and a warning says which.",
        default=True,
    )
    visibility: Visibility = option("visibility", READS, choice(Visibility))(
        "How far a query reads. A broker acknowledges messages from memory, and writes them to its disk "
        "some seconds later: a crash takes what is only in memory, also what was read from there, and "
        "[gives its offsets to other messages](../guarantees/guarantees.md#what-tubemq-itself-can-lose). "
        "`flushed` leaves messages alone until they are on the disk; `latest` is the end of what is there.",
        Visibility.MEMORY,
    )
    loss_ledger: FolderUri | None = option("lossLedger", READS | {Mode.LOSSES_VIEW}, FOLDER)(
        "A folder in which to write down, once, each gap that `failOnDataLoss=false` passes over, see [the "
        "ledger of losses](../guarantees/guarantees.md#the-ledger-of-losses). The driver and all executors "
        "must be able to write to it; if one cannot, the query fails. With `failOnDataLoss=true` nothing is "
        "passed over, so it has no effect. Credentials in a URI are not shown. The view `losses` reads this "
        "folder."
    )
    commit_to_group: bool = option("commitOffsetsToGroup", STREAM, BOOLEAN)(
        "Whether a stream moves `tubemq.group`, which must be named, to the end of each finished "
        "micro-batch, so that TubeMQ's own tools show its progress. Nothing is read from there: the "
        "checkpoint holds the offsets. What cannot be moved is logged, and tried again with the next "
        "micro-batch.",
        default=False,
    )
    include_attributes: bool = option("includeAttributes", READS, BOOLEAN)(
        "Whether rows have the column `attributes`, a map of all attributes of a message. Naming the column "
        "in `.schema(...)` has the same effect.",
        default=False,
    )
    payload: PayloadFormat = option("payload", READS, choice(PayloadFormat))(
        "What the bodies of messages are. `raw` gives them as they are. `inlong` unpacks what InLong's data "
        "proxies packed: [each message in a body is a row](../spark/inlong.md). Offsets and limits count "
        "bodies all the same.",
        PayloadFormat.RAW,
    )
    parse_mode: ParseMode = option("mode", READS, choice(ParseMode))(
        "With `payload=inlong`: what becomes of a malformed body. `PERMISSIVE` gives a row that has it in "
        "the column `_corrupt_record`, `DROPMALFORMED` gives none, and `FAILFAST` fails the query.",
        ParseMode.PERMISSIVE,
    )
    message_time_zone: str = _message_time_zone()
    offset_fetch_attempts: int = option("fetchOffset.numRetries", READS, integer(1, 1000))(
        "How many times the driver asks for the topics' partitions and offsets before the query fails, once "
        "a master has answered. The default lasts long enough for a broker to restart.",
        30,
    )
    offset_fetch_retry_ms: int = option("fetchOffset.retryIntervalMs", READS, PAUSE_MS)(
        "How long the driver waits before it asks again, in milliseconds.", 1000
    )
    # With what a micro-batch takes after a quiet minute it comes within 2.5 s, and a store is asked less than
    # once a second: each look takes two requests.
    max_idle_interval_ms: int = option("fetchOffset.maxIdleIntervalMs", STREAM, integer(20, DAY_MS))(
        "A stream that has found nothing new for a while asks its brokers less and less often, down to once "
        "in this many milliseconds. The first record after a quiet time is found that much later at most; a "
        "smaller value finds it earlier and costs more requests.",
        1800,
    )

    @property
    def if_no_record(self) -> Edge | None:
        """Where a query begins if no record is of the time to begin at; None is an error."""
        return Edge.LATEST if self.no_match is NoMatch.LATEST else None


@dataclasses.dataclass(frozen=True, slots=True)
class ViewOptions:
    """Everything a view needs, checked; picklable; safe to log."""

    cluster: ClusterConfig
    """How TubeMQ is reached; a view waits for no broker longer than for one answer."""
    subscription: TopicSubscription | None = None
    """The topics or partitions that the view is about; None where the user need not say."""
    group: str | None = None
    """The consumer group that the view is about; None where it is about none, or about all."""
    checkpoint: FolderUri | None = option("checkpointLocation", {Mode.LAG_VIEW}, FOLDER, sparks_own=True)(
        "The checkpoint of the streaming query that the view `lag` is about, as in its `writeStream`. The "
        "driver reads it with Arrow's file systems, not with Hadoop's."
    )
    message_time_zone: str = _message_time_zone()
    columns: frozenset[str] | None = None
    """The columns of the user's schema; None for all."""

    def wants(self, *columns: str) -> bool:
        """Tell whether the schema has one of these columns: what none needs is not asked for."""
        return self.columns is None or not self.columns.isdisjoint(columns)


@dataclasses.dataclass(frozen=True, slots=True)
class LossesOptions:
    """Everything the view of losses needs, checked; picklable; safe to log."""

    ledger: FolderUri
    """Where losses were written down."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReceiptsOptions:
    """Everything the view of receipts needs, checked; picklable; safe to log."""

    folder: FolderUri
    """Where manifests are."""


@dataclasses.dataclass(frozen=True, slots=True)
class WriteOptions:
    """Everything a write needs, checked; picklable; safe to log."""

    cluster: ClusterConfig
    """How TubeMQ is reached."""
    topic: str | None = option("topic", WRITES, TOPIC)(
        "The topic that all rows go to. It takes precedence over the column `topic`.",
        default_doc="each row's column `topic`",
    )
    message_time: MessageTime = option("messageTime", WRITES, choice(MessageTime))(
        "The message time of rows without `timestamp`: `now` gives them the time of writing, `column` gives "
        "them none, and `none` leaves it out of all rows. A TubeMQ broker with auditing enabled stores a "
        "message without it, but then reports a failure, so the message is sent again. The time counts 22 "
        "bytes towards a message's size limit.",
        MessageTime.NOW,
    )
    message_time_zone: str = _message_time_zone()
    dead_letter_topic: str | None = option("deadLetterTopic", WRITES, TOPIC)(
        "The topic of dead letters. A dead letter is the row's value; its attributes tell the reason and "
        "where the row was. Allow the topic longer messages than the others: a row that is too long is a "
        "dead letter as well."
    )
    stamp_message_uid: bool = option("stampMessageUid", WRITES, BOOLEAN)(
        "Whether each row gets an id that stays the same however often the row is sent, as the attribute "
        "`messageUid`. Readers drop repeats by it. A row that has an id already, in its column `messageUid` "
        "or among its attributes, keeps that one.",
        default=False,
        default_doc="true with `receiptsPath`, otherwise false",
    )
    receipts_path: FolderUri | None = option("receiptsPath", WRITES | {Mode.RECEIPTS_VIEW}, FOLDER)(
        "A folder for [manifests](../spark/receipts.md): a small file per micro-batch or batch write that "
        "says where its rows are stored, with counts and checksums. A micro-batch of a streaming write that "
        "has a manifest is not sent again. The driver must be able to write to the folder, and all "
        "executors to read it; if one cannot, the query fails. Credentials in a URI are not shown. The view "
        "`receipts` and the command `tubemq-spark receipts verify` read this folder."
    )
    on_replay_differs: OnReplayDiffers = option("onReplayDiffers", WRITES, choice(OnReplayDiffers))(
        "With `receiptsPath`: what to do if a micro-batch that is not sent again now has other rows than its "
        "manifest tells of. `fail` ends the query: usually its checkpoint was restored, and to send nothing "
        "would lose these rows. `keep` is for queries that do not give the same rows each time: it goes on, "
        "with a warning, and TubeMQ has the rows of the first time only. See [a micro-batch that is "
        "repeated](../spark/receipts.md#a-micro-batch-that-is-repeated).",
        OnReplayDiffers.FAIL,
    )
    shown: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)
    """The options that the user gave, as they are shown to others; of the connection's only the masters."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """What decides how other options are understood."""

    on_error: OnError = option("onError", WRITES, choice(OnError))(
        "What becomes of a row that cannot be written, because of its value, length, topic, partition, time "
        "or attributes: `fail` fails its task, `deadLetter` sends it to `deadLetterTopic` and goes on.",
        OnError.FAIL,
    )
    tls: bool = option("tubemq.tls.enabled", ALL, BOOLEAN)(
        "Whether masters and brokers are reached over TLS. `tubemq.master.servers` then names TLS ports, "
        "and the masters tell those of the brokers. Certificates are always verified. See "
        "[Security](../spark/security.md).",
        default=False,
    )
    reader_groups: int = option("readerGroups.size", READS_AND_VIEWS, integer(1, 256))(
        "How many reader groups to use when `readerGroups` does not name them.", DEFAULT_READER_GROUPS
    )


_CLUSTER: Final = options_for(
    ClusterConfig,
    gateways=named(
        "tubemq.gateway.servers",
        ALL,
        "Driver and executors then connect to them only. When one is away, the next one is used. The "
        "options `tubemq.tls.*` are then about these connections. The default port is 11911. See "
        "[Gateway](../gateway/gateway.md).",
        default_doc="none: masters and brokers are reached directly",
    ),
    gateway_token=named(
        "tubemq.gateway.token", ALL, "Needs `tubemq.tls.enabled`. It does not appear in logs or messages."
    ),
    web=named(
        "tubemq.master.web",
        READS_AND_VIEWS,
        "`subscribePattern` needs it. To begin at `earliest` in more than 16 stores, it is asked, and then "
        "the API of the brokers, of which stores retention took data; without an answer the driver reads "
        "the first records of each store instead. The default port is 8080.",
        default_doc="the hosts of `tubemq.master.servers`, port 8080 or 8780 (an embedded server's)",
    ),
)
_TLS: Final = options_for(
    TlsConfig,
    ca_file=named(
        "tubemq.tls.caFile",
        ALL,
        "This file and the next two must exist under the same path on the driver and on every executor.",
        default_doc="the CAs that the system trusts",
    ),
    cert_file=named("tubemq.tls.certFile", ALL),
    key_file=named("tubemq.tls.keyFile", ALL, default_doc="the file of the certificate"),
    key_password=named("tubemq.tls.keyPassword", ALL, "It does not appear in logs or messages."),
    server_name=named("tubemq.tls.serverName", ALL, default_doc="each server's host"),
    min_version=named("tubemq.tls.minVersion", ALL),
)
_CLIENT: Final = options_for(
    ClientConfig,
    masters=named(
        "tubemq.master.servers",
        ALL,
        "The default port is 8715, or 8716 with `tubemq.tls.enabled`. Not needed with "
        "`tubemq.gateway.servers`.",
        example="10.1.2.3:8715,10.1.2.4:8715",
    ),
    group=named(
        "tubemq.group",
        ALL,
        "Its position is neither used nor moved, unless `startingOffsets=group` or `commitOffsetsToGroup` "
        "say so: Spark's checkpoint holds the offsets. Queries that read different topics should use "
        "different groups. TubeMQ's producers have no group, so a write does not use it. Where its position "
        "counts it must not be one of the `readerGroups`, and should not be named as those of another group "
        "are (`etl_r00`, `etl_probe`).",
        default_doc="`tubemq_spark` and the topics, such as `tubemq_spark-demo`",
    ),
    username=named("tubemq.username", ALL, "Needs `tubemq.password`."),
    password=named(
        "tubemq.password",
        ALL,
        "A gateway gets the password itself, over TLS, since it logs in with it. It does not appear in logs "
        "or messages.",
    ),
    rpc_timeout_ms=named("tubemq.rpcTimeoutMs", ALL),
    connect_timeout_ms=named("tubemq.connectTimeoutMs", ALL),
    fetch_timeout_ms=named("tubemq.fetchTimeoutMs", READS),
    reader_groups=named(
        "readerGroups",
        READS_AND_VIEWS,
        default_doc="the group's name followed by `_r00`, `_r01` and so on, and by `_probe` for questions "
        "where stores end",
    ),
    message_types=named(
        "messageTypes",
        READS,
        "The column `offset` is then null.",
        default_doc="all, and those without a type",
    ),
    delivery_timeout_ms=named("deliveryTimeoutMs", WRITES, "In a write its task fails with it."),
    retry_ambiguous=named(
        "retryAmbiguous",
        WRITES,
        "In a write its task fails with it. Spark repeats a failed task with all its rows: set "
        "`spark.task.maxFailures` to 1 and turn speculation off as well, or have repeats removed downstream.",
    ),
    keep_order=named("keepOrder", WRITES, "It is the order of rows within a task."),
    partitioner=named(
        "partitioner", WRITES, "Rows with `key`, or with `brokerId` and `partition`, go where these say."
    ),
    max_in_flight=named(
        "tubemq.sendWindowMessages", WRITES, "Each task has one.", kind=integer(1, 1_000_000)
    ),
    max_in_flight_bytes=named(
        "tubemq.sendWindowBytes", WRITES, "Each task has one.", kind=integer(1, MAX_INT)
    ),
)

FIELDS: Final[Mapping[type, Mapping[str, Option]]] = {
    **{
        owner: {
            field: declared for field, declared in settings_of(owner).items() if isinstance(declared, Option)
        }
        for owner in (Subscribing, Positions, ReadOptions, ViewOptions, WriteOptions, Choices)
    },
    ClusterConfig: _CLUSTER,
    ClientConfig: _CLIENT,
    TlsConfig: _TLS,
}
"""The options by the dataclass whose fields they set."""

NAMED: Final[Mapping[str, Option]] = {
    declared.name: declared for options in FIELDS.values() for declared in options.values()
}
"""The options by name, in the order of the reference page."""
