"""Settings from all sources: defaults, then a file, then the environment, then flags; the last one counts.

A name that no setting has is refused, wherever it comes from.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.settings import (
    MASTERS_OVER_TLS,
    SETTINGS,
    GatewaySettings,
    bad_setting,
    read_setting,
)

ENVIRONMENT_PREFIX: Final = "TUBEMQ_GATEWAY_"
_FILES: Final = ("_cert", "_key", "_ca", "_dir", "policy", "log_file")
_PATHS: Final = frozenset(name for name in SETTINGS if name.endswith(_FILES))
"""Settings that name files; those in a configuration are looked for beside it."""


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> GatewaySettings:
    """Return the settings that the sources give together.

    Args:
        file: a TOML file with settings at its top level.
        environment: settings as ``TUBEMQ_GATEWAY_LEASE_MS``; other variables are passed over.
        flags: settings by name, as texts.

    Raises:
        GatewayError: a source cannot be read, names an unknown setting, or a value cannot be used; or the
            masters are not named.
        OptionError: a file that a setting names cannot be used.
    """
    values: dict[str, Any] = {}
    masters = None
    for name, text, source in _texts(file, environment or {}, flags or {}):
        values[name] = read_setting(name, text, source)
        if name == "master_servers":
            masters = text, source
    if masters is None:
        raise bad_setting("master_servers", "missing", "given, for example as --master-servers host:8715")
    if values.get("master_tls"):
        values["master_servers"] = read_setting("master_servers", *masters, MASTERS_OVER_TLS)
    return GatewaySettings(**values).validate()


def _texts(
    file: Path | None, environment: Mapping[str, str], flags: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yield each setting's name, text and source, those that count last."""
    if file is not None:
        yield from _texts_of(file)
    for variable, text in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            source = f"variable {variable}"
            yield _checked(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), source), text, source
    for name, text in flags.items():
        source = f"--{name.replace('_', '-')}"
        yield _checked(name, source), text, source


def _texts_of(path: Path) -> Iterator[tuple[str, str, str]]:
    source = str(path)
    try:
        with path.open("rb") as opened:
            content = tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GatewayError("TUBEMQ_GATEWAY_CONFIG_FILE", path=path, cause=str(error).rstrip(".")) from error
    for name, value in content.items():
        text = _as_text(_checked(name, source), value, source)
        yield name, str(path.parent / text) if name in _PATHS and text.strip() else text, source


def _as_text(name: str, value: object, source: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, int | str):
        return str(value)
    raise bad_setting(name, f"of type {type(value).__name__}", SETTINGS[name].kind.expected, source)


def _checked(name: str, source: str) -> str:
    if name not in SETTINGS:
        raise GatewayError(
            "TUBEMQ_GATEWAY_CONFIG_UNKNOWN", setting=name, source=source, known=", ".join(sorted(SETTINGS))
        )
    return name
