"""The one table of options: what users may write, where it has an effect, and what else is said about it.

The parser, the reference page (docs/reference/options.md) and the "did you mean" come from here. A new option
is a constant, its line in ``TABLE``, and a field of ``ReadOptions`` or ``WriteOptions`` that ``parsed.py``
fills; then ``make docs``.
"""

import dataclasses
import enum
from typing import Any, Final, Generic, TypeVar

from tubemq_spark.client.config import DEFAULT_READER_GROUPS, ClientConfig
from tubemq_spark.client.partitioners import BuiltInPartitioner
from tubemq_spark.errors import OptionError
from tubemq_spark.net.tls import TlsConfig, TlsVersion
from tubemq_spark.offsets.grouping import MOST_RANGES, MOST_ROWS
from tubemq_spark.offsets.offset_spec import TIMESTAMPS_EXAMPLE, Edge
from tubemq_spark.offsets.subscription import ASSIGN_EXAMPLE
from tubemq_spark.options.kinds import (
    ASSIGNMENT,
    BOOLEAN,
    DURATION,
    FOLDER,
    GATEWAY_SERVERS,
    GROUP,
    GROUPS,
    HOST,
    MESSAGE_TYPES,
    PATH,
    PATTERN,
    SERVERS,
    TIME_ZONE,
    TIMESTAMP,
    TOPIC,
    TOPICS,
    VERBATIM,
    WEB_SERVERS,
    Kind,
    choice,
    integer,
    offset_spec,
    size,
    timestamps_of,
)
from tubemq_spark.settings.suggest import did_you_mean

T = TypeVar("T")

_DAY_MS: Final = 86_400_000
_MAX_LONG: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1
_CLIENT: Final = ClientConfig(masters=(), group="defaults")
"""Where the client's own defaults are read from, so that they are written once."""
_HIDDEN: Final = "***"


class Mode(enum.Enum):
    """What Spark does with the source; the value names it in messages."""

    BATCH_READ = "a batch read"
    STREAM_READ = "a streaming read"
    WRITE = "a write"
    PARTITIONS_VIEW = "the view 'partitions'"
    LAG_VIEW = "the view 'lag'"
    GROUPS_VIEW = "the view 'groups'"
    LOSSES_VIEW = "the view 'losses'"
    RECEIPTS_VIEW = "the view 'receipts'"


class View(enum.Enum):
    """What a batch read has in its rows; the value is what users write."""

    MESSAGES = "messages"
    PARTITIONS = "partitions"
    LAG = "lag"
    GROUPS = "groups"
    LOSSES = "losses"
    RECEIPTS = "receipts"

    @property
    def mode(self) -> Mode:
        """What Spark does when it reads this view."""
        return _MODES[self]


_MODES: Final = {
    View.MESSAGES: Mode.BATCH_READ,
    View.PARTITIONS: Mode.PARTITIONS_VIEW,
    View.LAG: Mode.LAG_VIEW,
    View.GROUPS: Mode.GROUPS_VIEW,
    View.LOSSES: Mode.LOSSES_VIEW,
    View.RECEIPTS: Mode.RECEIPTS_VIEW,
}


class MessageTime(enum.Enum):
    """Which message time the sink gives a row; the value is what users write."""

    NOW = "now"
    """That of the row, or else the time of writing."""
    COLUMN = "column"
    """That of the row, or else none."""
    NONE = "none"
    """None, whatever the row has."""


class OnError(enum.Enum):
    """What becomes of a row that cannot be written; the value is what users write."""

    FAIL = "fail"
    """Its task fails."""
    DEAD_LETTER = "deadLetter"
    """It goes to another topic, with the reason."""


class Visibility(enum.Enum):
    """How far a query reads; the value is what users write."""

    MEMORY = "memory"
    """Up to what a broker has acknowledged last."""
    FLUSHED = "flushed"
    """Up to what is on the broker's disk."""


class NoMatch(enum.Enum):
    """What to do where no record is of the time to begin at; the value is what users write."""

    ERROR = "error"
    LATEST = "latest"


class PayloadFormat(enum.Enum):
    """What bodies of messages are; the value is what users write."""

    RAW = "raw"
    """Anything: a row has a body as it is."""
    INLONG = "inlong"
    """Containers of InLong: each message in them is a row."""


class ParseMode(enum.Enum):
    """What becomes of a malformed body; names and meanings are those of Spark's own formats."""

    PERMISSIVE = "PERMISSIVE"
    """A row that has the body in the column ``_corrupt_record``."""
    DROPMALFORMED = "DROPMALFORMED"
    """No row."""
    FAILFAST = "FAILFAST"
    """The query fails."""


_GRAIN: Final = (
    "TubeMQ has no index of times: the place is found by reading here and there, and is exact to a minute, "
    "as far as producers set the time and their messages are in its order."
)
_READS: Final = frozenset({Mode.BATCH_READ, Mode.STREAM_READ})
_WRITES: Final = frozenset({Mode.WRITE})
CLUSTER_VIEWS: Final = frozenset({Mode.PARTITIONS_VIEW, Mode.LAG_VIEW, Mode.GROUPS_VIEW})
"""The views that ask the cluster."""
_SUBSCRIBERS: Final = _READS | {Mode.PARTITIONS_VIEW, Mode.LAG_VIEW, Mode.GROUPS_VIEW}
"""What is about some topics."""
MUST_SUBSCRIBE: Final = _READS | {Mode.PARTITIONS_VIEW}
"""What must be told which topics."""
_ALL: Final = _READS | _WRITES | CLUSTER_VIEWS


@dataclasses.dataclass(frozen=True, slots=True)
class OptionSpec(Generic[T]):
    """One option: a row of the table."""

    name: str
    """As users write it; Spark does not keep the case."""
    kind: Kind[T]
    modes: frozenset[Mode]
    """Where it has an effect."""
    doc: str
    """What it does, for the reference page; Markdown."""
    default: T | None = None
    default_doc: str = ""
    """The default in words, where it is not just ``default``."""
    example: str = ""
    """For the error when it is missing; such an option is required wherever it has an effect."""
    secret: bool = False
    """Never shown."""
    sparks_own: bool = False
    """Whether Spark passes it on to a sink too, where it has no effect and that is no mistake."""

    def read(self, text: str) -> T:
        """Make a value of the user's text.

        Raises:
            OptionError: the text is not what the option's kind expects.
            OffsetFormatError: the text is not an offset spec.
        """
        value = self.kind.parse(text)
        if value is None:
            shown = _HIDDEN if self.secret else self.kind.shown(text)
            expected = self.kind.expected_instead_of(text)
            raise OptionError("TUBEMQ_OPTION_VALUE", option=self.name, value=shown, expected=expected)
        return value

    def show(self, value: T) -> str:
        """Return a value as text that is safe to log."""
        return _HIDDEN if self.secret else self.kind.show(value)


MASTERS: Final = OptionSpec(
    "tubemq.master.servers",
    SERVERS,
    _ALL,
    "The masters of the TubeMQ cluster. The active one is found automatically. The default port is 8715, or "
    "8716 with `tubemq.tls.enabled`. Not needed with `tubemq.gateway.servers`.",
    example="10.1.2.3:8715,10.1.2.4:8715",
)
GATEWAYS: Final = OptionSpec(
    "tubemq.gateway.servers",
    GATEWAY_SERVERS,
    _ALL,
    "Gateways to go through, in place of `tubemq.master.servers`: driver and executors then connect to them "
    "only. When one is away, the next one is used. The options `tubemq.tls.*` are then about these "
    "connections. The default port is 11911. See [Gateway](../gateway/gateway.md).",
    default_doc="none: masters and brokers are reached directly",
)
GATEWAY_TOKEN: Final = OptionSpec(
    "tubemq.gateway.token",
    VERBATIM,
    _ALL,
    "The token that shows gateways who calls, where they demand one; needs `tubemq.tls.enabled`. It does not "
    "appear in logs or messages.",
    secret=True,
    default_doc="none",
)
MASTER_WEB: Final = OptionSpec(
    "tubemq.master.web",
    WEB_SERVERS,
    _READS | CLUSTER_VIEWS,
    "Where the masters serve their administration API over HTTP, which `subscribePattern` needs. The default "
    "port is 8080.",
    default_doc="the hosts of `tubemq.master.servers`, port 8080",
)
GROUP_NAME: Final = OptionSpec(
    "tubemq.group",
    GROUP,
    _ALL,
    "The consumer group, for the cluster's access control and monitoring. Its position is neither used nor "
    "moved, unless `startingOffsets=group` or `commitOffsetsToGroup` say so: Spark's checkpoint holds the "
    "offsets. Queries that read different topics should use different "
    "groups. TubeMQ's producers have no group, so a write does not use it.",
    default_doc="`tubemq_spark` and the topics, such as `tubemq_spark-demo`",
)
USERNAME: Final = OptionSpec(
    "tubemq.username",
    VERBATIM,
    _ALL,
    "The user's name, for clusters that require a login; needs `tubemq.password`.",
)
PASSWORD: Final = OptionSpec(
    "tubemq.password",
    VERBATIM,
    _ALL,
    "The user's password. Only a signature made with it is sent, but to a gateway the password itself, over "
    "TLS, since the gateway logs in with it. It does not appear in logs or messages.",
    secret=True,
)
TLS: Final = OptionSpec(
    "tubemq.tls.enabled",
    BOOLEAN,
    _ALL,
    "Whether masters and brokers are reached over TLS. `tubemq.master.servers` then names TLS ports, and the "
    "masters tell those of the brokers. Certificates are always verified. "
    "See [Security](../spark/security.md).",
    default=False,
)
TLS_CA: Final = OptionSpec(
    "tubemq.tls.caFile",
    PATH,
    _ALL,
    "The certificates of the CAs that issued those of the servers, in PEM. This file and the next two must "
    "exist under the same path on the driver and on every executor.",
    default_doc="the CAs that the system trusts",
)
TLS_CERT: Final = OptionSpec(
    "tubemq.tls.certFile",
    PATH,
    _ALL,
    "The certificate to show to servers that ask for one (mutual TLS), in PEM, followed by its chain.",
    default_doc="none",
)
TLS_KEY: Final = OptionSpec(
    "tubemq.tls.keyFile",
    PATH,
    _ALL,
    "The private key of `tubemq.tls.certFile`, in PEM.",
    default_doc="the file of the certificate",
)
TLS_KEY_PASSWORD: Final = OptionSpec(
    "tubemq.tls.keyPassword",
    VERBATIM,
    _ALL,
    "The password of the private key, if it is encrypted. It does not appear in logs or messages.",
    default_doc="none",
    secret=True,
)
TLS_SERVER_NAME: Final = OptionSpec(
    "tubemq.tls.serverName",
    HOST,
    _ALL,
    "The name that the certificates of all masters and brokers must have, where it is not the host they are "
    "reached at.",
    default_doc="each server's host",
)
TLS_MIN_VERSION: Final = OptionSpec(
    "tubemq.tls.minVersion",
    choice(TlsVersion),
    _ALL,
    "The oldest version of TLS to accept.",
    TlsConfig().min_version,
)
RPC_TIMEOUT: Final = OptionSpec(
    "tubemq.rpcTimeoutMs",
    integer(1, _DAY_MS),
    _ALL,
    "How long a master or a broker may take to answer a request, in milliseconds.",
    _CLIENT.rpc_timeout_ms,
)
CONNECT_TIMEOUT: Final = OptionSpec(
    "tubemq.connectTimeoutMs",
    integer(1, _DAY_MS),
    _ALL,
    "How long connecting to a server may take, in milliseconds.",
    _CLIENT.connect_timeout_ms,
)
FETCH_TIMEOUT: Final = OptionSpec(
    "tubemq.fetchTimeoutMs",
    integer(1, _DAY_MS),
    _READS,
    "How long a task may make no progress, whatever the cause, before it fails, in milliseconds. A broker "
    "that is away is waited for that long.",
    _CLIENT.fetch_timeout_ms,
)
SUBSCRIBE: Final = OptionSpec(
    "subscribe",
    TOPICS,
    _SUBSCRIBERS,
    "The topics to read, separated by commas. A read needs one of `subscribe`, `subscribePattern` and "
    "`assign`.",
    default_doc="required, or one of the next two",
)
SUBSCRIBE_PATTERN: Final = OptionSpec(
    "subscribePattern",
    PATTERN,
    _SUBSCRIBERS,
    "Read all topics whose whole names match this regular expression. A stream looks for new ones about "
    "every ten seconds, and reads them from their beginning. The topics are listed by the masters' "
    "administration API, see `tubemq.master.web`.",
    default_doc="none",
)
ASSIGN: Final = OptionSpec(
    "assign",
    ASSIGNMENT,
    _SUBSCRIBERS,
    f"Read only these partitions: JSON with a list of `brokerId:partitionId` for each topic, such as "
    f"`{ASSIGN_EXAMPLE}`. A partition that a stream did not read before begins at its earliest offset.",
    default_doc="none",
)
VIEW: Final = OptionSpec(
    "view",
    choice(View),
    _READS | CLUSTER_VIEWS | {Mode.LOSSES_VIEW, Mode.RECEIPTS_VIEW},
    "What a batch read returns: the `messages`, or a [view](../spark/views.md) of something else. A view "
    "refuses options that have no effect in it, and a stream refuses views.",
    View.MESSAGES,
)
CHECKPOINT: Final = OptionSpec(
    "checkpointLocation",
    FOLDER,
    frozenset({Mode.LAG_VIEW}),
    "The checkpoint of the streaming query that the view `lag` is about, as in its `writeStream`. The driver "
    "reads it with Arrow's file systems, not with Hadoop's.",
    default_doc="none",
    sparks_own=True,
)
WAIT_FOR_TOPICS: Final = OptionSpec(
    "waitForTopics",
    BOOLEAN,
    frozenset({Mode.STREAM_READ}),
    "Whether a stream starts although a topic of `subscribe` or `assign` does not exist yet. It is read from "
    "its beginning once it is there. With `false` the query fails.",
    default=False,
)
STARTING_OFFSETS: Final = OptionSpec(
    "startingOffsets",
    offset_spec("startingOffsets"),
    _READS,
    "Where a new query begins: `earliest`, `latest`, `group` (where `tubemq.group` stands, or at the "
    "beginning if it has no position), or [offsets as JSON](#offsets). A stream that has a checkpoint "
    "resumes from it instead, and partitions that appear later are read from their beginning. A batch read "
    "cannot begin at `latest`.",
    default_doc="`earliest` for a batch read, `latest` for a stream",
)
ENDING_OFFSETS: Final = OptionSpec(
    "endingOffsets",
    offset_spec("endingOffsets"),
    frozenset({Mode.BATCH_READ}),
    "Where a batch read ends: `latest` or [offsets as JSON](#offsets), but not `earliest`. `latest` is "
    "looked up once, at the first action on the DataFrame. A stream refuses this option.",
    Edge.LATEST,
)
STARTING_TIMESTAMP: Final = OptionSpec(
    "startingTimestamp",
    TIMESTAMP,
    _READS,
    "Where a new query begins: at the first record of this time or later, in milliseconds since 1970. "
    f"{_GRAIN} It takes precedence over the other two options that say where to begin.",
    default_doc="none",
)
STARTING_BY_TIMESTAMP: Final = OptionSpec(
    "startingOffsetsByTimestamp",
    timestamps_of("startingOffsetsByTimestamp"),
    _READS,
    f"As `startingTimestamp` for each partition, such as `{TIMESTAMPS_EXAMPLE}`. It takes precedence over "
    "`startingOffsets`.",
    default_doc="none",
)
NO_MATCH: Final = OptionSpec(
    "startingOffsetsByTimestampStrategy",
    choice(NoMatch),
    _READS,
    "What to do if no record of a partition is of the time to begin at, or later: `error` fails, `latest` "
    "begins at the end.",
    NoMatch.ERROR,
)
ENDING_TIMESTAMP: Final = OptionSpec(
    "endingTimestamp",
    TIMESTAMP,
    frozenset({Mode.BATCH_READ}),
    "Where a batch read ends: before the first record of this time or later, in milliseconds since 1970; at "
    "the end if there is none. It takes precedence over the other two options that say where to end.",
    default_doc="none",
)
ENDING_BY_TIMESTAMP: Final = OptionSpec(
    "endingOffsetsByTimestamp",
    timestamps_of("endingOffsetsByTimestamp"),
    frozenset({Mode.BATCH_READ}),
    "As `endingTimestamp` for each partition. It takes precedence over `endingOffsets`.",
    default_doc="none",
)
MAX_OFFSETS: Final = OptionSpec(
    "maxOffsetsPerTrigger",
    integer(1, _MAX_LONG),
    frozenset({Mode.STREAM_READ}),
    "The most rows in a micro-batch, divided among the topics' stores in proportion to their backlog. A "
    "share below one row is rounded up to one, so a micro-batch may exceed the limit by up to one row per "
    "store.",
    default_doc="no limit",
)
MAX_BYTES: Final = OptionSpec(
    "maxBytesPerTrigger",
    size(_MAX_LONG),
    frozenset({Mode.STREAM_READ}),
    "About the most bytes in a micro-batch, values and attributes, such as `64m`; alone or with "
    "`maxOffsetsPerTrigger`, and divided in the same way. A broker does not say how large messages are, so "
    "the driver reads the first ones of what comes next, of each store, and takes the rest for as large: "
    "the limit is met as far as that is so. "
    "See [how precise](../guarantees/guarantees.md#limits-of-a-micro-batch).",
    default_doc="no limit",
)
MIN_OFFSETS: Final = OptionSpec(
    "minOffsetsPerTrigger",
    integer(1, _MAX_LONG),
    frozenset({Mode.STREAM_READ}),
    "The fewest rows for which a micro-batch starts. While there are fewer, the stream waits for more, until "
    "`maxTriggerDelay` has passed since the last micro-batch. The first micro-batch of a run does not wait, "
    "and neither do the triggers `once` and `availableNow`.",
    default_doc="1",
)
MAX_TRIGGER_DELAY: Final = OptionSpec(
    "maxTriggerDelay",
    DURATION,
    frozenset({Mode.STREAM_READ}),
    "How long `minOffsetsPerTrigger` may hold rows back.",
    15 * 60_000,
)
MIN_PARTITIONS: Final = OptionSpec(
    "minPartitions",
    integer(1, _MAX_INT),
    _READS,
    "How many tasks should read at least. When there are fewer ranges than that, long ones are cut in "
    "proportion, as Spark's Kafka source does; the number of tasks may differ a little by rounding. "
    "Several tasks then read one partition under different reader groups, so there should be as many "
    "of those as tasks of one partition that run at once.",
    default_doc="one task for each range, or for several short ones",
)
MAX_RECORDS_PER_PARTITION: Final = OptionSpec(
    "maxRecordsPerPartition",
    integer(1, _MAX_LONG),
    _READS,
    "The most rows per task: longer ranges are cut. Where several partitions share a store, a task gets "
    "fewer, since the rows of all of them count.",
    default_doc="no limit",
)
MAX_RANGES_PER_TASK: Final = OptionSpec(
    "maxRangesPerTask",
    integer(1, _MAX_INT),
    _READS,
    "The most ranges that one task reads, one after the other. Only short ranges of one broker share a "
    "task; with `1` none do.",
    default_doc=f"{MOST_RANGES}, with at most {MOST_ROWS:,} rows together",
)
COMMIT_TO_GROUP: Final = OptionSpec(
    "commitOffsetsToGroup",
    BOOLEAN,
    frozenset({Mode.STREAM_READ}),
    "Whether a stream moves `tubemq.group`, which must be named, to the end of each finished micro-batch, "
    "so that TubeMQ's own tools show its progress. Nothing is read from there: the checkpoint holds the "
    "offsets. What cannot be moved is logged, and tried again with the next micro-batch.",
    default=False,
)
FAIL_ON_DATA_LOSS: Final = OptionSpec(
    "failOnDataLoss",
    BOOLEAN,
    _READS,
    "Whether the query fails when records are damaged, or gone before they were read (retention, a broker "
    "that lost its log). With `false` they are skipped, and a warning says which.",
    default=True,
)
VISIBILITY: Final = OptionSpec(
    "visibility",
    choice(Visibility),
    _READS,
    "How far a query reads. A broker acknowledges messages from memory, and writes them to its disk some "
    "seconds later: a crash takes what is only in memory, also what was read from there, and [gives its "
    "offsets to other messages](../guarantees/guarantees.md#what-tubemq-itself-can-lose). `flushed` "
    "leaves messages alone until they are on the disk; `latest` is the end of what is there.",
    Visibility.MEMORY,
)
LOSS_LEDGER: Final = OptionSpec(
    "lossLedger",
    FOLDER,
    _READS | {Mode.LOSSES_VIEW},
    "A folder in which to write down, once, each gap that `failOnDataLoss=false` passes over, see [the "
    "ledger of losses](../guarantees/guarantees.md#the-ledger-of-losses). The driver and all executors must"
    " be able to write to it; if one cannot, the query fails. With `failOnDataLoss=true` nothing is passed "
    "over, so it has no effect. Credentials in a URI are not shown. The view `losses` reads this folder.",
    default_doc="none",
)
TYPES: Final = OptionSpec(
    "messageTypes",
    MESSAGE_TYPES,
    _READS,
    "Read only messages of these types. Brokers leave out the others; offsets and limits count them all the "
    "same, and the column `offset` is null.",
    default_doc="all, and those without a type",
)
PAYLOAD: Final = OptionSpec(
    "payload",
    choice(PayloadFormat),
    _READS,
    "What the bodies of messages are. `raw` gives them as they are. `inlong` unpacks what InLong's data "
    "proxies packed: [each message in a body is a row](../spark/inlong.md). Offsets and limits count bodies "
    "all the same.",
    PayloadFormat.RAW,
)
PARSE_MODE: Final = OptionSpec(
    "mode",
    choice(ParseMode),
    _READS,
    "With `payload=inlong`: what becomes of a malformed body. `PERMISSIVE` gives a row that has it in the "
    "column `_corrupt_record`, `DROPMALFORMED` gives none, and `FAILFAST` fails the query.",
    ParseMode.PERMISSIVE,
)
INCLUDE_ATTRIBUTES: Final = OptionSpec(
    "includeAttributes",
    BOOLEAN,
    _READS,
    "Whether rows have the column `attributes`, a map of all attributes of a message. Naming the column in "
    "`.schema(...)` has the same effect.",
    default=False,
)
MESSAGE_TIME_ZONE: Final = OptionSpec(
    "messageTimeZone",
    TIME_ZONE,
    _READS | _WRITES | {Mode.LAG_VIEW},
    "The time zone of message times, which TubeMQ stores as text without one. The column `timestamp` is "
    "converted from them when reading, and to them when writing.",
    "UTC",
)
FETCH_ATTEMPTS: Final = OptionSpec(
    "fetchOffset.numRetries",
    integer(1, 1000),
    _READS,
    "How many times the driver asks for the topics' partitions and offsets before the query fails, once a "
    "master has answered. The default lasts long enough for a broker to restart.",
    30,
)
FETCH_RETRY: Final = OptionSpec(
    "fetchOffset.retryIntervalMs",
    integer(0, _DAY_MS),
    _READS,
    "How long the driver waits before it asks again, in milliseconds.",
    1000,
)
MAX_IDLE_INTERVAL: Final = OptionSpec(
    "fetchOffset.maxIdleIntervalMs",
    integer(20, _DAY_MS),
    frozenset({Mode.STREAM_READ}),
    "A stream that has found nothing new for a while asks its brokers less and less often, down to once in "
    "this many milliseconds. The first record after a quiet time is found that much later at most; a smaller "
    "value finds it earlier and costs more requests.",
    # With what a micro-batch takes after a quiet minute it comes within 2.5 s, and a store is asked less than
    # once a second: each look takes two requests.
    1800,
)
READER_GROUPS: Final = OptionSpec(
    "readerGroups",
    GROUPS,
    _READS | CLUSTER_VIEWS,
    "The groups under which tasks read. A broker lets only one client of a group read a partition at a "
    "time; with several groups, retried tasks and other queries need not wait. Name them if the cluster "
    "admits only groups that it knows.",
    default_doc="the group's name followed by `_r00`, `_r01` and so on",
)
READER_GROUPS_SIZE: Final = OptionSpec(
    "readerGroups.size",
    integer(1, 256),
    _READS | CLUSTER_VIEWS,
    "How many reader groups to use when `readerGroups` does not name them.",
    DEFAULT_READER_GROUPS,
)
SINK_TOPIC: Final = OptionSpec(
    "topic",
    TOPIC,
    _WRITES,
    "The topic that all rows go to. It takes precedence over the column `topic`.",
    default_doc="each row's column `topic`",
)
DELIVERY_TIMEOUT: Final = OptionSpec(
    "deliveryTimeoutMs",
    integer(1, _DAY_MS),
    _WRITES,
    "How long a row may take until a broker has stored it, in milliseconds, whatever goes wrong on the way: "
    "brokers or masters that are away, refuse or do not answer, topics that cannot be published to. "
    "Then its task fails. A broker that restarts can be written to again after about 35 s.",
    _CLIENT.delivery_timeout_ms,
)
ON_ERROR: Final = OptionSpec(
    "onError",
    choice(OnError),
    _WRITES,
    "What becomes of a row that cannot be written, because of its value, length, topic, partition, time or "
    "attributes: `fail` fails its task, `deadLetter` sends it to `deadLetterTopic` and goes on.",
    OnError.FAIL,
)
DEAD_LETTER_TOPIC: Final = OptionSpec(
    "deadLetterTopic",
    TOPIC,
    _WRITES,
    "The topic of dead letters. A dead letter is the row's value; its attributes tell the reason and where "
    "the row was. Allow the topic longer messages than the others: a row that is too long is a dead letter "
    "as well.",
    default_doc="none",
)
STAMP_UID: Final = OptionSpec(
    "stampMessageUid",
    BOOLEAN,
    _WRITES,
    "Whether each row gets an id that stays the same however often the row is sent, as the attribute "
    "`messageUid`. Readers drop repeats by it. A row that has an id already, in its column `messageUid` or "
    "among its attributes, keeps that one.",
    default_doc="true with `receiptsPath`, otherwise false",
)
RETRY_AMBIGUOUS: Final = OptionSpec(
    "retryAmbiguous",
    BOOLEAN,
    _WRITES,
    "Whether a row that may be stored although no broker said so is sent again: its answer was lost, did not "
    "come in time, or told of a failure while storing. Sending it again may store it twice, and loses none. "
    "With `false` its task fails instead (`TUBEMQ_SEND_FAILED.AMBIGUOUS`); what was certainly not stored is "
    "sent again all the same. Spark repeats a failed task with all its rows: set `spark.task.maxFailures` to "
    "1 and turn speculation off as well, or have repeats removed downstream.",
    _CLIENT.retry_ambiguous,
)
PARTITIONER: Final = OptionSpec(
    "partitioner",
    choice(BuiltInPartitioner),
    _WRITES,
    "How rows without `key` and without `brokerId` and `partition` are spread: with `roundRobin` the "
    "partitions take turns, of up to 32 rows; with `sticky` each task sends to one partition, until its "
    "broker fails or falls behind, and then to the next.",
    BuiltInPartitioner.ROUND_ROBIN,
)
MESSAGE_TIME: Final = OptionSpec(
    "messageTime",
    choice(MessageTime),
    _WRITES,
    "The message time of rows without `timestamp`: `now` gives them the time of writing, `column` gives "
    "them none, and `none` leaves it out of all rows. A TubeMQ broker with auditing enabled stores a "
    "message without it, but then reports a failure, so the message is sent again. The time counts 22 bytes"
    " towards a message's size limit.",
    MessageTime.NOW,
)
RECEIPTS_PATH: Final = OptionSpec(
    "receiptsPath",
    FOLDER,
    _WRITES | {Mode.RECEIPTS_VIEW},
    "A folder for [manifests](../spark/receipts.md): a small file per micro-batch or batch write that says "
    "where its rows are stored, with counts and checksums. A micro-batch of a streaming write that has a "
    "manifest is not sent again. The driver must be able to write to the folder, and all executors to read "
    "it; if one cannot, the query fails. Credentials in a URI are not shown. The view `receipts` and the "
    "command `tubemq-spark receipts verify` read this folder.",
    default_doc="none",
)
SEND_WINDOW_MESSAGES: Final = OptionSpec(
    "tubemq.sendWindowMessages",
    integer(1, 1_000_000),
    _WRITES,
    "How many messages a task may have in flight.",
    _CLIENT.max_in_flight,
)
SEND_WINDOW_BYTES: Final = OptionSpec(
    "tubemq.sendWindowBytes",
    integer(1, _MAX_INT),
    _WRITES,
    "How many bytes of messages a task may have in flight.",
    _CLIENT.max_in_flight_bytes,
)

TABLE: Final[tuple[OptionSpec[Any], ...]] = (
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    ASSIGN,
    VIEW,
    CHECKPOINT,
    WAIT_FOR_TOPICS,
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STARTING_BY_TIMESTAMP,
    NO_MATCH,
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    ENDING_BY_TIMESTAMP,
    MAX_OFFSETS,
    MAX_BYTES,
    MIN_OFFSETS,
    MAX_TRIGGER_DELAY,
    MIN_PARTITIONS,
    MAX_RECORDS_PER_PARTITION,
    MAX_RANGES_PER_TASK,
    FAIL_ON_DATA_LOSS,
    VISIBILITY,
    LOSS_LEDGER,
    COMMIT_TO_GROUP,
    TYPES,
    INCLUDE_ATTRIBUTES,
    PAYLOAD,
    PARSE_MODE,
    SINK_TOPIC,
    DELIVERY_TIMEOUT,
    RETRY_AMBIGUOUS,
    PARTITIONER,
    ON_ERROR,
    DEAD_LETTER_TOPIC,
    STAMP_UID,
    MESSAGE_TIME,
    RECEIPTS_PATH,
    MESSAGE_TIME_ZONE,
    MASTERS,
    GATEWAYS,
    GATEWAY_TOKEN,
    MASTER_WEB,
    GROUP_NAME,
    USERNAME,
    PASSWORD,
    TLS,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_KEY_PASSWORD,
    TLS_SERVER_NAME,
    TLS_MIN_VERSION,
    RPC_TIMEOUT,
    CONNECT_TIMEOUT,
    FETCH_TIMEOUT,
    FETCH_ATTEMPTS,
    FETCH_RETRY,
    MAX_IDLE_INTERVAL,
    READER_GROUPS,
    READER_GROUPS_SIZE,
    SEND_WINDOW_MESSAGES,
    SEND_WINDOW_BYTES,
)
"""Every option, in the order of the reference page."""

REFUSED: Final[dict[str, str]] = {
    "kafka.bootstrap.servers": "use tubemq.master.servers",
    "kafka.group.id": "use tubemq.group",
    "groupIdPrefix": "use tubemq.group",
    "kafka.security.protocol": "use tubemq.tls.enabled",
    "kafka.ssl.truststore.location": "use tubemq.tls.caFile, which is PEM",
    "kafka.ssl.keystore.location": "use tubemq.tls.certFile and tubemq.tls.keyFile, which are PEM",
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "use commitOffsetsToGroup",
    "kafka.key.deserializer": "messages have no key, and values are bytes: convert them in Spark",
    "kafka.value.deserializer": "values are bytes: convert them in Spark",
    "kafka.key.serializer": "messages have no key, and values are bytes or text: convert them in Spark",
    "kafka.value.serializer": "values are bytes or text: convert them in Spark",
    "kafka.interceptor.classes": "change rows in Spark",
    "kafka.partitioner.class": "use partitioner",
    "kafka.delivery.timeout.ms": "use deliveryTimeoutMs",
    "kafka.enable.idempotence": "TubeMQ cannot recognise repeated messages: see stampMessageUid",
    "kafka.isolation.level": "TubeMQ has no transactions: leave it out",
    "kafkaConsumer.pollTimeoutMs": "use tubemq.fetchTimeoutMs",
    "includeHeaders": "use includeAttributes",
}
"""Options of Spark's Kafka source that users bring along, and what to do instead."""

_REFUSED_PREFIX: Final = "kafka."
_REFUSED_PREFIX_ADVICE: Final = "Kafka client settings have no meaning here; see the options tubemq.*"

ENGINE_KEYS: Final = frozenset(
    {
        # load() and save() with a path
        "path",
        "paths",
        # start() of a stream
        "queryname",
        # CREATE TABLE ... USING tubemq
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "provider",
    }
)
"""Keys that Spark adds to the user's, in lower case."""

_ENGINE_PREFIXES: Final = ("option.", "__")
"""CREATE TABLE hands over every option twice, as ``option.<name>`` too; ``__`` marks internal keys."""

_BY_KEY: Final[dict[str, OptionSpec[Any]]] = {spec.name.lower(): spec for spec in TABLE}
_REFUSED_BY_KEY: Final[dict[str, tuple[str, str]]] = {
    name.lower(): (name, advice) for name, advice in REFUSED.items()
}


def find(key: str) -> OptionSpec[Any] | None:
    """Return the option a key names, in whatever case; None for a key of Spark's own.

    Raises:
        OptionError: there is no such option; the error names the nearest, or what to use instead.
    """
    lower = key.lower()
    if lower in _BY_KEY:
        return _BY_KEY[lower]
    if lower in ENGINE_KEYS or lower.startswith(_ENGINE_PREFIXES):
        return None
    if lower in _REFUSED_BY_KEY:
        name, advice = _REFUSED_BY_KEY[lower]
        raise OptionError("TUBEMQ_OPTION_UNSUPPORTED", option=name, advice=advice)
    if lower.startswith(_REFUSED_PREFIX):
        raise OptionError("TUBEMQ_OPTION_UNSUPPORTED", option=key, advice=_REFUSED_PREFIX_ADVICE)
    raise OptionError("TUBEMQ_OPTION_UNKNOWN", option=key, advice=_nearest(lower))


def _nearest(lower: str) -> str:
    """Return advice on a wrong key: the option that is meant, as far as one can tell."""
    required = [spec.name for spec in TABLE if spec.example and lower and spec.name.lower().startswith(lower)]
    if required:
        return f"did you mean '{required[0]}'?"
    without_prefix = _BY_KEY.get(f"tubemq.{lower}")
    if without_prefix is not None:
        return f"did you mean '{without_prefix.name}'?"
    names = (option.name for option in _BY_KEY.values())
    return did_you_mean(lower, names) or "see docs/reference/options.md for all options."
