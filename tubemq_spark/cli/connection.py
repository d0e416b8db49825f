"""How commands name a running cluster, and the user and the certificates to reach it with."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import (
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
)

if TYPE_CHECKING:
    from tubemq_spark.cluster.config import ClusterConfig

PASSWORD_VARIABLE: Final = "TUBEMQ_PASSWORD"  # noqa: S105 (the name of a variable)
KEY_PASSWORD_VARIABLE: Final = "TUBEMQ_TLS_KEY_PASSWORD"  # noqa: S105
"""Secrets are not arguments: any user of the machine can see those of a process."""


def add_connection_arguments(parser: argparse.ArgumentParser, group: str) -> None:
    """Describe the arguments.

    Args:
        parser: that of the command.
        group: the consumer group under which the command reads unless the user names one.
    """
    named = parser.add_argument_group("connection")
    named.add_argument(
        "--master",
        required=True,
        metavar="HOST:PORT",
        help="the masters of the cluster, separated by commas (default port: 8715, or 8716 with --tls)",
    )
    named.add_argument(
        "--group",
        default=group,
        metavar="GROUP",
        help="consumer group to read under; no position is moved (default: %(default)s)",
    )
    named.add_argument(
        "--username",
        metavar="NAME",
        help=f"user, for clusters that require a login; the password is in {PASSWORD_VARIABLE} or a file",
    )
    named.add_argument("--password-file", type=Path, metavar="FILE", help="file that holds the password")
    named.add_argument("--tls", action="store_true", help="connect over TLS; --master then names TLS ports")
    named.add_argument(
        "--tls-ca", metavar="FILE", help="CAs to trust, in PEM (default: those that the system trusts)"
    )
    named.add_argument(
        "--tls-cert", metavar="FILE", help="certificate to show to servers that ask for one, in PEM"
    )
    named.add_argument(
        "--tls-key",
        metavar="FILE",
        help=f"its private key, in PEM (default: in the same file); a password is in {KEY_PASSWORD_VARIABLE}",
    )
    named.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="name in the certificates of all servers, if not their hosts",
    )
    named.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a broker that is away is waited for (default: %(default)g)",
    )


def add_web_argument(parser: argparse.ArgumentParser) -> None:
    """Describe where the masters list topics and groups: the protocol of the clients does not."""
    parser.add_argument(
        "--web",
        metavar="HOST:PORT",
        help="where the masters serve their administration API, separated by commas (default: port 8080 "
        "of each "
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

    tls = None
    if arguments.tls:
        key_password = os.environ.get(KEY_PASSWORD_VARIABLE)
        tls = TlsConfig(
            arguments.tls_ca,
            arguments.tls_cert,
            arguments.tls_key,
            key_password if arguments.tls_cert else None,
            arguments.tls_server_name,
        )
    else:
        _refuse_without_tls(arguments)
    default_port = DEFAULT_MASTER_TLS_PORT if arguments.tls else DEFAULT_MASTER_PORT
    masters = tuple(Endpoint.parse(address, default_port) for address in arguments.master.split(","))
    timeout_ms = int(arguments.timeout * 1000)
    client = ClientConfig(
        masters,
        arguments.group,
        arguments.username,
        _password(arguments),
        tls,
        lease_wait_ms=timeout_ms,
        fetch_timeout_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms,
    )
    web = getattr(arguments, "web", None)
    servers = tuple(Endpoint.parse(address, DEFAULT_WEB_PORT) for address in web.split(",")) if web else ()
    return ClusterConfig(client, web=servers).validate()


def _password(arguments: argparse.Namespace) -> str | None:
    if arguments.username is None and arguments.password_file is None:
        return None
    if arguments.password_file is not None:
        return str(arguments.password_file.read_text()).rstrip("\n")
    return os.environ.get(PASSWORD_VARIABLE)


def _refuse_without_tls(arguments: argparse.Namespace) -> None:
    """Refuse options of TLS that would have no effect."""
    for name in ("tls_ca", "tls_cert", "tls_key", "tls_server_name"):
        if getattr(arguments, name) is not None:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="--tls", other=f"--{name.replace('_', '-')}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from above 0 to 86400")
    return seconds
