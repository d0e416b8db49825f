"""How commands name a running cluster, and the user and the certificates to reach it with."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubemq_spark.cli.arguments import SECONDS
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import (
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
)
from tubemq_spark.settings.fields import settings_of

if TYPE_CHECKING:
    from tubemq_spark.cluster.config import ClusterConfig

MASTER_VARIABLE: Final = "TUBEMQ_MASTER"
PASSWORD_VARIABLE: Final = "TUBEMQ_PASSWORD"  # noqa: S105 (the name of a variable)
KEY_PASSWORD_VARIABLE: Final = "TUBEMQ_TLS_KEY_PASSWORD"  # noqa: S105
"""Secrets are not arguments: any user of the machine can see those of a process."""
_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
"""The settings of TLS that are arguments."""


def add_connection_arguments(parser: argparse.ArgumentParser, group: str, *, reads: bool = True) -> None:
    """Describe the arguments.

    Args:
        parser: that of the command.
        group: the consumer group under which the command reads unless the user names one.
        reads: whether it reads, so that the group matters.
    """
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.net.tls import TlsConfig

    client = settings_of(ClientConfig)
    named = parser.add_argument_group("connection")
    named.add_argument(
        "--master",
        default=os.environ.get(MASTER_VARIABLE),
        required=MASTER_VARIABLE not in os.environ,
        metavar="HOST:PORT",
        help=f"{client['masters'].doc}; separated by commas (default port: 8715, or 8716 with --tls; "
        f"default: what {MASTER_VARIABLE} in the environment says)",
    )
    if reads:
        named.add_argument(
            "--group",
            default=group,
            metavar="GROUP",
            help=f"{client['group'].doc}; no position is moved (default: %(default)s)",
        )
    else:
        parser.set_defaults(group=group)
    named.add_argument(
        "--username",
        metavar="NAME",
        help=f"{client['username'].doc}; the password is in {PASSWORD_VARIABLE} or a file",
    )
    named.add_argument("--password-file", type=Path, metavar="FILE", help="file that holds the password")
    named.add_argument(
        "--tls",
        action="store_true",
        help="connect over TLS; --master then names TLS ports, and the password of an encrypted key is in "
        f"{KEY_PASSWORD_VARIABLE}",
    )
    for name in _TLS:
        metavar = "FILE" if name.endswith("_file") else "NAME"
        named.add_argument(_flag(name), metavar=metavar, help=settings_of(TlsConfig)[name].doc)
    named.add_argument(
        "--timeout",
        type=SECONDS,
        default=60.0,
        metavar="SECONDS",
        help="how long a broker that is away is waited for (default: %(default)g)",
    )


def add_web_argument(parser: argparse.ArgumentParser) -> None:
    """Describe where the masters list topics and groups: the protocol of the clients does not."""
    from tubemq_spark.cluster.config import ClusterConfig

    parser.add_argument(
        "--web",
        metavar="HOST:PORT",
        help=f"{settings_of(ClusterConfig)['web'].doc}; separated by commas (default: port 8080 of each "
        "master's host)",
    )


def cluster_config(arguments: argparse.Namespace) -> "ClusterConfig":
    """Return how to reach the cluster that the arguments name.

    Raises:
        OptionError: an address, a name or a file cannot be used, or something is missing.
    """
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.net.tls import TlsConfig

    files = {name: getattr(arguments, _flag(name)[2:].replace("-", "_")) for name in _TLS}
    tls = None
    if arguments.tls:
        key_password = os.environ.get(KEY_PASSWORD_VARIABLE) if arguments.tls_cert else None
        tls = TlsConfig(**files, key_password=key_password)
    for name, value in files.items():
        if value is not None and tls is None:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--tls", other=_flag(name))
    timeout_ms = int(arguments.timeout * 1000)
    client = ClientConfig(
        _endpoints(arguments.master, DEFAULT_MASTER_TLS_PORT if arguments.tls else DEFAULT_MASTER_PORT),
        arguments.group,
        arguments.username,
        _password(arguments),
        tls,
        lease_wait_ms=timeout_ms,
        fetch_timeout_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms,
    )
    web = getattr(arguments, "web", None)
    return ClusterConfig(client, web=_endpoints(web, DEFAULT_WEB_PORT) if web else ()).validate()


def _endpoints(text: str, default_port: int) -> tuple[Endpoint, ...]:
    return tuple(Endpoint.parse(address, default_port) for address in text.split(","))


def _flag(setting: str) -> str:
    """Return the argument that stands for a setting of TLS."""
    return f"--tls-{setting.removesuffix('_file').replace('_', '-')}"


def _password(arguments: argparse.Namespace) -> str | None:
    if arguments.username is None and arguments.password_file is None:
        return None
    if arguments.password_file is not None:
        return str(arguments.password_file.read_text()).rstrip("\n")
    return os.environ.get(PASSWORD_VARIABLE)
