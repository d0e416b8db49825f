"""Settings as fields of dataclasses, their check, and what files, variables and arguments say of them.

A file is TOML with settings at its top level. In it a list of texts stands for a text with commas. Of the
three sources the last one counts.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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


class Stated(NamedTuple):
    """What one source says of a setting; what a file says of paths is relative to its folder."""

    name: str
    text: str
    source: str
    folder: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Reads the settings of one program from a file and other sources; its functions make the errors."""

    known: Collection[str]
    unreadable: Callable[[Path, Exception], Exception]
    unknown: Callable[[str, str], Exception]
    """Makes the error about a name in a source."""
    no_text: Callable[[str, object, str], Exception]
    """Makes the error about a value of a file that is neither a text nor one of these numbers."""
    numbers: tuple[type, ...] = (int, float)

    def stated(self, file: Path | None, *others: Iterable[Stated]) -> Iterator[Stated]:
        """Yield the settings in a file and then in other sources; an unknown name is refused."""
        for source in (() if file is None else self._in_file(file), *others):
            for stated in source:
                self._require_known(stated.name, stated.source)
                yield stated

    def _in_file(self, path: Path) -> Iterator[Stated]:
        try:
            with path.open("rb") as opened:
                content = tomllib.load(opened)
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self.unreadable(path, error) from error
        for name, value in content.items():
            self._require_known(name, str(path))
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                text = ",".join(value)
            elif isinstance(value, (str, bool, *self.numbers)):
                text = str(value).lower() if isinstance(value, bool) else str(value)
            else:
                raise self.no_text(name, value, str(path))
            yield Stated(name, text, str(path), path.parent)

    def _require_known(self, name: str, source: str) -> None:
        if name not in self.known:
            raise self.unknown(name, source)
