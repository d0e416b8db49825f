"""Settings of commands that arguments, the environment and a configuration file may give, in this order."""

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from tubemq_spark.cli.wording import cause_of
from tubemq_spark.errors import OptionError
from tubemq_spark.settings.sources import Sources, Stated
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
    variables = (
        Stated(name, text, f"The variable {variable(name)}")
        for name in readers
        if (text := os.environ.get(variable(name)))
    )
    sources = Sources(readers, _unreadable, lambda name, file: _unknown(name, file, readers), _no_text)
    for name, text, source, folder in sources.stated(_file(arguments), variables):
        called = f"The key '{name}' in the configuration file {source}" if folder else source
        value = _read(readers[name], text, called)
        settings[name] = folder / value.expanduser() if folder and isinstance(value, Path) else value
    stated = {name: getattr(arguments, name.replace("-", "_"), None) for name in readers}
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


def _unknown(name: str, file: str, readers: Readers) -> OptionError:
    if name in _SECRETS:
        instead = _SECRETS[name] or f"the variable {variable(name)}"
        return _unusable_file(file, f"it has '{name}', and secrets may not stand in it (use {instead})")
    advice = did_you_mean(name, readers) or f"it may have {', '.join(readers)}"
    return _unusable_file(file, f"it has '{name}', which is not known ({advice})")


def _no_text(name: str, _: object, file: str) -> OptionError:
    return _unusable_file(file, f"'{name}' is neither a text nor a number, true or false")


def _unreadable(file: Path, error: Exception) -> OptionError:
    return _unusable_file(file, cause_of(error))


def _read(read: Callable[[str], Any], text: str, source: str) -> Any:  # noqa: ANN401 (as its reader makes it)
    try:
        return read(text)
    except argparse.ArgumentTypeError as error:
        raise OptionError("TUBEMQ_COMMAND_SETTING", source=source, problem=str(error)) from error


def _unusable_file(file: str | Path, problem: str) -> OptionError:
    source = f"The configuration file {file}"
    return OptionError("TUBEMQ_COMMAND_SETTING", source=source, problem=problem)
