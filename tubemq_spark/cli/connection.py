"""How commands name a running cluster, and the user and the certificates to reach it with.

What arguments may say of it, the environment and a configuration file may say too; arguments count first.
Below is what commands ask of the masters' administration API, and how they wait for what it brings about.
"""

import argparse
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tubemq_spark.cli.output import cause_of, text_of
from tubemq_spark.cli.parser import SECONDS, Argument, Arguments, argument, of_kind
from tubemq_spark.errors import OptionError, RpcError
from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline
from tubemq_spark.net.retry import pause
from tubemq_spark.protocol.constants import (
    DEFAULT_ADMIN_TOKEN,
    DEFAULT_MASTER_PORT,
    DEFAULT_MASTER_TLS_PORT,
    DEFAULT_WEB_PORT,
    USUAL_WEB_PORTS,
)
from tubemq_spark.settings.fields import Sources, Stated, bad_setting, settings_of
from tubemq_spark.settings.kinds import BOOLEAN, did_you_mean

if TYPE_CHECKING:
    from tubemq_spark.client.metadata.admin import MasterAdmin
    from tubemq_spark.cluster.base import Cluster
    from tubemq_spark.cluster.config import ClusterConfig

T = TypeVar("T")

PREFIX: Final = "TUBEMQ_"
FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
FILE_NAME: Final = "tubemq-spark.toml"
_SECRETS: Final = {"password": "password-file", "token": "token-file", "tls-key-password": None}
"""Keys that people may try, which would be secrets in a file that others read; and what to write instead."""
PASSWORD_VARIABLE: Final = "TUBEMQ_PASSWORD"  # noqa: S105 (the name of a variable)
TOKEN_VARIABLE: Final = "TUBEMQ_ADMIN_TOKEN"  # noqa: S105
KEY_PASSWORD_VARIABLE: Final = "TUBEMQ_TLS_KEY_PASSWORD"  # noqa: S105
"""Secrets are not arguments: any user of the machine can see those of a process."""
TITLE: Final = "connection"
"""Of the arguments that all commands have which reach a cluster."""
_TLS: Final = ("ca_file", "cert_file", "key_file", "server_name")
"""The settings of TLS that are arguments."""
_DEFAULT_TIMEOUT_S: Final = 60.0
_LOOK_EVERY_MS: Final = 500
_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
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
"""What a configuration file may have, each with what makes a value of its text, or refuses it.

A ``Path`` in a file is relative to that.
"""


TOKEN_FILE: Final = argument(
    "--token-file FILE",
    "file with the cluster's token for changes, confModAuthToken (default: what "
    f"{TOKEN_VARIABLE} in the environment says)",
    Path,
)


def connection(group: str, *, reads: bool = True) -> Argument:
    """Return the arguments of a command that reads under this group, or another that the user names."""
    return lambda parser: _add_connection(parser, group, reads=reads)


def _add_connection(parser: Arguments, group: str, *, reads: bool) -> None:
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.net.tls import TlsConfig

    client = settings_of(ClientConfig)
    named = parser.add_argument_group(
        TITLE,
        f"Each of these may be in the environment too ({variable('tls-ca')} for --tls-ca), or in the file of "
        f'--config (tls-ca = "ca.pem"). The argument counts first, then the environment, then the file.',
    )

    def add(usage: str, text: str, read: Callable[[str], Any] | None = None, **how: type) -> None:
        argument(usage, text, read, **how)(named)

    parser.set_defaults(group_by_default=group)
    add(
        "--master HOST:PORT",
        f"{client['masters'].doc}; separated by commas (default port: {DEFAULT_MASTER_PORT}, or "
        f"{DEFAULT_MASTER_TLS_PORT} with --tls)",
    )
    add(
        "--web HOST:PORT",
        f"{settings_of(ClusterConfig)['web'].doc}; separated by commas (default: the hosts of "
        f"--master, port {' or '.join(map(str, USUAL_WEB_PORTS))})",
    )
    if reads:
        add("--group GROUP", f"{client['group'].doc}; no position is moved (default: {group})")
    add(
        "--username NAME",
        f"{client['username'].doc}; the password is in the variable {PASSWORD_VARIABLE} or a file",
    )
    add("--password-file FILE", "file that holds the password", Path)
    add(
        "--tls",
        "connect over TLS; --master then names TLS ports, and the password of an encrypted key is in "
        f"the variable {KEY_PASSWORD_VARIABLE}",
        action=argparse.BooleanOptionalAction,
    )
    for name in _TLS:
        value = "FILE" if name.endswith("_file") else "NAME"
        add(f"--{_argument(name)} {value}", settings_of(TlsConfig)[name].doc)
    add(
        "--timeout SECONDS",
        f"how long a broker that is away is waited for (default: {_DEFAULT_TIMEOUT_S:g})",
        SECONDS,
    )
    add(
        "--config FILE",
        f"TOML file with these settings, by the names of the arguments (default: what {FILE_VARIABLE} "
        f"in the environment says, or {FILE_NAME} in ~/.config or $XDG_CONFIG_HOME, if there is one)",
        Path,
    )


def admin_token(arguments: argparse.Namespace) -> str:
    """Return the token: of the argument's file, the environment, or another file, in this order."""
    file: Path | None = _settled(arguments).get("token-file")
    if arguments.token_file is None and (token := os.environ.get(TOKEN_VARIABLE)):
        return token
    if file is None:
        raise OptionError("TUBEMQ_COMMAND_NO_TOKEN", variable=TOKEN_VARIABLE, default=DEFAULT_ADMIN_TOKEN)
    return read_token(file)


def read_token(file: Path) -> str:
    """Return the token of the administration API in a file."""
    token = text_of("--token-file", file).strip()
    if not token:
        raise bad_setting("--token-file", f"{file}, which is empty", "a file with a token")
    return token


def cluster_config(arguments: argparse.Namespace) -> "ClusterConfig":
    """Return how to reach the cluster that the arguments, the environment or the configuration file name."""
    from tubemq_spark.client.config import ClientConfig
    from tubemq_spark.cluster.config import ClusterConfig
    from tubemq_spark.net.tls import TlsConfig

    given = _settled(arguments)
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


def connected(arguments: argparse.Namespace) -> "tuple[ClusterConfig, Cluster]":
    """Return how to reach that cluster, and the cluster."""
    config = cluster_config(arguments)
    from tubemq_spark.cluster.open import open_cluster

    return config, open_cluster(config)


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


def variable(name: str) -> str:
    """Return the variable of the environment that stands for ``--name``."""
    return f"{PREFIX}{name.upper().replace('-', '_')}"


def _settled(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that are given anywhere, by name."""
    settings: dict[str, Any] = {}
    variables = (
        Stated(name, text, f"The variable {variable(name)}")
        for name in _READERS
        if (text := os.environ.get(variable(name)))
    )
    sources = Sources(
        _READERS,
        lambda file, error: _unusable_file(file, cause_of(error)),
        _unknown,
        lambda name, _, file: _unusable_file(file, f"'{name}' is neither a text nor a number, true or false"),
    )
    for name, text, source, folder in sources.stated(_file(arguments), variables):
        called = f"The key '{name}' in the configuration file {source}" if folder else source
        value = _read(_READERS[name], text, called)
        settings[name] = folder / value.expanduser() if folder and isinstance(value, Path) else value
    stated = {name: getattr(arguments, name.replace("-", "_"), None) for name in _READERS}
    return settings | {name: value for name, value in stated.items() if value is not None}


def usual_file() -> Path:
    """Return where the file is unless it is named; it need not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / FILE_NAME


def _file(arguments: argparse.Namespace) -> Path | None:
    named = getattr(arguments, "config", None) or os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    return usual if (usual := usual_file()).exists() else None


def _unknown(name: str, file: str) -> OptionError:
    if name in _SECRETS:
        instead = _SECRETS[name] or f"the variable {variable(name)}"
        return _unusable_file(file, f"it has '{name}', and secrets may not stand in it (use {instead})")
    advice = did_you_mean(name, _READERS) or f"it may have {', '.join(_READERS)}"
    return _unusable_file(file, f"it has '{name}', which is not known ({advice})")


def _read(read: Callable[[str], Any], text: str, source: str) -> Any:  # noqa: ANN401 (as its reader makes it)
    try:
        return read(text)
    except argparse.ArgumentTypeError as error:
        raise OptionError("TUBEMQ_COMMAND_SETTING", source=source, problem=str(error)) from error


def _unusable_file(file: str | Path, problem: str) -> OptionError:
    source = f"The configuration file {file}"
    return OptionError("TUBEMQ_COMMAND_SETTING", source=source, problem=problem)


def ask_a_master(
    config: "ClusterConfig", ask: "Callable[[MasterAdmin], T]", condition: str, token: str | None = None
) -> T:
    """Ask whichever master answers."""
    from tubemq_spark.client.metadata import admin_questions

    return admin_questions.ask_a_master(
        config.web_servers, config.client.rpc_timeout_ms / 1000, ask, condition, token
    )


def require_master(config: "ClusterConfig") -> None:
    """Ask at the masters' own ports, unless the administration API was named itself.

    Otherwise only their hosts count for commands that ask nothing but that API, and a wrong port looks right.
    """
    if config.web:
        return
    from tubemq_spark.client.master.producers import fresh_visit_token
    from tubemq_spark.net import loop
    from tubemq_spark.net.connections import Connections, close_connections

    connections = Connections()
    try:
        # Who is refused has asked a master.
        with contextlib.suppress(RpcError):
            loop.run(fresh_visit_token(config.client, connections))
    finally:
        close_connections(connections)


def await_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Look again and again whether something is so; return whether it was in time."""
    deadline = Deadline.after_ms(int(seconds * 1000))
    while not is_so():
        if not pause(_LOOK_EVERY_MS, deadline):
            return False
    return True
