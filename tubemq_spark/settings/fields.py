"""Settings as fields of dataclasses, and their check."""

import dataclasses
from collections.abc import Collection
from typing import Any, TypeAlias

from tubemq_spark.errors import OptionError
from tubemq_spark.settings.kinds import BOOLEAN, Kind

Value: TypeAlias = Any
"""A setting's value, of the type that the setting has."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of a setting."""

    kind: Kind[Any]
    doc: str
    """What it says, as a phrase without capital and full stop; Markdown."""
    default: Value
    """None: it has none."""
    secret: bool
    """Never shown."""


def setting(
    kind: Kind[Any], doc: str, default: object = dataclasses.MISSING, *, secret: bool = False
) -> Value:
    """Return a field of a dataclass that is a setting; without a default it must be given."""
    declared = Setting(kind, doc, None if default is dataclasses.MISSING else default, secret)
    return field_of(declared, default)


def field_of(declared: Setting, default: object) -> Value:
    """Return a field of a dataclass for what was declared."""
    field: Value = dataclasses.field(
        default=default, metadata={"setting": declared}, repr=not declared.secret
    )
    return field


def settings_of(config: type) -> dict[str, Setting]:
    """Return the settings of a dataclass by name, in their order."""
    return {
        field.name: field.metadata["setting"]
        for field in dataclasses.fields(config)
        if "setting" in field.metadata
    }


def bad_setting(name: str, value: object, rule: str) -> OptionError:
    """Return the error about a setting; ``rule`` continues "it must be"."""
    return OptionError("TUBEMQ_BAD_SETTING", name=name, value=value, rule=rule)


def require_fitting(config: object, *, apart_from: Collection[str] = ()) -> None:
    """Check that the settings of a dataclass are of their kinds.

    Args:
        config: an instance of the dataclass.
        apart_from: the settings that have checks of their own.

    Raises:
        OptionError: one is not; the text names it.
    """
    for name, declared in settings_of(type(config)).items():
        value = getattr(config, name)
        if name not in apart_from and not declared.kind.fits(value):
            rule = "True or False" if declared.kind is BOOLEAN else declared.kind.expected
            raise bad_setting(name, repr(value), rule)
