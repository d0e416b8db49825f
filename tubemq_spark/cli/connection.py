"""How commands name a running cluster, and the user and the certificates to reach it with."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.cli.arguments import SECONDS, of_kind
from tubemq_spark.cli.configuration import (
    FILE_NAME,
    FILE_VARIABLE,
    Readers,
    settled,
    usual_file,
    variable,
)
from tubemq_spark.cli.wording import text_of
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import (
    DEFAULT_ADMIN_TOKEN,
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
    USUAL_WEB_PORTS,
)
from tubemq_spark.settings.fields import bad_setting, settings_of
from tubemq_spark.settings.kinds import BOOLEAN

if TYPE_CHECKING:
    from tubemq_spark.cluster.config import ClusterConfig

PASSWORD_VARIABLE: Final = "TUBEMQ_PASSWORD"  # noqa: S105 (the name of a variable)
TOKEN_VARIABLE: Final = "TUBEMQ_ADMIN_TOKEN"  # noqa: S105
KEY_PASSWORD_VARIABLE: Final = "TUBEMQ_TLS_KEY_PASSWORD"  # noqa: S105
"""Secrets are not arguments: any user of the machine can see those of a process."""
TITLE: Final = "connection"
"""Of the arguments that all commands have which reach a cluster."""
_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
"""The settings of TLS that are arguments."""
_DEFAULT_TIMEOUT_S: Final = 60.0
_READERS: Final[Readers] = {
    "master": str,
    "web": str,
    "group": str,
    "username": str,
    "password-file": Path,
    "token-file": Path,
    "tls": of_kind(BOOLEAN),
    "tls-ca": Path,
    "tls-cert": Path,
    "tls-key": Path,
    "tls-server-name": str,
    "timeout": SECONDS,
}
"""What a configuration file may have."""


def add_connection_arguments(parser: argparse.ArgumentParser, group: str, *, reads: bool = True) -> None:
    """Describe the arguments.

    Args:
        parser: that of the command.
        group: the consumer group under which the command reads unless the user names one.
        reads: whether it reads, so that the group matters.
    """
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.net.tls import TlsConfig

    client = settings_of(ClientConfig)
    named = parser.add_argument_group(
        TITLE,
        f"Each of these may be in the environment too ({variable('tls-ca')} for --tls-ca), or in the file of "
        f'--config (tls-ca = "ca.pem"). The argument counts first, then the environment, then the file.',
    )
    named.add_argument(
        "--master",
        metavar="HOST:PORT",
        help=f"{client['masters'].doc}; separated by commas (default port: {DEFAULT_MASTER_PORT}, or "
        f"{DEFAULT_MASTER_TLS_PORT} with --tls)",
    )
    named.add_argument(
        "--web",
        metavar="HOST:PORT",
        help=f"{settings_of(ClusterConfig)['web'].doc}; separated by commas (default: the hosts of "
        f"--master, port {' or '.join(map(str, USUAL_WEB_PORTS))})",
    )
    parser.set_defaults(group_by_default=group)
    if reads:
        named.add_argument(
            "--group",
            metavar="GROUP",
            help=f"{client['group'].doc}; no position is moved (default: {group})",
        )
    named.add_argument(
        "--username",
        metavar="NAME",
        help=f"{client['username'].doc}; the password is in the variable {PASSWORD_VARIABLE} or a file",
    )
    named.add_argument("--password-file", type=Path, metavar="FILE", help="file that holds the password")
    named.add_argument(
        "--tls",
        action=argparse.BooleanOptionalAction,
        help="connect over TLS; --master then names TLS ports, and the password of an encrypted key is in "
        f"the variable {KEY_PASSWORD_VARIABLE}",
    )
    for name in _TLS:
        metavar = "FILE" if name.endswith("_file") else "NAME"
        named.add_argument(f"--{_argument(name)}", metavar=metavar, help=settings_of(TlsConfig)[name].doc)
    named.add_argument(
        "--timeout",
        type=SECONDS,
        metavar="SECONDS",
        help=f"how long a broker that is away is waited for (default: {_DEFAULT_TIMEOUT_S:g})",
    )
    named.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"TOML file with these settings, by the names of the arguments (default: what {FILE_VARIABLE} "
        f"in the environment says, or {FILE_NAME} in ~/.config or $XDG_CONFIG_HOME, if there is one)",
    )


def add_token_argument(parser: argparse.ArgumentParser) -> None:
    """Describe where the token is that changes of the cluster need."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the cluster's token for changes, confModAuthToken (default: what "
        f"{TOKEN_VARIABLE} in the environment says)",
    )


def admin_token(arguments: argparse.Namespace) -> str:
    """Return the token: of the argument's file, the environment, or another file, in this order.

    Raises:
        OptionError: there is none.
    """
    file: Path | None = settled(arguments, _READERS).get("token-file")
    if arguments.token_file is None and (token := os.environ.get(TOKEN_VARIABLE)):
        return token
    if file is None:
        raise OptionError("TUBEMQ_COMMAND_NO_TOKEN", variable=TOKEN_VARIABLE, default=DEFAULT_ADMIN_TOKEN)
    return read_token(file)


def read_token(file: Path) -> str:
    """Return the token of the administration API in a file.

    Raises:
        OptionError: the file holds none.
    """
    token = text_of("--token-file", file).strip()
    if not token:
        raise bad_setting("--token-file", f"{file}, which is empty", "a file with a token")
    return token


def cluster_config(arguments: argparse.Namespace) -> "ClusterConfig":
    """Return how to reach the cluster that the arguments, the environment or the configuration file name.

    Raises:
        OptionError: an address, a name or a file cannot be used, or something is missing.
    """
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.net.tls import TlsConfig

    given = settled(arguments, _READERS)
    if "master" not in given:
        raise OptionError("TUBEMQ_COMMAND_NO_MASTER", variable=variable("master"), file=usual_file())
    over_tls = given.get("tls", False)
    files: dict[str, Any] = {name: str(given[_argument(name)]) for name in _TLS if _argument(name) in given}
    for name in files:
        if not over_tls:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--tls", other=f"--{_argument(name)}")
    key_password = os.environ.get(KEY_PASSWORD_VARIABLE) if "cert_file" in files else None
    timeout_ms = int(given.get("timeout", _DEFAULT_TIMEOUT_S) * 1000)
    client = ClientConfig(
        _endpoints(given["master"], DEFAULT_MASTER_TLS_PORT if over_tls else DEFAULT_MASTER_PORT),
        given.get("group", arguments.group_by_default),
        given.get("username"),
        _password(arguments, given),
        TlsConfig(**files, key_password=key_password) if over_tls else None,
        lease_wait_ms=timeout_ms,
        fetch_timeout_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms,
    )
    web = given.get("web")
    return ClusterConfig(client, web=_endpoints(web, DEFAULT_WEB_PORT) if web else ()).validate()


def _endpoints(text: str, default_port: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint.parse(address, default_port) for address in text.split(","))


def _argument(setting: str) -> str:
    """Return the argument that stands for a setting of TLS."""
    return f"tls-{setting.removesuffix('_file').replace('_', '-')}"


def _password(arguments: argparse.Namespace, given: Mapping[str, Any]) -> str | None:
    """Return the password: of the argument's file, the environment, or another file, in this order."""
    file: Path | None = given.get("password-file")
    if arguments.password_file is None and PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE] if "username" in given else None
    return None if file is None else text_of("--password-file", file).rstrip("\n")
