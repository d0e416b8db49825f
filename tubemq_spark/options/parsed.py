"""From Spark's map of texts to frozen, checked, picklable values.

Spark makes a data source with the user's map, keys in lower case, and does not say whether it is going
to read or to write. ``OptionSet.parse`` therefore checks what can be checked without knowing, and
``for_batch_read``, ``for_stream_read``, ``for_view`` and ``for_write`` the rest.
"""

import dataclasses
import logging
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self, TypeVar, cast

from tubemq_spark.client.config import ClientConfig, default_reader_groups
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, Stored, mentions
from tubemq_spark.offsets.subscription import Subscription, TopicPattern, Topics
from tubemq_spark.options import table
from tubemq_spark.options.kinds import SERVERS_TLS
from tubemq_spark.options.table import (
    MessageTime,
    Mode,
    NoMatch,
    OnError,
    OptionSpec,
    ParseMode,
    PayloadFormat,
    View,
    Visibility,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SUBSCRIBING: Final[tuple[OptionSpec[Any], ...]] = (table.SUBSCRIBE, table.SUBSCRIBE_PATTERN, table.ASSIGN)
"""A read needs one of them."""
_EXCLUSIVE: Final[tuple[tuple[OptionSpec[Any], OptionSpec[Any]], ...]] = (
    (table.GATEWAYS, table.MASTERS),
    (table.GATEWAYS, table.MASTER_WEB),
    (table.READER_GROUPS, table.READER_GROUPS_SIZE),
)
_WHERE: Final = (table.MASTERS, table.GATEWAYS)
"""Which cluster it is."""
_MASTERS_OVER_TLS: Final = dataclasses.replace(table.MASTERS, kind=SERVERS_TLS)
"""The same option with the usual port of TLS."""
_ABOUT_TLS: Final[tuple[tuple[OptionSpec[Any], OptionSpec[Any]], ...]] = (
    (table.TLS_CA, table.TLS),
    (table.TLS_CERT, table.TLS),
    (table.TLS_KEY, table.TLS_CERT),
    (table.TLS_KEY_PASSWORD, table.TLS_CERT),
    (table.TLS_SERVER_NAME, table.TLS),
    (table.TLS_MIN_VERSION, table.TLS),
)
"""Options of TLS, each with the one that it needs: to leave them unused in silence would be dangerous."""
_VIEWS: Final = frozenset(view.mode for view in View) - {Mode.BATCH_READ}
_CONNECTION_PREFIX: Final = "tubemq."
_GROUP_PREFIX: Final = "tubemq_spark"
_MAX_LABEL: Final = 200
_TABLE_HINT: Final = (
    " (Spark does not pass on the options of CREATE TABLE: use CREATE TEMPORARY VIEW, or {statement})"
)
_READ_WITH: Final = "SELECT ... FROM the_table WITH ('{option}'='{example}', ...)"
_WRITE_WITH: Final = "INSERT INTO the_table WITH ('{option}'='{example}', ...) SELECT ..."


@dataclasses.dataclass(frozen=True, slots=True)
class ReadOptions:
    """Everything a read needs, checked; picklable; safe to log."""

    cluster: ClusterConfig
    """How TubeMQ is reached."""
    subscription: Subscription
    """What is read."""
    starting: OffsetSpec
    """Where a batch read or a new stream begins; a stream's checkpoint wins over it."""
    ending: OffsetSpec | None = None
    """Where a batch read ends; None for a stream."""
    no_match: NoMatch = NoMatch.ERROR
    """What to do where no record is of the time to begin at."""
    wait_for_topics: bool = False
    """Whether a stream may start before its topics exist."""
    max_offsets_per_trigger: int | None = None
    """The most rows of a micro-batch; None takes all there is."""
    max_bytes_per_trigger: int | None = None
    """About the most bytes of a micro-batch; None for no such limit."""
    min_offsets_per_trigger: int = 0
    """The fewest rows of a micro-batch, unless it has waited for too long."""
    max_trigger_delay_ms: int = 900_000
    """How long rows may wait for others."""
    min_partitions: int | None = None
    """How many tasks should read at least; None for no wish."""
    max_records_per_partition: int | None = None
    """The most rows per task; None for no limit."""
    max_ranges_per_task: int | None = None
    """The most ranges per task; None for the usual number."""
    commit_to_group: bool = False
    """Whether a stream moves the user's group behind each finished micro-batch."""
    fail_on_data_loss: bool = True
    """Fail when records are gone, or warn and go on."""
    visibility: Visibility = Visibility.MEMORY
    """How far the query reads."""
    loss_ledger: FolderUri | None = None
    """Where to write down what is passed over; None where nothing is, or nobody wants to know."""
    include_attributes: bool = False
    """Whether the default schema has the column ``attributes``."""
    payload: PayloadFormat = PayloadFormat.RAW
    """What the bodies of messages are."""
    parse_mode: ParseMode = ParseMode.PERMISSIVE
    """What becomes of a body that is something else."""
    message_time_zone: str = "UTC"
    """Time zone of the message times in TubeMQ."""
    offset_fetch_attempts: int = 30
    """How often the driver asks for partitions and offsets before it fails."""
    offset_fetch_retry_ms: int = 1_000
    """How long the driver waits before it asks again."""
    max_idle_interval_ms: int = 1_800
    """How old the bounds of an idle stream's stores may get before the brokers are asked again."""

    @property
    def if_no_record(self) -> Edge | None:
        """Where a query begins if no record is of the time to begin at; None is an error."""
        return Edge.LATEST if self.no_match is NoMatch.LATEST else None


@dataclasses.dataclass(frozen=True, slots=True)
class ViewOptions:
    """Everything a view needs, checked; picklable; safe to log."""

    cluster: ClusterConfig
    """How TubeMQ is reached; a view waits for no broker longer than for one answer."""
    subscription: Subscription | None = None
    """The topics or partitions that the view is about; None where the user need not say."""
    group: str | None = None
    """The consumer group that the view is about; None where it is about none, or about all."""
    checkpoint: FolderUri | None = None
    """The checkpoint that the view is about."""
    message_time_zone: str = "UTC"
    """Time zone of the message times in TubeMQ."""
    columns: frozenset[str] | None = None
    """The columns that are wanted, as the user's schema says; None for all."""

    def wants(self, *columns: str) -> bool:
        """Tell whether one of these columns is wanted: what none needs is not asked for."""
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
    topic: str | None = None
    """The topic of all rows; None when each row names its own."""
    message_time: MessageTime = MessageTime.NOW
    """Which message time rows get."""
    message_time_zone: str = "UTC"
    """Time zone of the message times in TubeMQ."""
    dead_letter_topic: str | None = None
    """Where rows go that cannot be written; None: they fail their task."""
    stamp_message_uid: bool = False
    """Whether rows without an id of their own get one."""
    receipts_path: FolderUri | None = None
    """Where to write down what was stored; None where nobody wants to know."""
    shown: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)
    """The options that the user gave, as they are shown to others; of the connection's only the masters."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class OptionSet:
    """The options a user gave, parsed; for a read or a write, which is not known yet."""

    _given: Mapping[str, Any]
    """Values by the option's name."""
    _ignored: tuple[str, ...] = ()
    """Keys of Spark's own that the user may have meant as something."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the user's options; keys may have any case.

        Raises:
            OptionError: an option is not known, not supported, has a wrong value or does not go
                together with another.
            OffsetFormatError: the text is not an offset spec.
        """
        given: dict[str, Any] = {}
        ignored = []
        masters = ""
        for key, text in options.items():
            spec = table.find(key)
            if spec is not None:
                given[spec.name] = spec.read(text)
                masters = text if spec is table.MASTERS else masters
            elif key.lower() in ("path", "paths"):
                ignored.append(key.lower())
        if masters and given.get(table.TLS.name):
            given[table.MASTERS.name] = _MASTERS_OVER_TLS.read(masters)
        parsed = cls(given, tuple(ignored))
        parsed._check_pairs()
        return parsed

    @property
    def include_attributes(self) -> bool:
        """Whether the default schema has the column ``attributes``; no error before one knows the mode."""
        return self._value(table.INCLUDE_ATTRIBUTES)

    @property
    def payload(self) -> PayloadFormat:
        """What the bodies are, which the default schema depends on."""
        return self._value(table.PAYLOAD)

    @property
    def view(self) -> View:
        """What a batch read has in its rows."""
        return self._value(table.VIEW)

    def for_batch_read(self) -> ReadOptions:
        """Return the options of ``spark.read``.

        Raises:
            OptionError: an option is missing, or an offset spec makes no sense in a batch read.
        """
        self._enter(Mode.BATCH_READ)
        starting = self._starting(Edge.EARLIEST)
        ending = (
            self._optional(table.ENDING_TIMESTAMP)
            or self._optional(table.ENDING_BY_TIMESTAMP)
            or self._value(table.ENDING_OFFSETS)
        )
        if ending is Stored.GROUP:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option=table.ENDING_OFFSETS.name,
                value=Stored.GROUP.value,
                expected="latest or JSON",
            )
        _refuse_edge(table.STARTING_OFFSETS, starting, Edge.LATEST)
        _refuse_edge(table.ENDING_OFFSETS, ending, Edge.EARLIEST)
        return self._read_options(starting, ending)

    def for_stream_read(self) -> ReadOptions:
        """Return the options of ``spark.readStream``.

        Raises:
            OptionError: an option is missing, or ``endingOffsets`` is given, or a view is asked for.
        """
        if self.view is not View.MESSAGES:
            raise OptionError("TUBEMQ_VIEW_IN_STREAM", option=table.VIEW.name, view=self.view.value)
        for spec in (table.ENDING_OFFSETS, table.ENDING_TIMESTAMP, table.ENDING_BY_TIMESTAMP):
            if spec.name in self._given:
                raise OptionError("TUBEMQ_ENDING_IN_STREAM", option=spec.name)
        self._enter(Mode.STREAM_READ)
        starting = self._starting(Edge.LATEST)
        return dataclasses.replace(
            self._read_options(starting, None),
            commit_to_group=self._value(table.COMMIT_TO_GROUP),
            wait_for_topics=self._value(table.WAIT_FOR_TOPICS),
            max_offsets_per_trigger=self._optional(table.MAX_OFFSETS),
            max_bytes_per_trigger=self._optional(table.MAX_BYTES),
            min_offsets_per_trigger=self._value(table.MIN_OFFSETS, 0),
            max_trigger_delay_ms=self._value(table.MAX_TRIGGER_DELAY),
        )

    def for_view(self) -> ViewOptions | LossesOptions | ReceiptsOptions:
        """Return the options of ``spark.read`` with a view that is not of messages.

        Raises:
            OptionError: an option is missing, or has no effect in this view.
        """
        self._enter(self.view.mode)
        if self.view is View.LOSSES:
            return LossesOptions(self._folder_of_view(table.LOSS_LEDGER, "s3://bucket/losses"))
        if self.view is View.RECEIPTS:
            return ReceiptsOptions(self._folder_of_view(table.RECEIPTS_PATH, "s3://bucket/receipts"))
        checkpoint, group = self._optional(table.CHECKPOINT), self._optional(table.GROUP_NAME)
        if self.view is View.LAG and checkpoint is None and group is None:
            raise OptionError("TUBEMQ_LAG_OF_WHAT")
        subscription = self._subscription() if any(map(self._is_given, _SUBSCRIBING)) else None
        client = self._reading_client(subscription)
        patience_ms = client.rpc_timeout_ms
        client = dataclasses.replace(client, fetch_timeout_ms=patience_ms, lease_wait_ms=patience_ms)
        return ViewOptions(
            self._cluster(client),
            subscription,
            group,
            checkpoint,
            self._value(table.MESSAGE_TIME_ZONE),
        )

    def for_write(self) -> WriteOptions:
        """Return the options of ``df.write`` and ``df.writeStream``.

        Raises:
            OptionError: an option is missing.
        """
        self._enter(Mode.WRITE)
        client = dataclasses.replace(
            self._client(group=_GROUP_PREFIX),
            max_in_flight=self._value(table.SEND_WINDOW_MESSAGES),
            max_in_flight_bytes=self._value(table.SEND_WINDOW_BYTES),
            delivery_timeout_ms=self._value(table.DELIVERY_TIMEOUT),
            retry_ambiguous=self._value(table.RETRY_AMBIGUOUS),
            partitioner=self._value(table.PARTITIONER),
            checksums=self._is_given(table.RECEIPTS_PATH),
        )
        return WriteOptions(
            cluster=dataclasses.replace(self._cluster(client), web=()),
            topic=self._optional(table.SINK_TOPIC),
            message_time=self._value(table.MESSAGE_TIME),
            message_time_zone=self._value(table.MESSAGE_TIME_ZONE),
            dead_letter_topic=self._dead_letter_topic(),
            stamp_message_uid=self._value(table.STAMP_UID, self._is_given(table.RECEIPTS_PATH)),
            receipts_path=self._optional(table.RECEIPTS_PATH),
            shown=tuple(
                (spec.name, text)
                for spec, text in self._shown()
                if Mode.WRITE in spec.modes
                and (spec in _WHERE or not spec.name.startswith(_CONNECTION_PREFIX))
            ),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{spec.name}={text!r}" for spec, text in self._shown())
        return f"{type(self).__name__}({shown})"

    def _shown(self) -> Iterator[tuple[OptionSpec[Any], str]]:
        """Yield the options that were given, as texts that are safe to log."""
        for spec in table.TABLE:
            if spec.name in self._given:
                yield spec, spec.show(self._given[spec.name])

    def _read_options(self, starting: OffsetSpec, ending: OffsetSpec | None) -> ReadOptions:
        subscription = self._subscription()
        client = dataclasses.replace(
            self._reading_client(subscription),
            message_types=self._optional(table.TYPES) or (),
            fetch_timeout_ms=self._value(table.FETCH_TIMEOUT),
        )
        return ReadOptions(
            cluster=self._cluster(client),
            subscription=subscription,
            starting=starting,
            ending=ending,
            no_match=self._value(table.NO_MATCH),
            min_partitions=self._optional(table.MIN_PARTITIONS),
            max_records_per_partition=self._optional(table.MAX_RECORDS_PER_PARTITION),
            max_ranges_per_task=self._optional(table.MAX_RANGES_PER_TASK),
            fail_on_data_loss=self._value(table.FAIL_ON_DATA_LOSS),
            visibility=self._value(table.VISIBILITY),
            loss_ledger=self._loss_ledger(),
            include_attributes=self.include_attributes,
            payload=self.payload,
            parse_mode=self._value(table.PARSE_MODE),
            message_time_zone=self._value(table.MESSAGE_TIME_ZONE),
            offset_fetch_attempts=self._value(table.FETCH_ATTEMPTS),
            offset_fetch_retry_ms=self._value(table.FETCH_RETRY),
            max_idle_interval_ms=self._value(table.MAX_IDLE_INTERVAL),
        )

    def _folder_of_view(self, spec: OptionSpec[FolderUri], example: str) -> FolderUri:
        folder = self._optional(spec)
        if folder is None:
            raise OptionError(
                "TUBEMQ_OPTION_MISSING",
                option=spec.name,
                mode=self.view.mode.value,
                example=example,
                hint="",
            )
        return folder

    def _loss_ledger(self) -> FolderUri | None:
        ledger = self._optional(table.LOSS_LEDGER)
        if ledger is not None and self._value(table.FAIL_ON_DATA_LOSS):
            logger.warning(
                "option '%s' has no effect, since nothing is passed over unless '%s' is false",
                table.LOSS_LEDGER.name,
                table.FAIL_ON_DATA_LOSS.name,
            )
            return None
        return ledger

    def _starting(self, default: Edge) -> OffsetSpec:
        return (
            self._optional(table.STARTING_TIMESTAMP)
            or self._optional(table.STARTING_BY_TIMESTAMP)
            or self._value(table.STARTING_OFFSETS, default)
        )

    def _subscription(self) -> Subscription:
        """Return what is read; ``_enter`` has made sure that there is exactly one option for it."""
        topics, pattern = self._optional(table.SUBSCRIBE), self._optional(table.SUBSCRIBE_PATTERN)
        if topics is not None:
            return Topics(topics)
        return self._value(table.ASSIGN) if pattern is None else TopicPattern(pattern)

    def _cluster(self, client: ClientConfig) -> ClusterConfig:
        web = self._optional(table.MASTER_WEB) or ()
        token = self._optional(table.GATEWAY_TOKEN)
        return ClusterConfig(client, self._optional(table.GATEWAYS) or (), web, token).validate()

    def _reading_client(self, subscription: Subscription | None) -> ClientConfig:
        client = self._client(group=self._value(table.GROUP_NAME, _default_group(subscription)))
        groups = self._optional(table.READER_GROUPS) or default_reader_groups(
            client.group, self._value(table.READER_GROUPS_SIZE)
        )
        return dataclasses.replace(client, reader_groups=groups)

    def _client(self, group: str) -> ClientConfig:
        return ClientConfig(
            masters=self._optional(table.MASTERS) or (),
            group=group,
            username=self._optional(table.USERNAME),
            password=self._optional(table.PASSWORD),
            tls=self._tls(),
            rpc_timeout_ms=self._value(table.RPC_TIMEOUT),
            connect_timeout_ms=self._value(table.CONNECT_TIMEOUT),
        )

    def _tls(self) -> TlsConfig | None:
        """Return how to speak TLS; None where it is off."""
        if not self._value(table.TLS):
            return None
        return TlsConfig(
            ca_file=self._optional(table.TLS_CA),
            cert_file=self._optional(table.TLS_CERT),
            key_file=self._optional(table.TLS_KEY),
            key_password=self._optional(table.TLS_KEY_PASSWORD),
            server_name=self._optional(table.TLS_SERVER_NAME),
            min_version=self._value(table.TLS_MIN_VERSION),
        )

    def _enter(self, mode: Mode) -> None:
        """Demand what the mode needs; name what has no effect in it, and refuse that in a view."""
        for spec in table.TABLE:
            given = self._is_given(spec)
            gateways = spec is table.MASTERS and self._is_given(table.GATEWAYS)
            if mode in spec.modes and spec.example and not given and not gateways:
                raise OptionError(
                    "TUBEMQ_OPTION_MISSING",
                    option=spec.name,
                    mode=mode.value,
                    example=spec.example,
                    hint=self._table_hint(mode, spec.name, spec.example),
                )
            if given and mode not in spec.modes:
                # How to connect may be said anywhere: users keep that together.
                if mode in _VIEWS and not spec.name.startswith(_CONNECTION_PREFIX):
                    raise OptionError("TUBEMQ_OPTION_IN_VIEW", option=spec.name, mode=mode.value)
                if not spec.sparks_own:
                    logger.warning("option '%s' has no effect in %s", spec.name, mode.value)
        if mode in table.MUST_SUBSCRIBE and not any(map(self._is_given, _SUBSCRIBING)):
            hint = self._table_hint(mode, table.SUBSCRIBE.name, "demo,orders")
            raise OptionError("TUBEMQ_NOTHING_SUBSCRIBED", mode=mode.value, hint=hint)
        for key in self._ignored:
            logger.warning("'%s' has no effect in %s; topics are named by options", key, mode.value)

    def _table_hint(self, mode: Mode, option: str, example: str) -> str:
        """Return how SQL passes options, for a user of whose options none reached us."""
        if self._given:
            return ""
        statement = _WRITE_WITH if mode is Mode.WRITE else _READ_WITH
        return _TABLE_HINT.format(statement=statement.format(option=option, example=example))

    def _check_pairs(self) -> None:
        """Check options that belong together, or exclude each other."""
        given = self._given
        if given.get(table.SUBSCRIBE.name) == ():
            raise OptionError("TUBEMQ_NO_TOPICS", option=table.SUBSCRIBE.name)
        subscribing = [spec.name for spec in _SUBSCRIBING if spec.name in given]
        if len(subscribing) > 1:
            raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=subscribing[0], other=subscribing[1])
        for one, other in _EXCLUSIVE:
            if one.name in given and other.name in given:
                raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=one.name, other=other.name)
        for one, other in ((table.USERNAME, table.PASSWORD), (table.PASSWORD, table.USERNAME)):
            if one.name in given and other.name not in given:
                raise OptionError("TUBEMQ_OPTION_ALONE", option=one.name, other=other.name)
        if given.get(table.COMMIT_TO_GROUP.name) and table.GROUP_NAME.name not in given:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option=table.GROUP_NAME.name, other=table.COMMIT_TO_GROUP.name
            )
        if given.get(table.STARTING_OFFSETS.name) is Stored.GROUP and table.GROUP_NAME.name not in given:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option=table.GROUP_NAME.name, other=table.STARTING_OFFSETS.name
            )
        if table.PARSE_MODE.name in given and self.payload is not PayloadFormat.INLONG:
            logger.warning("option '%s' has no effect without 'payload=inlong'", table.PARSE_MODE.name)
        self._check_limits()
        self._check_tls()

    def _dead_letter_topic(self) -> str | None:
        """Return where rows go that cannot be written; None where they fail their task.

        Raises:
            OptionError: only one of the two options is given, or the topic is that of the rows.
        """
        topic = self._optional(table.DEAD_LETTER_TOPIC)
        if self._value(table.ON_ERROR) is OnError.FAIL:
            if topic is not None:
                raise OptionError(
                    "TUBEMQ_OPTION_NEEDED",
                    option=f"{table.ON_ERROR.name}={OnError.DEAD_LETTER.value}",
                    other=table.DEAD_LETTER_TOPIC.name,
                )
            return None
        if topic is None:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option=table.DEAD_LETTER_TOPIC.name, other=table.ON_ERROR.name
            )
        if topic == self._optional(table.SINK_TOPIC):
            raise OptionError("TUBEMQ_DEAD_LETTER_TOPIC", topic=topic)
        return topic

    def _check_limits(self) -> None:
        fewest, most = self._given.get(table.MIN_OFFSETS.name, 0), self._given.get(table.MAX_OFFSETS.name)
        if most is not None and fewest > most:
            raise OptionError(
                "TUBEMQ_MINIMUM_ABOVE_MAXIMUM",
                option=table.MIN_OFFSETS.name,
                least=fewest,
                other=table.MAX_OFFSETS.name,
                most=most,
            )
        if table.MAX_TRIGGER_DELAY.name in self._given and not fewest:
            logger.warning(
                "option '%s' has no effect without '%s'", table.MAX_TRIGGER_DELAY.name, table.MIN_OFFSETS.name
            )

    def _check_tls(self) -> None:
        for one, needed in _ABOUT_TLS:
            if one.name in self._given and needed.name not in self._given:
                raise OptionError("TUBEMQ_OPTION_NEEDED", option=needed.name, other=one.name)
        tls = self._tls()
        if tls is not None:
            tls.validate()

    def _value(self, spec: OptionSpec[T], default: T | None = None) -> T:
        """Return an option's value or default; ``_enter`` has made sure that there is one."""
        return cast("T", self._given.get(spec.name, spec.default if default is None else default))

    def _is_given(self, spec: OptionSpec[Any]) -> bool:
        return spec.name in self._given

    def _optional(self, spec: OptionSpec[T]) -> T | None:
        return cast("T | None", self._given.get(spec.name))


def _refuse_edge(spec: OptionSpec[OffsetSpec], given: OffsetSpec, edge: Edge) -> None:
    whose = mentions(given, edge)
    if whose:
        raise OptionError("TUBEMQ_POSITION_IN_BATCH", option=spec.name, edge=edge.value, whose=whose)


def _default_group(subscription: Subscription | None) -> str:
    """Return a group's name made of topics, if these are known.

    A master refuses members of one group that read different topics (error 425), so each set of topics
    has a group of its own. Topics cannot contain ``-`` nor begin with a digit, so names never collide
    but by the checksum of long ones.
    """
    if subscription is None:
        return f"{_GROUP_PREFIX}-view"
    label = subscription.label
    if len(label) > _MAX_LABEL:
        label = f"{label.count('-') + 1}topics-{zlib.crc32(label.encode()):08x}"
    return f"{_GROUP_PREFIX}-{label}"
