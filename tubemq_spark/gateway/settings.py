"""The gateway's settings: each with its name, its text, its default and its bounds, and where they come from.

They are texts in a file, in the environment, and in arguments; of one that is in several the last counts. A
name that no setting has is refused, and each error speaks of the settings that operators write.
"""

import dataclasses
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import DEFAULT_GATEWAY_PORT, DEFAULT_MASTER_TLS_PORT, DEFAULT_WEB_PORT
from tubemq_spark.settings.fields import Sources, Stated, Value, setting, settings_of
from tubemq_spark.settings.kinds import (
    BOOLEAN,
    HIDDEN,
    HOST,
    HOSTS,
    MASTERS,
    MILLISECONDS,
    PATH,
    TEXT,
    URL,
    Kind,
    addresses,
    integer,
    listener,
    one_of,
)

if TYPE_CHECKING:
    # The command line names all settings in its help, which is to be quick.
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.net.tls import ServerTls

ENVIRONMENT_PREFIX: Final = "TUBEMQ_GATEWAY_"
MIB: Final = 1 << 20
_LONGEST_BATCH: Final = 32 * MIB
"""Brokers take messages of at most 20 MiB (maxMsgSizeInMB)."""
_CLIENTS_WAITS: Final = (
    "rpc_timeout_ms",
    "connect_timeout_ms",
    "register_retry_ms",
    "lease_wait_ms",
    "fetch_timeout_ms",
    "delivery_timeout_ms",
    "confirm_timeout_ms",
    "not_found_wait_ms",
    "rebalance_wait_ms",
)
"""Settings of clients that say how long the gateway may take."""
_MOST_ATTEMPTS: Final = 100
_MOST_IN_FLIGHT: Final = 100_000
_METRICS_PORT: Final = 9191
_FEWEST_QUESTIONS: Final = 8
_QUESTIONS_PER: Final = 8
"""Of how many ranges and batches one has a question at a time."""


_NEEDED: Final = (
    ("tls_key", "tls_cert"),
    ("tls_client_ca", "tls_cert"),
    # Others could read the token on its way.
    ("policy", "tls_cert"),
    ("master_username", "master_password"),
    ("master_password", "master_username"),
    # Otherwise all who reach the port would have this user's rights.
    ("master_username", "policy"),
    ("master_admin_token", "policy"),
    *((f"master_tls_{name}", "master_tls") for name in ("ca", "cert", "key", "key_password", "server_name")),
    *((f"master_tls_{name}", "master_tls_cert") for name in ("key", "key_password")),
)
"""Settings, each with another one that it needs."""

_MASTERS_OVER_TLS: Final = addresses(DEFAULT_MASTER_TLS_PORT)
COUNT: Final = integer(1, 1_000_000)
BYTES: Final = integer(64 << 10, 1 << 40)


def _any_name() -> str:
    return f"{socket.gethostname()}-{secrets.token_hex(3)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GatewaySettings:
    """How a gateway runs; safe to log."""

    master_servers: tuple[Endpoint, ...] = setting(
        MASTERS, "the masters of the TubeMQ cluster (default port: 8715, or 8716 with master_tls)"
    )
    master_web: tuple[Endpoint, ...] | None = setting(
        addresses(DEFAULT_WEB_PORT),
        "where the masters serve their administration API (default: the host of each master, port 8080 or "
        "8780)",
        None,
    )
    master_discovery: str = setting(
        one_of("off", "dns", "http"),
        "how to find out where the masters are: dns asks for all addresses of the hosts in master_servers, "
        "http reads master_discovery_url",
        "off",
    )
    master_discovery_url: str | None = setting(
        URL,
        "where a text with host:port of each master is, for master_discovery=http; it is reached directly, "
        "without regard to http_proxy",
        None,
    )
    master_discovery_ms: int = setting(MILLISECONDS, "how often to look for them", 120_000)
    listen: Endpoint = setting(
        listener(DEFAULT_GATEWAY_PORT),
        "where clients reach the gateway; with 0.0.0.0 on every address",
        Endpoint("127.0.0.1", DEFAULT_GATEWAY_PORT),
    )
    reuse_port: bool = setting(
        BOOLEAN,
        "whether several gateways of one host may share the port, to use several cores",
        default=False,
    )
    advertise: str | None = setting(
        TEXT, "the address that clients are told (default: where it listens)", None
    )
    node_name: str | None = setting(
        TEXT, "the gateway's name in errors and logs (default: the host's name and a random suffix)", None
    )
    cluster_name: str = setting(TEXT, "a label for operators", "default")
    tls_cert: str | None = setting(
        PATH, "the certificate to show to clients, in PEM; without it, no TLS", None
    )
    tls_key: str | None = setting(PATH, "its private key, in PEM (default: in the same file)", None)
    tls_client_ca: str | None = setting(PATH, "the CAs whose certificates clients must show, in PEM", None)
    policy: str | None = setting(
        PATH, "a TOML file with the clients that may call, and their rights (default: all clients may)", None
    )
    master_tls: bool = setting(BOOLEAN, "whether masters and brokers are reached over TLS", False)
    master_tls_ca: str | None = setting(
        PATH, "the CAs that issued the certificates of masters and brokers, in PEM", None
    )
    master_tls_cert: str | None = setting(
        PATH, "the certificate to show to masters and brokers, in PEM", None
    )
    master_tls_key: str | None = setting(PATH, "its private key, in PEM (default: in the same file)", None)
    master_tls_key_password: str | None = setting(TEXT, "the password of that key", None, secret=True)
    master_tls_server_name: str | None = setting(
        HOST, "the name in the certificates of all masters and brokers, if not their hosts", None
    )
    master_username: str | None = setting(
        TEXT, "the user as whom the gateway logs in for clients that name none; needs a policy", None
    )
    master_password: str | None = setting(TEXT, "that user's password", None, secret=True)
    master_admin_token: str | None = setting(
        TEXT,
        "the masters' confModAuthToken: clients create topics that the policy allows; needs a policy",
        None,
        secret=True,
    )
    require_master: bool = setting(BOOLEAN, "whether to end at once when no master can be reached", False)
    lease_ms: int = setting(MILLISECONDS, "how long a session may be silent before it ends", 30_000)
    heartbeat_ms: int = setting(
        MILLISECONDS, "how often a client that makes no other calls sends a heartbeat", 10_000
    )
    keepalive_ms: int = setting(
        MILLISECONDS, "after how much silence the gateway pings a client's connection", 30_000
    )
    keepalive_timeout_ms: int = setting(
        MILLISECONDS, "how long the answer to that ping may take before the connection counts as lost", 10_000
    )
    disconnect_ms: int = setting(
        MILLISECONDS,
        "after how long a session is closed whose stream of events broke off, if its client wants that",
        5_000,
    )
    housekeeping_ms: int = setting(
        MILLISECONDS, "how often to look for silent sessions, and for a policy that has changed", 5_000
    )
    route_refresh_ms: int = setting(
        MILLISECONDS, "after how long a master is asked again where partitions are", 20_000
    )
    route_expiry_ms: int = setting(
        MILLISECONDS, "how long its last answer is used while no master answers", 300_000
    )
    sessions: int = setting(COUNT, "how many sessions there may be", 10_000)
    poll_ms: int = setting(
        MILLISECONDS, "how often a broker is asked again for messages that fetches wait for", 200
    )
    new_groups: bool = setting(
        BOOLEAN, "whether sessions may consume in a group that TubeMQ does not know yet", True
    )
    notify_members: bool = setting(
        BOOLEAN, "whether sessions are told when others of their group come or go", True
    )
    fetches: int = setting(COUNT, "how many fetches and consume streams may wait for messages", 10_000)
    reads: int = setting(COUNT, "how many ranges are read at a time", 256)
    publishes: int = setting(
        COUNT, "how many producers there may be; sessions of equal settings share one", 256
    )
    streams: int = setting(
        COUNT, "how many calls of one connection may be under way; others wait at the client", 256
    )
    calls: int = setting(
        COUNT, "how many calls may be under way, streams and calls that wait included", 40_000
    )
    waiting_calls: int = setting(COUNT, "how many calls may wait until others have ended", 10_000)
    queue_ms: int = setting(
        MILLISECONDS, "how long a call may wait for others to end, if its client waits that long", 30_000
    )
    max_message_bytes: int = setting(
        integer(64 << 10, 4 * MIB),
        "the longest gRPC message of a client, in bytes; a longer batch comes in parts",
        4 * MIB,
    )
    session_bytes: int = setting(BYTES, "how many bytes of one session may wait in the gateway", 64 * MIB)
    total_bytes: int = setting(BYTES, "how many bytes of all sessions may wait in the gateway", 1024 * MIB)
    stall_ms: int = setting(
        MILLISECONDS,
        "after how long a client that does not read, or does not finish a batch, gives way to others",
        10_000,
    )
    longest_wait_ms: int = setting(
        MILLISECONDS,
        "the largest value of each timeout that clients may set",
        600_000,
    )
    drain_ms: int = setting(MILLISECONDS, "how long calls may go on when the gateway stops", 30_000)
    metrics: Endpoint | None = setting(
        listener(_METRICS_PORT),
        "where to serve metrics, a status page and a health check over HTTP (default: nowhere)",
        None,
    )
    metrics_hosts: tuple[str, ...] = setting(
        HOSTS,
        "names of this host in their URLs, besides addresses and its own name; requests for other names are "
        "refused, since pages of other sites may have sent them",
        (),
    )
    log_level: str = setting(
        one_of("DEBUG", "INFO", "WARNING", "ERROR"), "the lowest level of entries in the log", "INFO"
    )
    log_json: bool = setting(BOOLEAN, "whether each entry of the log is a JSON object", False)
    log_file: str | None = setting(
        PATH, "the file for the log, one for each process (default: the log goes to stderr)", None
    )
    log_file_bytes: int = setting(BYTES, "how large that file may be before a new one begins", 100 * MIB)
    log_files: int = setting(COUNT, "how many older files are kept, as FILE.1 and so on", 5)
    access_log_every: int = setting(
        integer(0, 1_000_000),
        "of how many calls of a method that succeed one is logged; 0: none; failures always are",
        100,
    )

    def __repr__(self) -> str:
        return f"GatewaySettings({', '.join(f'{name}={text!r}' for name, text in self.shown().items())})"

    def validate(self) -> "GatewaySettings":
        """Return the settings when they fit together; a name is chosen if there is none."""
        self._check_kinds()
        self._check_pairs()
        if (self.master_discovery == "http") != (self.master_discovery_url is not None):
            raise bad_setting(
                "master_discovery_url",
                "missing" if self.master_discovery_url is None else "given",
                "given with master_discovery=http, and only then",
            )
        self._check_log_file()
        if self.policy is not None:
            from tubemq_spark.gateway.policy import load_policy

            load_policy(Path(self.policy), certificates=self.tls_client_ca is not None)
        if self.heartbeat_ms >= self.lease_ms:
            raise bad_setting("heartbeat_ms", self.heartbeat_ms, f"below lease_ms, which is {self.lease_ms}")
        for name, other in (("session_bytes", "total_bytes"), ("route_refresh_ms", "route_expiry_ms")):
            value, most = getattr(self, name), getattr(self, other)
            if value > most:
                raise bad_setting(name, value, f"{other} ({most}) at most")
        _in_our_words(self.client_config().validate)
        if (tls := self.server_tls()) is not None:
            _in_our_words(tls.context)
        return self if self.node_name else dataclasses.replace(self, node_name=_any_name())

    def _check_kinds(self) -> None:
        """Refuse a value that no text gives."""
        for name, declared in SETTINGS.items():
            value = getattr(self, name)
            if value not in (None, ()) and not declared.kind.fits(value):
                shown = HIDDEN if declared.secret else repr(declared.kind.shown(str(value)))
                raise bad_setting(name, shown, declared.kind.expected)

    def _check_pairs(self) -> None:
        """Refuse a setting without the one that it needs."""
        for name, needed in _NEEDED:
            if getattr(self, name) is not None and not getattr(self, needed):
                raise bad_setting(name, "given", f"given together with {needed}")

    def _check_log_file(self) -> None:
        if self.log_file is None:
            return
        path = Path(self.log_file)
        usable = os.access(path, os.W_OK) if path.exists() else os.access(path.parent, os.W_OK)
        if path.is_dir() or not usable:
            raise bad_setting("log_file", self.log_file, "a file that this process may write")

    @property
    def most(self) -> Mapping[str, int]:
        """The largest values that clients get of settings that they choose."""
        return {
            **dict.fromkeys(_CLIENTS_WAITS, self.longest_wait_ms),
            "register_attempts": _MOST_ATTEMPTS,
            "max_in_flight": _MOST_IN_FLIGHT,
            "max_in_flight_bytes": self.session_bytes,
        }

    @property
    def questions(self) -> int:
        """How many questions are asked at a time: enough for what sets up ranges and batches."""
        return max(_FEWEST_QUESTIONS, (self.reads + self.publishes) // _QUESTIONS_PER)

    @property
    def max_batch_bytes(self) -> int:
        """The longest batch that a client may publish, in bytes: one message may be longer than a request."""
        return max(self.max_message_bytes, min(_LONGEST_BATCH, self.session_bytes))

    @property
    def name(self) -> str:
        """The gateway's name."""
        return self.node_name or "gateway"

    def client_config(self) -> "ClientConfig":
        """Return how TubeMQ is reached for a session that asks for nothing special."""
        from tubemq_spark.client.config import ClientConfig
        from tubemq_spark.net.tls import TlsConfig

        tls = None
        if self.master_tls:
            tls = TlsConfig(
                self.master_tls_ca,
                self.master_tls_cert,
                self.master_tls_key,
                self.master_tls_key_password,
                self.master_tls_server_name,
            )
        return ClientConfig(
            self.master_servers, "tubemq_gateway", self.master_username, self.master_password, tls=tls
        )

    def masters(self) -> tuple[Endpoint, ...]:
        """Return where the masters are now."""
        from tubemq_spark.client.master import identity

        return identity.current_masters(self.client_config().masters)

    def web_servers(self) -> tuple[Endpoint, ...]:
        """Return where the masters serve their administration API now."""
        if self.master_web is not None:
            return self.master_web
        from tubemq_spark.client.config import usual_web_servers

        return usual_web_servers(self.masters())

    def web_names(self) -> frozenset[str]:
        """Return the names by which the status page is reached."""
        own = () if self.advertise is None else (self.advertise.rpartition(":")[0],)
        return frozenset({socket.gethostname(), *own, *self.metrics_hosts})

    def server_tls(self) -> "ServerTls | None":
        """Return how the gateway speaks TLS with its clients; None: it does not."""
        from tubemq_spark.net.tls import ServerTls

        if self.tls_cert is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key, client_ca_file=self.tls_client_ca)

    def shown(self) -> dict[str, str]:
        """Return all settings as texts that can be loaded again, but for secrets, which are hidden."""
        return {
            name: HIDDEN if declared.secret else declared.kind.shown(declared.kind.show(value))
            for name, declared in SETTINGS.items()
            if (value := getattr(self, name)) not in (None, ())
        }


SETTINGS: Final = settings_of(GatewaySettings)
"""What is declared of each setting, in their order."""


def _read(stated: Stated, kind: Kind[Any] | None = None) -> Value:
    """Return the value of a setting's text; a kind may take the place of the setting's own."""
    declared = SETTINGS[stated.name]
    kind = kind or declared.kind
    text = stated.text
    if kind is PATH and text and stated.folder is not None:
        text = str(stated.folder / text)
    value: Value = kind.parse(text)
    if value is None:
        shown = HIDDEN if declared.secret else repr(kind.shown(text))
        raise bad_setting(stated.name, shown, kind.expected_instead_of(text), stated.source)
    return value


def bad_setting(name: str, value: object, rule: str, source: str = "after all sources") -> GatewayError:
    """Return the error for a setting that cannot be used."""
    return GatewayError("TUBEMQ_GATEWAY_CONFIG", setting=name, source=source, value=value, rule=rule)


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> GatewaySettings:
    """Return the settings that the sources give together."""
    values: dict[str, Any] = {}
    masters = None
    variables = (
        Stated(name.removeprefix(ENVIRONMENT_PREFIX).lower(), text, f"variable {name}")
        for name, text in sorted((environment or {}).items())
        if name.startswith(ENVIRONMENT_PREFIX)
    )
    arguments = (Stated(name, text, f"--{name.replace('_', '-')}") for name, text in (flags or {}).items())
    for stated in _SOURCES.stated(file, variables, arguments):
        values[stated.name] = _read(stated)
        if stated.name == "master_servers":
            masters = stated
    if masters is None:
        raise bad_setting("master_servers", "missing", "given, for example as --master-servers host:8715")
    if values.get("master_tls"):
        values["master_servers"] = _read(masters, _MASTERS_OVER_TLS)
    return GatewaySettings(**values).validate()


_SOURCES: Final = Sources(
    SETTINGS,
    unreadable=lambda path, error: GatewayError(
        "TUBEMQ_GATEWAY_CONFIG_FILE", path=path, cause=str(error).rstrip(".")
    ),
    unknown=lambda name, source: GatewayError(
        "TUBEMQ_GATEWAY_CONFIG_UNKNOWN", setting=name, source=source, known=", ".join(sorted(SETTINGS))
    ),
    no_text=lambda name, value, source: bad_setting(
        name, f"of type {type(value).__name__}", SETTINGS[name].kind.expected, source
    ),
    numbers=(int,),
)
_OUR_WORDS: Final = {
    "ServerTls.cert_file": "tls_cert",
    "ServerTls.key_file": "tls_key",
    "ServerTls.client_ca_file": "tls_client_ca",
    "tubemq.tls.caFile": "master_tls_ca",
    "tubemq.tls.certFile": "master_tls_cert",
    "tubemq.tls.keyFile": "master_tls_key",
    "tubemq.tls.keyPassword": "master_tls_key_password",
}
"""The gateway's settings by what other parts of the package call them."""


def _in_our_words(check: Callable[[], object]) -> None:
    """Check files."""
    try:
        check()
    except OptionError as error:
        option = str(error.parameters.get("option"))
        if option not in _OUR_WORDS:
            raise
        parameters = {**error.parameters, "option": f"The setting {_OUR_WORDS[option]} of the gateway"}
        raise OptionError(error.condition, **parameters) from error
