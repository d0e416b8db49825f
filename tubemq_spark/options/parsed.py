"""From Spark's map of texts to frozen, checked, picklable values.

Spark makes a data source with the user's map, keys in lower case, and does not say whether it is going
to read or to write. ``OptionSet.parse`` therefore checks what can be checked without knowing, and
``for_batch_read``, ``for_stream_read``, ``for_view`` and ``for_write`` the rest.
"""

import dataclasses
import logging
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, Self, TypeVar

from tubemq_spark.client.config import ClientConfig, check_consumer_group, default_reader_groups
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.errors import OptionError
from tubemq_spark.files.folder_uri import FolderUri
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.offsets.offset_spec import Edge, OffsetSpec, Stored, mentions
from tubemq_spark.offsets.subscription import TopicSubscription
from tubemq_spark.options.option import Option
from tubemq_spark.options.rules import (
    CONNECTION_PREFIX,
    EXCLUSIVE,
    GATEWAYS,
    GROUP,
    MASTERS,
    NEEDED,
    OF_A_CLIENT,
    SUBSCRIBING,
    TOGETHER,
    WITHOUT_EFFECT,
    find,
)
from tubemq_spark.options.table import (
    FIELDS,
    NAMED,
    Choices,
    LossesOptions,
    Positions,
    ReadOptions,
    ReceiptsOptions,
    Subscribing,
    ViewOptions,
    WriteOptions,
)
from tubemq_spark.options.values import (
    MUST_SUBSCRIBE,
    Mode,
    OnError,
    PayloadFormat,
    TimestampSearch,
    ViewName,
)
from tubemq_spark.protocol.constants import DEFAULT_MASTER_TLS_PORT
from tubemq_spark.settings.fields import Value
from tubemq_spark.settings.kinds import addresses

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MASTERS_OVER_TLS: Final = dataclasses.replace(NAMED[MASTERS], kind=addresses(DEFAULT_MASTER_TLS_PORT))
"""The same option with the usual port of TLS."""
_VIEWS: Final = frozenset(view.mode for view in ViewName) - {Mode.BATCH_READ}
_GROUP_PREFIX: Final = "tubemq_spark"
_MAX_LABEL: Final = 200
_TABLE_HINT: Final = (
    " (Spark does not pass on the options of CREATE TABLE: use CREATE TEMPORARY VIEW, or {statement})"
)
_READ_WITH: Final = "SELECT ... FROM the_table WITH ('{option}'='{example}', ...)"
_WRITE_WITH: Final = "INSERT INTO the_table WITH ('{option}'='{example}', ...) SELECT ..."


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class OptionSet:
    """The user's options, parsed; it is open whether for a read or for a write."""

    _given: Mapping[str, Any]
    """Values by the option's name."""
    _ignored: tuple[str, ...] = ()
    """Keys of Spark's own that the user may have meant as something."""
    _of_client: ClusterConfig | None = None
    """The settings of the open client that reads; None: the options say how to connect."""

    @classmethod
    def parse(cls, options: Mapping[str, str], of_client: ClusterConfig | None = None) -> Self:
        """Read the user's options; keys may have any case.

        Args:
            options: the texts by key.
            of_client: the settings of the open client that reads: what no option says is as there.

        Raises:
            OptionError: an option is not known, not supported, has a wrong value, does not go
                together with another, or belongs to the client.
            OffsetFormatError: the text is not an offset spec.
        """
        values: dict[str, Any] = {}
        ignored = []
        masters = ""
        for key, text in options.items():
            option = find(key)
            if option is not None:
                if of_client is not None and option.name in OF_A_CLIENT:
                    raise OptionError("TUBEMQ_OPTION_OF_CLIENT", option=option.name)
                values[option.name] = option.read(text)
                masters = text if option.name == MASTERS else masters
            elif key.lower() in ("path", "paths"):
                ignored.append(key.lower())
        if masters and values.get("tubemq.tls.enabled"):
            values[MASTERS] = _MASTERS_OVER_TLS.read(masters)
        parsed = cls(values, tuple(ignored), of_client)
        parsed._check_pairs()
        return parsed

    @property
    def include_attributes(self) -> bool:
        """Whether the default schema has the column ``attributes``; no error before the mode is known."""
        return bool(self._value("includeAttributes"))

    @property
    def payload(self) -> PayloadFormat:
        """What the bodies are, which the default schema depends on."""
        return PayloadFormat(self._value("payload"))

    @property
    def of_messages(self) -> bool:
        """Whether a read gets messages, and not a view."""
        return self.view is ViewName.MESSAGES

    @property
    def view(self) -> ViewName:
        """What a batch read has in its rows."""
        return self._filled(Subscribing).view

    def warn_of_schema(self, columns: Collection[str]) -> None:
        """Warn of an option that has no effect because the user's schema leaves its column out."""
        if self.include_attributes and "attributes" not in columns:
            logger.warning(
                "option '%s' has no effect with a schema without 'attributes'", "includeAttributes"
            )

    @property
    def _choices(self) -> Choices:
        return self._filled(Choices)

    def for_batch_read(self) -> ReadOptions:
        """Return the options of ``spark.read``."""
        self._enter(Mode.BATCH_READ)
        positions = self._filled(Positions)
        starting, ending = positions.start(Edge.EARLIEST), positions.end()
        if ending is Stored.GROUP:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option="endingOffsets",
                value=Stored.GROUP.value,
                expected="latest or JSON",
            )
        _refuse_edge("startingOffsets", starting, Edge.LATEST)
        _refuse_edge("endingOffsets", ending, Edge.EARLIEST)
        return self._read_options(Mode.BATCH_READ, starting, ending)

    def for_stream_read(self) -> ReadOptions:
        """Return the options of ``spark.readStream``."""
        if self.view is not ViewName.MESSAGES:
            raise OptionError("TUBEMQ_VIEW_IN_STREAM", option="view", view=self.view.value)
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in self._given:
                raise OptionError("TUBEMQ_ENDING_IN_STREAM", option=name)
        if self._given.get("timestampSearch") is TimestampSearch.EXACT:
            raise OptionError("TUBEMQ_EXACT_IN_STREAM", option="timestampSearch")
        until = self._given.get("availableNowUntil")
        if until is Stored.GROUP or (until is not None and mentions(until, Edge.EARLIEST)):
            declared = NAMED["availableNowUntil"]
            value, expected = declared.show(until), declared.kind.expected
            raise OptionError("TUBEMQ_OPTION_VALUE", option=declared.name, value=value, expected=expected)
        self._enter(Mode.STREAM_READ)
        return self._read_options(Mode.STREAM_READ, self._filled(Positions).start(Edge.LATEST), None)

    def for_view(self) -> ViewOptions | LossesOptions | ReceiptsOptions:
        """Return the options of ``spark.read`` with a view that is not of messages."""
        mode = self.view.mode
        self._enter(mode)
        if self.view is ViewName.LOSSES:
            return LossesOptions(self._folder_of_view("lossLedger", "s3://bucket/losses"))
        if self.view is ViewName.RECEIPTS:
            return ReceiptsOptions(self._folder_of_view("receiptsPath", "s3://bucket/receipts"))
        group = self._given.get(GROUP)
        if self.view is ViewName.LAG and "checkpointLocation" not in self._given and group is None:
            raise OptionError("TUBEMQ_LAG_OF_WHAT")
        subscription = self._filled(Subscribing).subscription()
        client = self._reading_client(mode, subscription)
        patience_ms = client.rpc_timeout_ms
        client = dataclasses.replace(client, fetch_timeout_ms=patience_ms, lease_wait_ms=patience_ms)
        return self._filled(
            ViewOptions, mode, cluster=self._cluster(mode, client), subscription=subscription, group=group
        )

    def for_write(self) -> WriteOptions:
        """Return the options of ``df.write`` and ``df.writeStream``."""
        self._enter(Mode.WRITE)
        with_receipts = "receiptsPath" in self._given
        client = self._client(Mode.WRITE, group=_GROUP_PREFIX, checksums=with_receipts)
        return self._filled(
            WriteOptions,
            Mode.WRITE,
            cluster=self._cluster(Mode.WRITE, client),
            dead_letter_topic=self._dead_letter_topic(),
            stamp_message_uid=self._given.get("stampMessageUid", with_receipts),
            shown=tuple(
                (option.name, text)
                for option, text in self._shown()
                if Mode.WRITE in option.modes
                and (option.name in (MASTERS, GATEWAYS) or not option.name.startswith(CONNECTION_PREFIX))
            ),
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{option.name}={text!r}" for option, text in self._shown())
        return f"{type(self).__name__}({shown})"

    def _shown(self) -> Iterator[tuple[Option, str]]:
        """Yield the options that were given, as texts that are safe to log."""
        for name, option in NAMED.items():
            if name in self._given:
                yield option, option.show(self._given[name])

    def _read_options(self, mode: Mode, starting: OffsetSpec, ending: OffsetSpec | None) -> ReadOptions:
        subscription = self._filled(Subscribing).subscription()
        options = self._filled(
            ReadOptions,
            mode,
            cluster=self._cluster(mode, self._reading_client(mode, subscription)),
            subscription=subscription,
            starting=starting,
            ending=ending,
            loss_ledger=self._loss_ledger(),
        )
        if options.commit_to_group or starting is Stored.GROUP:
            client = options.cluster.client
            check_consumer_group(client.group, client.reader_groups)
        return options

    def _folder_of_view(self, name: str, example: str) -> FolderUri:
        if name not in self._given:
            mode = self.view.mode.value
            raise OptionError("TUBEMQ_OPTION_MISSING", option=name, mode=mode, example=example, hint="")
        folder: FolderUri = self._given[name]
        return folder

    def _loss_ledger(self) -> FolderUri | None:
        if "lossLedger" in self._given and self._value("failOnDataLoss"):
            logger.warning(
                "option '%s' has no effect, since nothing is passed over unless '%s' is false",
                "lossLedger",
                "failOnDataLoss",
            )
            return None
        return self._given.get("lossLedger")

    def _cluster(self, mode: Mode, client: ClientConfig) -> ClusterConfig:
        if self._of_client is None:
            return self._filled(ClusterConfig, mode, client=client).validate()
        web = self._given.get("tubemq.master.web", self._of_client.web)
        return dataclasses.replace(self._of_client, client=client, web=web).validate()

    def _reading_client(self, mode: Mode, subscription: TopicSubscription | None) -> ClientConfig:
        if self._of_client is not None:
            return self._changed_client(self._of_client.client, mode)
        group = self._given.get(GROUP) or _default_group(subscription)
        size = self._choices.reader_groups
        groups = self._given.get("readerGroups") or default_reader_groups(group, size)
        return self._client(mode, group=group, reader_groups=groups)

    def _client(self, mode: Mode, **derived: Value) -> ClientConfig:
        return self._filled(
            ClientConfig, mode, masters=self._given.get(MASTERS, ()), tls=self._tls(), **derived
        )

    def _changed_client(self, client: ClientConfig, mode: Mode) -> ClientConfig:
        """Return a client's settings with those that the options give."""
        changes = self._values_of(ClientConfig, mode)
        group = changes.get("group", client.group)
        if not self._given.keys().isdisjoint((GROUP, "readerGroups.size")):
            changes.setdefault("reader_groups", default_reader_groups(group, self._choices.reader_groups))
        return dataclasses.replace(client, **changes)

    def _tls(self) -> TlsConfig | None:
        """Return how to speak TLS; None where it is off."""
        return self._filled(TlsConfig) if self._choices.tls else None

    def _filled(self, owner: type[T], mode: Mode | None = None, **derived: Value) -> T:
        """Return a dataclass with the options that set its fields."""
        return owner(**{**self._values_of(owner, mode), **derived})

    def _values_of(self, owner: type, mode: Mode | None) -> dict[str, Any]:
        """Return the values by field that the user gave for a dataclass."""
        return {
            field: self._given[option.name]
            for field, option in FIELDS[owner].items()
            if option.name in self._given and (mode is None or mode in option.modes)
        }

    def _value(self, name: str) -> Value:
        """Return an option's value or default."""
        return self._given.get(name, NAMED[name].default)

    def _enter(self, mode: Mode) -> None:
        """Demand what the mode needs; name what has no effect in it, and refuse that in a view."""
        for name, option in NAMED.items():
            is_set = name in self._given
            elsewhere = name == MASTERS and (GATEWAYS in self._given or self._of_client is not None)
            if mode in option.modes and option.example and not is_set and not elsewhere:
                hint = self._table_hint(mode, name, option.example)
                raise OptionError(
                    "TUBEMQ_OPTION_MISSING", option=name, mode=mode.value, example=option.example, hint=hint
                )
            if is_set and mode not in option.modes:
                # How to connect may be said anywhere: users keep that together.
                if mode in _VIEWS and not name.startswith(CONNECTION_PREFIX):
                    raise OptionError("TUBEMQ_OPTION_IN_VIEW", option=name, mode=mode.value)
                if not option.sparks_own:
                    logger.warning("option '%s' has no effect in %s", name, mode.value)
        if mode in MUST_SUBSCRIBE and self._given.keys().isdisjoint(SUBSCRIBING):
            hint = self._table_hint(mode, "subscribe", "demo,orders")
            if "topic" in self._given:
                hint = f" in place of 'topic', which only writes take{hint}"
            raise OptionError("TUBEMQ_NOTHING_SUBSCRIBED", mode=mode.value, hint=hint)
        for key in self._ignored:
            logger.warning("'%s' has no effect in %s; topics are named by options", key, mode.value)

    def _table_hint(self, mode: Mode, option: str, example: str) -> str:
        """Return how SQL passes options, for a user of whose options none reached us."""
        if self._given or self._of_client is not None:
            return ""
        statement = _WRITE_WITH if mode is Mode.WRITE else _READ_WITH
        return _TABLE_HINT.format(statement=statement.format(option=option, example=example))

    def _check_pairs(self) -> None:
        """Check options that belong together, or exclude each other."""
        values = self._given
        if values.get("subscribe") == ():
            raise OptionError("TUBEMQ_NO_TOPICS", option="subscribe")
        for first, second in EXCLUSIVE:
            if first in values and second in values:
                raise OptionError("TUBEMQ_OPTIONS_EXCLUSIVE", option=first, other=second)
        for first, second in TOGETHER:
            if first in values and second not in values:
                raise OptionError("TUBEMQ_OPTION_ALONE", option=first, other=second)
        for name, value, needed in NEEDED:
            # An open client has a group.
            has_group = needed == GROUP and self._of_client is not None
            if name in values and value in (None, values[name]) and not has_group:
                self._require(needed, name)
        fewest, most = values.get("minOffsetsPerTrigger", 0), values.get("maxOffsetsPerTrigger")
        if most is not None and fewest > most:
            raise OptionError(
                "TUBEMQ_MINIMUM_ABOVE_MAXIMUM",
                option="minOffsetsPerTrigger",
                least=fewest,
                other="maxOffsetsPerTrigger",
                most=most,
            )
        if (tls := self._tls()) is not None:
            tls.validate()
        self._name_what_has_no_effect()

    def _name_what_has_no_effect(self) -> None:
        """Warn of options that need others."""
        values = self._given
        if "mode" in values and self.payload is not PayloadFormat.INLONG:
            logger.warning("option '%s' has no effect without 'payload=inlong'", "mode")
        for name, others in WITHOUT_EFFECT:
            if name in values and values.keys().isdisjoint(others):
                logger.warning("option '%s' has no effect without '%s'", name, others[0])
        if values.get("waitForTopics") and "subscribePattern" in values:
            logger.warning("option '%s' has no effect with '%s'", "waitForTopics", "subscribePattern")

    def _require(self, needed: str, name: str) -> None:
        """Refuse an option without the one that it needs."""
        if needed not in self._given:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option=needed, other=name)

    def _dead_letter_topic(self) -> str | None:
        """Return where rows go that cannot be written; None where they fail their task."""
        topic: str | None = self._given.get("deadLetterTopic")
        if self._choices.on_error is OnError.FAIL:
            if topic is not None:
                to_give = f"onError={OnError.DEAD_LETTER.value}"
                raise OptionError("TUBEMQ_OPTION_NEEDED", option=to_give, other="deadLetterTopic")
            return None
        self._require("deadLetterTopic", "onError")
        if topic is not None and topic == self._given.get("topic"):
            raise OptionError("TUBEMQ_DEAD_LETTER_TOPIC", topic=topic)
        return topic


def _refuse_edge(option: str, spec: OffsetSpec, edge: Edge) -> None:
    whose = mentions(spec, edge)
    if whose:
        raise OptionError("TUBEMQ_POSITION_IN_BATCH", option=option, edge=edge.value, whose=whose)


def _default_group(subscription: TopicSubscription | None) -> str:
    """Return a group's name made of topics, if these are named.

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
