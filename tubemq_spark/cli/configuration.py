"""Settings of commands that arguments, the environment and a configuration file may give, in this order."""

import argparse
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from tubemq_spark.cli.wording import cause_of
from tubemq_spark.errors import OptionError
from tubemq_spark.settings.suggest import did_you_mean

PREFIX: Final = "TUBEMQ_"
FILE_VARIABLE: Final = f"{PREFIX}CONFIG"
FILE_NAME: Final = "tubemq-spark.toml"
_SECRETS: Final = {
    "password": "password-file",
    "token": "token-file",
    "tls-key-password": None,
}
"""Keys that people may try, which would be secrets in a file that others read; and what to write instead."""

Readers: TypeAlias = Mapping[str, Callable[[str], Any]]
"""Settings by their names in a file; each with what makes a value of its text, or refuses it."""


def variable(name: str) -> str:
    """Return the variable of the environment that stands for ``--name``."""
    return f"{PREFIX}{name.upper().replace('-', '_')}"


def settled(arguments: argparse.Namespace, readers: Readers) -> dict[str, Any]:
    """Return the settings that are given anywhere, by name.

    Args:
        arguments: what was parsed; None stands for what was not given. ``config`` may name the file.
        readers: all settings there are. What reads a path makes a ``Path``: in a file it is relative to that.

    Raises:
        OptionError: the file cannot be read, has an unknown key or a secret, or a value cannot be used.
    """
    settings: dict[str, Any] = {}
    path = _file(arguments)
    if path is not None:
        for name, text in _texts(path, readers):
            value = _read(readers[name], text, f"The key '{name}' in the configuration file {path}")
            settings[name] = path.parent / value.expanduser() if isinstance(value, Path) else value
    for name, read in readers.items():
        if stated := os.environ.get(variable(name)):
            settings[name] = _read(read, stated, f"The variable {variable(name)}")
        argument = getattr(arguments, name.replace("-", "_"), None)
        if argument is not None:
            settings[name] = argument
    return settings


def usual_file() -> Path:
    """Return where the file is unless it is named; it need not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / FILE_NAME


def _file(arguments: argparse.Namespace) -> Path | None:
    named = getattr(arguments, "config", None) or os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    return usual if (usual := usual_file()).exists() else None


def _texts(path: Path, readers: Readers) -> Iterator[tuple[str, str]]:
    """Yield what a file says, by name."""
    source = f"The configuration file {path}"
    try:
        with path.open("rb") as opened:
            content = tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _unusable(source, cause_of(error)) from error
    for name, value in content.items():
        if name in _SECRETS:
            instead = _SECRETS[name] or f"the variable {variable(name)}"
            raise _unusable(source, f"it has '{name}', and secrets may not stand in it (use {instead})")
        if name not in readers:
            advice = did_you_mean(name, readers) or f"it may have {', '.join(readers)}"
            raise _unusable(source, f"it has '{name}', which is not known ({advice})")
        yield name, _as_text(name, value, source)


def _as_text(name: str, value: object, source: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, str | int | float):
        return str(value)
    raise _unusable(source, f"'{name}' is neither a text nor a number, true or false")


def _read(read: Callable[[str], Any], text: str, source: str) -> Any:  # noqa: ANN401 (as its reader makes it)
    try:
        return read(text)
    except argparse.ArgumentTypeError as error:
        raise _unusable(source, str(error)) from error


def _unusable(source: str, problem: str) -> OptionError:
    return OptionError("TUBEMQ_COMMAND_SETTING", source=source, problem=problem)
