"""The gateway's settings: each with its name, its text, its default and its bounds."""

import dataclasses
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import (
    DEFAULT_GATEWAY_PORT,
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
)

if TYPE_CHECKING:
    # The command line names all settings in its help, which is to be quick.
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.net.tls import ServerTls

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000
_HIDDEN: Final = "********"


_NEEDED: Final = (
    ("tls_key", "tls_cert"),
    ("tls_client_ca", "tls_cert"),
    # A token that others can read on its way is none.
    ("policy", "tls_cert"),
    ("master_username", "master_password"),
    ("master_password", "master_username"),
    # Otherwise whoever reaches the port would have this user's rights.
    ("master_username", "policy"),
    ("master_admin_token", "policy"),
    *((f"master_tls_{name}", "master_tls") for name in ("ca", "cert", "key", "key_password", "server_name")),
)
"""Settings, each with another one that it needs."""


Value: TypeAlias = Any
"""Of whatever type the setting has."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What the text of a setting may be."""

    expected: str
    """What it must be, as the end of a sentence."""
    read: Callable[[str], Any]
    """Makes a value of the text; raises ValueError when it is not what is expected."""


def _whole(least: int, most: int) -> Kind:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(text)
        return int(text)

    return Kind(f"a whole number from {least} to {most}", read)


def _one_of(*choices: str) -> Kind:
    known = {choice.upper(): choice for choice in choices}
    return Kind(f"one of {', '.join(choices)}", lambda text: known[text.strip().upper()])


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _listener(text: str) -> tuple[str, int]:
    """Read ``host:port``; unlike that of a peer, the port may be 0, for any free one."""
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host, port = port, str(DEFAULT_GATEWAY_PORT)
    if not host or not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ValueError(text)
    return host, int(port)


def _listed(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for address in found:
        Endpoint.parse(address, 1)
    if not found:
        raise ValueError(text)
    return found


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError(text)
    return text


TEXT: Final = Kind("a text that is not blank", _text)
BOOLEAN: Final = Kind("true or false", _boolean)
LISTENER: Final = Kind("host:port, the port from 0 (any free one) to 65535", _listener)
URL: Final = Kind("a URL that begins with http:// or https://", _url)
SERVERS: Final = Kind("one or more host:port, separated by commas", _listed)
MILLISECONDS: Final = _whole(1, _DAY_MS)
COUNT: Final = _whole(1, 1_000_000)
BYTES: Final = _whole(64 << 10, 1 << 40)


@dataclasses.dataclass(frozen=True, slots=True)
class _Meaning:
    kind: Kind
    doc: str
    secret: bool = False


def _setting(kind: Kind, doc: str, default: object = dataclasses.MISSING, *, secret: bool = False) -> Value:
    meaning = {"meaning": _Meaning(kind, doc, secret)}
    found: Value = dataclasses.field(default=default, metadata=meaning, repr=not secret)
    return found


def _any_name() -> str:
    return f"{socket.gethostname()}-{secrets.token_hex(3)}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How a gateway runs; safe to log."""

    master_servers: tuple[str, ...] = _setting(
        SERVERS, "the masters of the TubeMQ cluster (default port: 8715, or 8716 with master_tls)"
    )
    master_web: tuple[str, ...] | None = _setting(
        SERVERS,
        "where the masters serve their administration API (default: port 8080 of each master's host)",
        None,
    )
    master_discovery: str = _setting(
        _one_of("off", "dns", "http"),
        "how to find out where the masters are: dns asks for all addresses of the hosts in master_servers, "
        "http reads master_discovery_url",
        "off",
    )
    master_discovery_url: str | None = _setting(
        URL, "where a text with host:port of each master is, for master_discovery=http", None
    )
    master_discovery_ms: int = _setting(MILLISECONDS, "how often to find that out", 120_000)
    listen: tuple[str, int] = _setting(
        LISTENER,
        "where clients reach the gateway; with 0.0.0.0 on every address",
        ("127.0.0.1", DEFAULT_GATEWAY_PORT),
    )
    reuse_port: bool = _setting(
        BOOLEAN, "whether several gateways of one host may share the port, to use several cores", False
    )
    advertise: str | None = _setting(
        TEXT, "the address that clients are told (default: where it listens)", None
    )
    node_name: str | None = _setting(
        TEXT, "the gateway's name in errors and logs (default: the host's name and a random suffix)", None
    )
    cluster_name: str = _setting(TEXT, "a label for operators", "default")
    announce_dir: str | None = _setting(
        TEXT, "a directory that gateways share, where each says that it is there (default: none)", None
    )
    tls_cert: str | None = _setting(
        TEXT, "the certificate to show to clients, in PEM; without it, no TLS", None
    )
    tls_key: str | None = _setting(TEXT, "its private key, in PEM (default: in the same file)", None)
    tls_client_ca: str | None = _setting(TEXT, "the CAs whose certificates clients must show, in PEM", None)
    policy: str | None = _setting(
        TEXT, "a TOML file with the clients that may call, and their rights (default: everybody may)", None
    )
    master_tls: bool = _setting(BOOLEAN, "whether masters and brokers are reached over TLS", False)
    master_tls_ca: str | None = _setting(
        TEXT, "the CAs that issued the certificates of masters and brokers, in PEM", None
    )
    master_tls_cert: str | None = _setting(
        TEXT, "the certificate to show to masters and brokers, in PEM", None
    )
    master_tls_key: str | None = _setting(TEXT, "its private key, in PEM (default: in the same file)", None)
    master_tls_key_password: str | None = _setting(TEXT, "the password of that key", None, secret=True)
    master_tls_server_name: str | None = _setting(
        TEXT, "the name in the certificates of all masters and brokers, if not their hosts", None
    )
    master_username: str | None = _setting(
        TEXT, "the user as whom the gateway logs in for clients that name none; needs a policy", None
    )
    master_password: str | None = _setting(TEXT, "that user's password", None, secret=True)
    master_admin_token: str | None = _setting(
        TEXT,
        "the masters' confModAuthToken: clients create topics that the policy allows; needs a policy",
        None,
        secret=True,
    )
    require_master: bool = _setting(BOOLEAN, "whether to end at once when no master can be reached", False)
    lease_ms: int = _setting(MILLISECONDS, "how long a session may be silent", 30_000)
    heartbeat_ms: int = _setting(
        MILLISECONDS, "how often a client without other calls is to send a sign", 10_000
    )
    keepalive_ms: int = _setting(
        MILLISECONDS, "after how much silence a client's connection is asked for a sign of life", 30_000
    )
    keepalive_timeout_ms: int = _setting(
        MILLISECONDS, "how long that may take before the connection counts as lost", 10_000
    )
    disconnect_ms: int = _setting(
        MILLISECONDS,
        "after how long a session is closed whose stream was lost, if it wants that",
        5_000,
    )
    housekeeping_ms: int = _setting(MILLISECONDS, "how often silent sessions are looked for", 5_000)
    route_refresh_ms: int = _setting(MILLISECONDS, "how old what a master said of partitions may be", 20_000)
    route_expiry_ms: int = _setting(MILLISECONDS, "how old it may be while no master answers", 300_000)
    sessions: int = _setting(COUNT, "how many sessions there may be", 10_000)
    control_threads: int = _setting(COUNT, "how many short calls are carried out at a time", 32)
    consuming_threads: int = _setting(
        COUNT, "how many calls of consumers are carried out at a time; a fetch that waits is none", 32
    )
    poll_ms: int = _setting(
        MILLISECONDS, "how often a broker is asked again for messages that fetches wait for", 200
    )
    new_groups: bool = _setting(
        BOOLEAN, "whether sessions may consume in a group that TubeMQ does not know yet", True
    )
    notify_members: bool = _setting(
        BOOLEAN, "whether sessions are told when others of their group come or go", True
    )
    membership_threads: int = _setting(COUNT, "how many questions about groups are asked at a time", 4)
    fetches: int = _setting(COUNT, "how many fetches may wait for messages", 10_000)
    reads: int = _setting(COUNT, "how many ranges are read at a time", 256)
    publishes: int = _setting(COUNT, "how many clients publish at a time", 256)
    waiting_calls: int = _setting(COUNT, "how many calls of each kind may wait for their turn", 1_000)
    queue_ms: int = _setting(MILLISECONDS, "how long a call may wait for its turn", 3_000)
    max_message_bytes: int = _setting(
        _whole(64 << 10, (1 << 31) - 1), "the longest message of a client, in bytes", 32 * MIB
    )
    session_bytes: int = _setting(BYTES, "how many bytes of one session may wait in the gateway", 64 * MIB)
    total_bytes: int = _setting(BYTES, "how many bytes of all sessions may wait in the gateway", 1024 * MIB)
    stall_ms: int = _setting(
        MILLISECONDS, "how long a client may not read what is ready for it while others wait for room", 10_000
    )
    drain_ms: int = _setting(MILLISECONDS, "how long calls may take to end when the gateway stops", 30_000)
    metrics: tuple[str, int] | None = _setting(
        LISTENER,
        "where to serve metrics, a status page and a health check over HTTP (default: nowhere)",
        None,
    )
    channelz: bool = _setting(
        BOOLEAN, "whether to serve gRPC's channelz, which needs the extra gateway-channelz", False
    )
    log_level: str = _setting(
        _one_of("DEBUG", "INFO", "WARNING", "ERROR"), "what the gateway's log has", "INFO"
    )
    log_json: bool = _setting(BOOLEAN, "whether each entry of the log is a JSON object", False)
    log_file: str | None = _setting(
        TEXT, "the file for the log, one for each process (default: the log goes to stderr)", None
    )
    log_file_bytes: int = _setting(BYTES, "how large that file may be before a new one begins", 100 * MIB)
    log_files: int = _setting(COUNT, "how many files of before are kept, as FILE.1 and so on", 5)
    access_log_every: int = _setting(
        _whole(0, 1_000_000), "which calls are logged: each so many of a method; 0: only failures", 100
    )

    def validate(self) -> "GatewaySettings":
        """Return the settings when they fit together; a name is chosen if there is none.

        Raises:
            GatewayError: one does not fit another.
            OptionError: a file cannot be used.
        """
        self._check_pairs()
        if (self.master_discovery == "http") != (self.master_discovery_url is not None):
            raise bad_setting(
                "master_discovery_url",
                self.master_discovery_url or "missing",
                "given with master_discovery=http, and only then",
            )
        if "@" in (self.master_discovery_url or ""):
            # The log shows the URL; the error must not.
            raise bad_setting("master_discovery_url", "given with a login", "without a user and a password")
        self._check_log_file()
        if self.policy is not None:
            from tubemq_spark.gateway.policy import load_policy

            load_policy(Path(self.policy))
        if self.heartbeat_ms >= self.lease_ms:
            raise bad_setting("heartbeat_ms", self.heartbeat_ms, f"below lease_ms, which is {self.lease_ms}")
        if self.session_bytes > self.total_bytes:
            raise bad_setting(
                "session_bytes", self.session_bytes, f"total_bytes ({self.total_bytes}) at most"
            )
        if self.route_refresh_ms > self.route_expiry_ms:
            raise bad_setting(
                "route_refresh_ms", self.route_refresh_ms, f"route_expiry_ms ({self.route_expiry_ms}) at most"
            )
        self.client_config().validate()
        if (tls := self.server_tls()) is not None:
            tls.context()
        return self if self.node_name else dataclasses.replace(self, node_name=_any_name())

    def _check_pairs(self) -> None:
        """Refuse a setting without the one that it needs."""
        for name, other in _NEEDED:
            if getattr(self, name) is not None and not getattr(self, other):
                raise bad_setting(name, "given", f"given together with {other}")

    def _check_log_file(self) -> None:
        if self.log_file is None:
            return
        path = Path(self.log_file)
        usable = os.access(path, os.W_OK) if path.exists() else os.access(path.parent, os.W_OK)
        if path.is_dir() or not usable:
            raise bad_setting("log_file", self.log_file, "a file that this process may write")

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
        masters = tuple(Endpoint.parse(address, self.default_master_port) for address in self.master_servers)
        return ClientConfig(masters, "tubemq_gateway", self.master_username, self.master_password, tls=tls)

    @property
    def default_master_port(self) -> int:
        """The port of a master whose address has none."""
        return DEFAULT_MASTER_TLS_PORT if self.master_tls else DEFAULT_MASTER_PORT

    def masters(self) -> tuple[Endpoint, ...]:
        """Return where the masters are now."""
        from tubemq_spark.client.master import lists as master_lists

        return master_lists.current(self.client_config().masters)

    def web_servers(self) -> tuple[Endpoint, ...]:
        """Return where the masters serve their administration API now."""
        if self.master_web is not None:
            return tuple(Endpoint.parse(address, DEFAULT_WEB_PORT) for address in self.master_web)
        return tuple(Endpoint(one.host, DEFAULT_WEB_PORT) for one in self.masters())

    def server_tls(self) -> "ServerTls | None":
        """Return how the gateway speaks TLS with its clients; None: it does not."""
        from tubemq_spark.net.tls import ServerTls

        if self.tls_cert is None:
            return None
        return ServerTls(self.tls_cert, self.tls_key, client_ca_file=self.tls_client_ca)

    def shown(self) -> dict[str, str]:
        """Return all settings as texts that ``read`` understands, but for secrets, which are hidden."""
        found = {}
        for name, meaning in SETTINGS.items():
            value = getattr(self, name)
            if value is not None:
                found[name] = _HIDDEN if meaning.secret else _shown(value)
        return found


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        listener = len(value) == 2 and isinstance(value[1], int)
        return (":" if listener else ",").join(map(str, value))
    return str(value)


SETTINGS: Final[Mapping[str, _Meaning]] = {
    field.name: field.metadata["meaning"] for field in dataclasses.fields(GatewaySettings)
}
"""What each setting means, in the order of the settings."""


def read_setting(name: str, text: str, source: str) -> Value:
    """Return the value of a setting's text.

    Raises:
        GatewayError: it is not what the setting expects.
    """
    meaning = SETTINGS[name]
    try:
        return meaning.kind.read(text)
    except (ValueError, KeyError, OptionError):
        shown = _HIDDEN if meaning.secret else repr(text)
        raise bad_setting(name, shown, meaning.kind.expected, source) from None


def bad_setting(name: str, value: object, rule: str, source: str = "after all sources") -> GatewayError:
    """Return the error for a setting that cannot be used."""
    return GatewayError("TUBEMQ_GATEWAY_CONFIG", setting=name, source=source, value=value, rule=rule)
