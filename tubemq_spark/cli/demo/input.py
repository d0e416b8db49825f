"""Which lines the demo publishes: files in a fixed order, their names and types, and their lines.

A line travels with its line ending: TubeMQ refuses empty values, so a blank line could not travel
otherwise. The lines of a file put one after the other are the file again, byte by byte.
"""

import dataclasses
import itertools
import os
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tubemq_spark.errors import OptionError

DEFAULT_MAX_LINES: Final = 300_000
"""How much of the installed Python the demo takes, so that it ends within its time."""

MAX_LINE_BYTES: Final = 1_000_000
"""A file with a longer line is left out: TubeMQ takes 1 MiB of body and attributes, unless told otherwise."""

CHUNK_LINES: Final = 5_000

_LICENCE_NAME: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_TYPE: Final = re.compile(r"[A-Za-z0-9]{1,16}")
_NO_TYPE: Final = "none"
_SAFE_IN_NAMES: Final = "/+-()@!~"
_SKIPPED_DIRECTORIES: Final = frozenset({"__pycache__", ".git"})
_INSTALLED_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A file to publish."""

    path: Path
    name: str
    """What its messages carry as the attribute ``file``; unique among the files of a run."""
    extension: str
    """Its messages' type."""
    line_count: int
    """Lines it had when it was looked at."""

    def chunks(self, size: int = CHUNK_LINES) -> Iterator[list[bytes]]:
        """Yield the lines in lists of up to ``size``, so that a file of any length fits into memory."""
        with self.path.open("rb") as stream:
            while chunk := list(itertools.islice(stream, size)):
                yield chunk


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The files of a run, in the order they are published."""

    files: tuple[InputFile, ...]
    left_out: tuple[str, ...]
    """Files that cannot be published, each with its reason."""

    @property
    def line_count(self) -> int:
        """Lines of all files."""
        return sum(file.line_count for file in self.files)


def select_installed_python(max_lines: int | None = DEFAULT_MAX_LINES) -> Selection:
    """Choose the licence files and modules of the running Python and of its installed packages.

    Licences first, then modules, each by name: the same installation gives the same lines.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    packages = sorted({Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")})
    found = [
        (f"stdlib/{path.relative_to(stdlib).as_posix()}", path)
        for path in _walk(stdlib, _SKIPPED_DIRECTORIES | _INSTALLED_PACKAGES)
    ]
    for root in packages:
        found += [(f"site-packages/{path.relative_to(root).as_posix()}", path) for path in _walk(root)]
    licences = [(name, path) for name, path in found if _LICENCE_NAME.match(path.name)]
    modules = [(name, path) for name, path in found if path.suffix == ".py"]
    return _select([*licences, *modules], max_lines)


def select_paths(paths: Sequence[str], max_lines: int | None = None) -> Selection:
    """Choose the user's files, and all files in the user's directories.

    Names are relative to the deepest directory that holds all of it.

    Raises:
        OptionError: a path does not exist, or all of them together hold no line.
    """
    roots = [Path(text).absolute() for text in paths]
    for root in roots:
        if not root.exists():
            raise OptionError("TUBEMQ_DEMO_INPUT", path=root, problem="does not exist")
    base = Path(os.path.commonpath([root.parent for root in roots]))
    files = [path for root in roots for path in (_walk(root) if root.is_dir() else [root])]
    selection = _select(((path.relative_to(base).as_posix(), path) for path in files), max_lines)
    if not selection.line_count:
        reasons = "; ".join(selection.left_out) or "there are only empty files"
        raise OptionError("TUBEMQ_DEMO_INPUT", path=", ".join(paths), problem=f"holds no line ({reasons})")
    return selection


def attribute_name(name: str) -> str:
    """Return a file's name in a form every attribute takes.

    TubeMQ's attributes know no escaping of ``,`` and ``=``, so whatever is not plain is percent-encoded.
    """
    return quote(os.fsencode(name), safe=_SAFE_IN_NAMES)


def extension_of(path: Path) -> str:
    """Return a file's extension in lower case, the type of its messages; ``none`` without a plain one."""
    suffix = path.suffix.removeprefix(".")
    return suffix.lower() if _TYPE.fullmatch(suffix) else _NO_TYPE


def _walk(root: Path, skipped: frozenset[str] = _SKIPPED_DIRECTORIES) -> list[Path]:
    """Return the regular files below a directory by name; links to directories are not followed."""
    found = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(set(names) - skipped)
        found += [path for path in (Path(directory, name) for name in files) if path.is_file()]
    return sorted(found)


def _select(candidates: Iterable[tuple[str, Path]], max_lines: int | None) -> Selection:
    """Take whole files in order while they fit into ``max_lines``; each file once."""
    chosen: dict[Path, InputFile] = {}
    left_out = []
    total = 0
    for name, path in candidates:
        if path in chosen:
            continue
        try:
            lines, longest = _measure(path)
        except OSError as error:
            left_out.append(f"{path}: {error.strerror}")
            continue
        if longest > MAX_LINE_BYTES:
            left_out.append(f"{path}: a line of {longest} bytes is more than a message takes")
            continue
        if max_lines is not None and total + lines > max_lines:
            break
        total += lines
        if lines:
            chosen[path] = InputFile(path, attribute_name(name), extension_of(path), lines)
    return Selection(tuple(chosen.values()), tuple(left_out))


def _measure(path: Path) -> tuple[int, int]:
    """Return how many lines a file has, and the bytes of its longest one."""
    with path.open("rb") as stream:
        sizes = [len(line) for line in stream]
    return len(sizes), max(sizes, default=0)
