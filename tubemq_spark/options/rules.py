"""The rules between options and about their names, beside the table of options.

Which key of Spark's map means which option, and what to do instead where it means none; which options exclude
each other, need each other, or have no effect without each other. ``parsed.py`` obeys them.
"""

from typing import Final

from tubemq_spark.errors import OptionError
from tubemq_spark.offsets.offset_spec import Stored
from tubemq_spark.options.option import Option
from tubemq_spark.options.table import NAMED
from tubemq_spark.settings.kinds import did_you_mean

MASTERS: Final = "tubemq.master.servers"
GATEWAYS: Final = "tubemq.gateway.servers"
GROUP: Final = "tubemq.group"

EXCLUSIVE: Final = (
    ("subscribe", "subscribePattern"),
    ("subscribe", "assign"),
    ("subscribePattern", "assign"),
    (GATEWAYS, MASTERS),
    (GATEWAYS, "tubemq.master.web"),
    ("readerGroups", "readerGroups.size"),
)
TOGETHER: Final = (("tubemq.username", "tubemq.password"), ("tubemq.password", "tubemq.username"))
"""Options that cannot be given without the other one."""
NEEDED: Final = (
    ("commitOffsetsToGroup", True, GROUP),
    ("startingOffsets", Stored.GROUP, GROUP),
    ("onReplayDiffers", None, "receiptsPath"),
    ("tubemq.tls.caFile", None, "tubemq.tls.enabled"),
    ("tubemq.tls.certFile", None, "tubemq.tls.enabled"),
    ("tubemq.tls.keyFile", None, "tubemq.tls.certFile"),
    ("tubemq.tls.keyPassword", None, "tubemq.tls.certFile"),
    ("tubemq.tls.serverName", None, "tubemq.tls.enabled"),
    ("tubemq.tls.minVersion", None, "tubemq.tls.enabled"),
)
"""Options, their value (None: any), and what they need: TLS that is left unused would be dangerous."""
WITHOUT_EFFECT: Final = (
    (
        "timestampSearch",
        (
            "startingTimestamp",
            "endingTimestamp",
            "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp",
            "availableNowUntil",
        ),
    ),
    # Offsets may be times, too.
    (
        "startingOffsetsByTimestampStrategy",
        ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    ),
    ("maxTriggerDelay", ("minOffsetsPerTrigger",)),
)
"""Options that have no effect, each with those of which one must be given, the first of which is named."""
SUBSCRIBING: Final = ("subscribe", "subscribePattern", "assign")
"""A read needs one of them."""
CONNECTION_PREFIX: Final = "tubemq."
OF_A_CLIENT: Final = frozenset(name for name in NAMED if name.startswith(CONNECTION_PREFIX)) - {
    GROUP,
    "tubemq.master.web",
    "tubemq.rpcTimeoutMs",
    "tubemq.fetchTimeoutMs",
}
"""The options of the connection that a read through an open client may not have: the client has them."""

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
    "kafka.isolation.level": "TubeMQ has no transactions: leave it out, or see visibility",
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

_BY_KEY: Final[dict[str, Option]] = {name.lower(): option for name, option in NAMED.items()}
_REQUIRED: Final = tuple(name for name, option in NAMED.items() if option.example)
"""What a wrong key means first."""
_REFUSED_BY_KEY: Final[dict[str, tuple[str, str]]] = {
    name.lower(): (name, advice) for name, advice in REFUSED.items()
}


def find(key: str) -> Option | None:
    """Return the option that a key names, in any case; None for a key of Spark's own."""
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


def _nearest(lower_key: str) -> str:
    """Return advice on a wrong key: the option that is meant, as far as one can tell."""
    beginning = lower_key.removesuffix("s") or lower_key  # masters, tubemq.master, tubemq.masters
    for name in _REQUIRED:
        if beginning and name.lower().removeprefix("tubemq.").startswith(beginning.removeprefix("tubemq.")):
            return f"did you mean '{name}'?"
    without_prefix = _BY_KEY.get(f"tubemq.{lower_key}")
    if without_prefix is not None:
        return f"did you mean '{without_prefix.name}'?"
    return did_you_mean(lower_key, NAMED) or "see docs/reference/options.md for all options."
