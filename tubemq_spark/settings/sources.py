"""Settings as texts from a file, from variables and from arguments, in this order: the last one counts.

A file is TOML with settings at its top level. In it a list of texts stands for a text with commas.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Stated(NamedTuple):
    """What one source says of a setting; what a file says of paths is relative to its folder."""

    name: str
    text: str
    source: str
    folder: Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Reads what sources say of one program's settings, with its words for what is wrong in them."""

    known: Collection[str]
    unreadable: Callable[[Path, Exception], Exception]
    unknown: Callable[[str, str], Exception]
    """Makes the error about a name in a source."""
    no_text: Callable[[str, object, str], Exception]
    """Makes the error about a value of a file that is neither a text nor one of these numbers."""
    numbers: tuple[type, ...] = (int, float)

    def stated(self, file: Path | None, *others: Iterable[Stated]) -> Iterator[Stated]:
        """Yield what a file and then other sources say; a name that is unknown is refused."""
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
