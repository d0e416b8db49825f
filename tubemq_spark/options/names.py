"""Names of options: the one that a key of Spark's map means, or advice where it means none."""

from typing import Final

from tubemq_spark.errors import OptionError
from tubemq_spark.options.option import Option
from tubemq_spark.options.table import NAMED
from tubemq_spark.settings.suggest import did_you_mean

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
    """Return the option that a key names, in any case; None for a key of Spark's own.

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
    beginning = lower.removesuffix("s") or lower  # masters, tubemq.master, tubemq.masters
    for name in _REQUIRED:
        if beginning and name.lower().removeprefix("tubemq.").startswith(beginning.removeprefix("tubemq.")):
            return f"did you mean '{name}'?"
    without_prefix = _BY_KEY.get(f"tubemq.{lower}")
    if without_prefix is not None:
        return f"did you mean '{without_prefix.name}'?"
    return did_you_mean(lower, NAMED) or "see docs/reference/options.md for all options."
