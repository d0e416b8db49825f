"""Which lines the demo publishes: files in a fixed order, their names and types, and their lines.

A line is sent with its line ending, because TubeMQ refuses empty values and a blank line would be one. The
lines of a file, joined, are the file again, byte for byte.
"""

import contextlib
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

DEFAULT_MAX_LINES: Final = 100_000
"""How much of the installed Python the demo publishes, so that it takes about a minute."""

MAX_LINE_BYTES: Final = 1_000_000
"""Files with a longer line are skipped: by default TubeMQ accepts 1 MiB of body and attributes."""

CHUNK_LINES: Final = 5_000

_LICENCE_NAME: Final = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
_MODULE_NAME: Final = re.compile(r".+\.py$")
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
    """The attribute ``file`` of its messages; unique among the files of a run."""
    extension: str
    """The type of its messages."""
    line_count: int
    """Number of lines when the file was selected."""

    def chunks(self, size: int = CHUNK_LINES) -> Iterator[list[bytes]]:
        """Yield the lines in lists of up to ``size``, so that files of any length fit into memory."""
        with self.path.open("rb") as stream:
            while chunk := list(itertools.islice(stream, size)):
                yield chunk


@dataclasses.dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of a run, in the order they are published."""

    files: tuple[InputFile, ...]
    skipped: tuple[str, ...]
    """Files that cannot be published, each with the reason."""

    @property
    def line_count(self) -> int:
        """Lines of all files."""
        return sum(file.line_count for file in self.files)


def select_installed_python(max_lines: int | None = DEFAULT_MAX_LINES) -> InputFiles:
    """Select the licence files and modules of the running Python and of its installed packages.

    Licences come first, then modules, both by name, so the same installation gives the same lines.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    packages = sorted({Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")})
    roots = [
        ("stdlib", stdlib, _SKIPPED_DIRECTORIES | _INSTALLED_PACKAGES),
        *(("site-packages", root, _SKIPPED_DIRECTORIES) for root in packages),
    ]

    def named(pattern: re.Pattern[str]) -> Iterator[tuple[str, Path]]:
        for place, root, skipped in roots:
            for entry in _walk(root, skipped):
                if pattern.match(entry.name):
                    path = Path(entry.path)
                    yield f"{place}/{path.relative_to(root).as_posix()}", path

    return _select(itertools.chain(named(_LICENCE_NAME), named(_MODULE_NAME)), max_lines)


def select_paths(paths: Sequence[str], max_lines: int | None = None) -> InputFiles:
    """Select the user's files, and all files in the user's directories.

    Names are relative to the deepest directory that contains them all.

    Raises:
        OptionError: a path does not exist, or there is not a single line.
    """
    roots = [Path(text).absolute() for text in paths]
    for root in roots:
        if not root.exists():
            raise OptionError("TUBEMQ_DEMO_INPUT", path=root, problem="does not exist")
    base = Path(os.path.commonpath([root.parent for root in roots]))
    files = [path for root in roots for path in (map(Path, _walk(root)) if root.is_dir() else [root])]
    selection = _select(((path.relative_to(base).as_posix(), path) for path in files), max_lines)
    if not selection.line_count:
        reasons = "; ".join(selection.skipped) or "all files are empty"
        raise OptionError(
            "TUBEMQ_DEMO_INPUT", path=", ".join(paths), problem=f"contains no lines ({reasons})"
        )
    return selection


def attribute_name(name: str) -> str:
    """Return a file's name in a form that is valid in an attribute.

    TubeMQ has no escapes for ``,`` and ``=`` in attributes, so special characters are percent-encoded.
    """
    return quote(os.fsencode(name), safe=_SAFE_IN_NAMES)


def extension_of(path: Path) -> str:
    """Return a file's extension in lower case; ``none`` if it has no plain one."""
    suffix = path.suffix.removeprefix(".")
    return suffix.lower() if _TYPE.fullmatch(suffix) else _NO_TYPE


def _walk(root: str | Path, skipped: frozenset[str] = _SKIPPED_DIRECTORIES) -> Iterator[os.DirEntry[str]]:
    """Yield the regular files below a directory, by name; links to directories are not followed."""
    with contextlib.suppress(PermissionError):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in skipped:
                    yield from _walk(entry.path, skipped)
            elif entry.is_file():
                yield entry


def _select(candidates: Iterable[tuple[str, Path]], max_lines: int | None) -> InputFiles:
    """Select whole files in order while they fit into ``max_lines``; each file once."""
    chosen: dict[Path, InputFile] = {}
    skipped = []
    total = 0
    for name, path in candidates:
        if path in chosen:
            continue
        try:
            lines, longest = _measure(path)
        except OSError as error:
            skipped.append(f"{path}: {error.strerror}")
            continue
        if longest > MAX_LINE_BYTES:
            skipped.append(f"{path}: a line of {longest} bytes is too long for a message")
            continue
        if max_lines is not None and total + lines > max_lines:
            break
        total += lines
        if lines:
            chosen[path] = InputFile(path, attribute_name(name), extension_of(path), lines)
    return InputFiles(tuple(chosen.values()), tuple(skipped))


def _measure(path: Path) -> tuple[int, int]:
    """Return how many lines a file has, and the bytes of its longest one."""
    with path.open("rb") as stream:
        sizes = [len(line) for line in stream]
    return len(sizes), max(sizes, default=0)
