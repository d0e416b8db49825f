"""The settings of a client as one URL, for services that are configured with a single text.

For example::

    tubemq://m1:8715,m2:8715?group=etl&topics=clicks,orders&consume_position=first

Before the question mark are the masters; a port that is left out is 8715, or 8716 with TLS. In a URL that
begins with ``gateway://`` they are gateways, with the port 11911, and there is the key ``gateway_token``. The
keys are the names of the settings in ``ClientConfig`` and ``ConsumerConfig``; those of ``TlsConfig`` begin
with ``tls_``. ``topics``, ``message_types``, ``session_key``, ``source_count``, ``select_big`` and
``node_id`` say what a consumer asks for; ``master_web`` is where masters serve their administration API.
Values are percent-encoded; a plus sign stands for itself.

No error shows the value of a password, nor a text in which one could be hidden.
"""

import dataclasses
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.client.config import DEFAULT_GROUP, ClientConfig
from tubemq_spark.client.consumer_config import BoundStart, ConsumerConfig, Node, Subscription
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.tls import TlsConfig
from tubemq_spark.protocol.constants import (
    DEFAULT_GATEWAY_PORT,
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
)
from tubemq_spark.settings.fields import Value, bad_setting, settings_of
from tubemq_spark.settings.kinds import BOOLEAN, TOPICS, VERBATIM, Kind, addresses, did_you_mean, items

_SCHEME: Final = "tubemq://"
GATEWAY_SCHEME: Final = "gateway://"
_TOKEN: Final = "gateway_token"  # noqa: S105 (the name of a setting)
_WEB: Final = "master_web"
_PRINTABLE_KEY: Final = re.compile(r"[\w.]{1,64}", re.ASCII)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NOT_IN_ADDRESSES: Final = re.compile("[@=&]")
_TYPES_OF: Final = "message_types."
_TLS_PREFIX: Final = "tls_"

MASTER_WEB: Final = addresses(DEFAULT_WEB_PORT)
Values = Mapping[str, Value]


@dataclasses.dataclass(frozen=True)
class UrlSettings:
    """What a URL says. ``repr`` leaves out passwords."""

    config: ClientConfig
    subscription: Subscription | None = None
    """What its consumers ask for; None: the URL names no topics."""
    node: Node | None = None
    """Which of several assigned consumers this one is; None: the URL does not say."""
    gateways: tuple[Endpoint, ...] = ()
    """Where gateways are; none: the client goes to the masters."""
    gateway_token: str | None = dataclasses.field(default=None, repr=False)
    """What shows gateways who calls."""
    master_web: tuple[Endpoint, ...] = ()
    """Where masters serve their administration API; none: at the usual ports of the masters."""


def parse_url(url: str) -> UrlSettings:
    """Read a URL."""
    head, _, query = url.strip().partition("?")
    remote = head.startswith(GATEWAY_SCHEME)
    kinds = _KINDS if remote else _DIRECT_KINDS
    values = {key: _value(key, text) for key, text in _texts(query, kinds).items()}
    tls = _tls(values)
    master_port = DEFAULT_MASTER_PORT if tls is None else DEFAULT_MASTER_TLS_PORT
    servers = (
        _servers(head, "gateway", DEFAULT_GATEWAY_PORT) if remote else _servers(head, "master", master_port)
    )
    consumer = {key: value for key, value in values.items() if key in _CONSUMER}
    config = ClientConfig(
        servers,
        tls=tls,
        consumer=ConsumerConfig(**consumer),
        **{"group": DEFAULT_GROUP, **{key: value for key, value in values.items() if key in _CLIENT}},
    )
    subscription, node = _subscription(values), _node(values)
    gateways = servers if remote else ()
    token, web = values.get(_TOKEN), values.get(_WEB, ())
    return UrlSettings(config.validate(), subscription, node, gateways, token, web)


def _servers(head: str, kind: str, default_port: int) -> tuple[Endpoint, ...]:
    addresses = head.removeprefix(_SCHEME).removeprefix(GATEWAY_SCHEME).removesuffix("/")
    if not addresses:
        raise _malformed(f"it names no {kind}")
    if _NOT_IN_ADDRESSES.search(addresses):
        raise _malformed(
            f"there are settings, or a user, among the {kind}s; write username and password behind the ?"
        )
    return tuple(Endpoint.parse(address, default_port) for address in addresses.split(","))


def _value(key: str, text: str) -> Value:
    if key.startswith(_TYPES_OF) or (key in _MAY_BE_BLANK and not text):
        return items(text)
    value = _KINDS[key].parse(text)
    if value is None:
        raise bad_setting(key, repr(text) if text else "blank", _KINDS[key].expected)
    return value


def _texts(query: str, kinds: Mapping[str, Kind[Any]]) -> dict[str, str]:
    """Return the texts by key, decoded."""
    values: dict[str, str] = {}
    for number, item in enumerate(query.split("&") if query else (), 1):
        encoded_key, equals, text = item.partition("=")
        key = _decoded(encoded_key, number)
        # What is not a key may be the rest of a password whose & was not encoded.
        if not equals or not _PRINTABLE_KEY.fullmatch(key):
            raise _malformed(f"parameter {number} is not key=value; write & inside of values as %26")
        if not _is_known(key, kinds):
            hidden = bool(values) and next(reversed(values)) in _SECRETS
            raise _unknown(key, number, kinds, hidden=hidden)
        if key in values:
            raise OptionError("TUBEMQ_URL_KEY_REPEATED", key=key)
        values[key] = _decoded(text, number)
    return values


def _decoded(text: str, number: int) -> str:
    try:
        if not _BAD_ESCAPE.search(text):
            return urllib.parse.unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise _malformed(f"parameter {number} is not percent-encoded UTF-8; write % inside of values as %25")


def _is_known(key: str, kinds: Mapping[str, Kind[Any]]) -> bool:
    return key in kinds or (key.startswith(_TYPES_OF) and len(key) > len(_TYPES_OF))


def _unknown(key: str, number: int, kinds: Mapping[str, Kind[Any]], *, hidden: bool) -> OptionError:
    shown = (
        f"of parameter {number} (hidden, since it may belong to the password before it)"
        if hidden
        else f"'{key}'"
    )
    return OptionError("TUBEMQ_URL_KEY", key=shown, advice=_advice(key, kinds))


def _advice(key: str, kinds: Mapping[str, Kind[Any]]) -> str:
    if key in GO_KEYS:
        return f"did you mean '{GO_KEYS[key]}'?"
    return did_you_mean(key, kinds) or f"these are: {', '.join(sorted(kinds))}."


def _malformed(problem: str) -> OptionError:
    return OptionError("TUBEMQ_URL_MALFORMED", problem=problem)


_CLIENT: Final = {name: each for name, each in settings_of(ClientConfig).items() if name != "masters"}
_CONSUMER: Final = settings_of(ConsumerConfig)
_TLS: Final = settings_of(TlsConfig)
_DIRECT_KINDS: Final[dict[str, Kind[Any]]] = {
    **{name: each.kind for name, each in (_CLIENT | _CONSUMER).items()},
    **{_TLS_PREFIX + name: each.kind for name, each in _TLS.items()},
    **{name: each.kind for name, each in (settings_of(BoundStart) | settings_of(Node)).items()},
    "tls": BOOLEAN,
    "topics": TOPICS,
    _WEB: MASTER_WEB,
}
_KINDS: Final[dict[str, Kind[Any]]] = {**_DIRECT_KINDS, _TOKEN: VERBATIM}
_SECRETS: Final = {name for name, each in _CLIENT.items() if each.secret} | {
    _TOKEN,
    *(_TLS_PREFIX + name for name, each in _TLS.items() if each.secret),
}
_MAY_BE_BLANK: Final = frozenset({"reader_groups", "message_types"})

GO_KEYS: Final[dict[str, str]] = {
    "readTimeout": "rpc_timeout_ms",
    "tlsEnable": "tls",
    "CACertFile": "tls_ca_file",
    "tlsCertFile": "tls_cert_file",
    "tlsKeyFile": "tls_key_file",
    "tlsServerName": "tls_server_name",
    "authEnable": "username",
    "authUserName": "username",
    "authPassword": "password",
    "topic": "topics",
    "filters": "message_types",
    "consumePosition": "consume_position",
    "boundConsume": "session_key",
    "sessionKey": "session_key",
    "sourceCount": "source_count",
    "selectBig": "select_big",
    "rollbackIfConfirmTimeout": "rollback",
    "maxSubInfoReportInterval": "report_interval",
    "maxPartCheckPeriod": "ready_wait_ms",
    "partCheckSlice": "ready_wait_ms",
    "msgNotFoundWait": "not_found_wait_ms",
    "rebConfirmWait": "rebalance_wait_ms",
    "maxConfirmWait": "confirm_timeout_ms",
    "shutdownRebWait": "shutdown_wait_ms",
    "heartbeatInterval": "heartbeat_period_ms",
    "heartbeatMaxRetryTimes": "misses_before_pause",
    "heartbeatAfterFail": "pause_after_misses_ms",
}
"""The keys of the Go SDK's addresses, and the ones that stand for them here."""


# What belongs together.


def _tls(values: Values) -> TlsConfig | None:
    """Return how to speak TLS: any setting about it switches it on, unless ``tls`` says otherwise."""
    settings = {name: values[_TLS_PREFIX + name] for name in _TLS if _TLS_PREFIX + name in values}
    return TlsConfig(**settings) if values.get("tls", bool(settings)) else None


def _subscription(values: Values) -> Subscription | None:
    own = {key.removeprefix(_TYPES_OF): types for key, types in values.items() if key.startswith(_TYPES_OF)}
    start = _bound_start(values)
    if "topics" not in values:
        for key in values:
            if key == "session_key" or key.startswith(_TYPES_OF):
                raise bad_setting("topics", "missing", f"given with {key}")
        return None
    topics, of_all = values["topics"], values.get("message_types", ())
    types = {**(dict.fromkeys(topics, of_all) if of_all else {}), **own}
    return Subscription.of(topics, types, start)


def _bound_start(values: Values) -> BoundStart | None:
    """Return the bound start in the values of a URL, if there is one."""
    if "session_key" not in values:
        if "select_big" in values:
            raise bad_setting("session_key", "missing", "given with select_big")
        return None
    if "source_count" not in values:
        raise bad_setting("source_count", "missing", "given with session_key")
    return BoundStart(
        values["session_key"], values["source_count"], select_big=values.get("select_big", True)
    )


def _node(values: Values) -> Node | None:
    if "node_id" not in values:
        if "source_count" in values and "session_key" not in values:
            raise bad_setting("source_count", "given alone", "given with node_id or session_key")
        return None
    if "session_key" in values:
        raise bad_setting("node_id", "given with session_key", "given to assigned consumers only")
    if "source_count" not in values:
        raise bad_setting("source_count", "missing", "given with node_id")
    return Node(values["source_count"], values["node_id"]).validate()
