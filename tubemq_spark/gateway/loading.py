"""Settings from all sources: defaults, then a file, then the environment, then flags; the last one counts.

A name that no setting has is refused, wherever it comes from.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.settings import SETTINGS, GatewaySettings, bad_setting, read_setting

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
    found: dict[str, Any] = {}
    if file is not None:
        found |= _of_file(file)
    for variable, text in sorted((environment or {}).items()):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = _known(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), f"variable {variable}")
            found[name] = read_setting(name, text, f"variable {variable}")
    for given, text in (flags or {}).items():
        source = f"--{given.replace('_', '-')}"
        name = _known(given, source)
        found[name] = read_setting(name, text, source)
    if "master_servers" not in found:
        raise bad_setting("master_servers", "missing", "given, for example as --master-servers host:8715")
    return GatewaySettings(**found).validate()


def _of_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as opened:
            content = tomllib.load(opened)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GatewayError("TUBEMQ_GATEWAY_CONFIG_FILE", path=path, cause=str(error).rstrip(".")) from error
    found = {}
    for given, value in content.items():
        name = _known(given, str(path))
        text = _as_text(name, value, str(path))
        found[name] = read_setting(name, text, str(path))
        if name in _PATHS:
            found[name] = str(path.parent / found[name])
    return found


def _as_text(name: str, value: object, source: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if isinstance(value, int | str):
        return str(value)
    raise bad_setting(name, f"of type {type(value).__name__}", SETTINGS[name].kind.expected, source)


def _known(name: str, source: str) -> str:
    if name not in SETTINGS:
        raise GatewayError(
            "TUBEMQ_GATEWAY_CONFIG_UNKNOWN", setting=name, source=source, known=", ".join(sorted(SETTINGS))
        )
    return name
