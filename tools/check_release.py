"""Check that what is in dist/ is the release that it is said to be: ``python tools/check_release.py [TAG]``.

The version has one place, ``tubemq_spark.__version__``. Both distributions must have it; with a tag, so must
the tag, and the newest section of CHANGELOG.md. Without a tag that section may be the unreleased one. With a
tag, what ``make check-proto`` compares later changes with must be the gateway's .proto of the release.
"""

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Final

import tubemq_spark

_ROOT: Final = Path(__file__).resolve().parent.parent
_PROTO: Final = Path("tubemq", "gateway", "v1", "gateway.proto")
_FIELDS: Final = (
    "Name",
    "Version",
    "Summary",
    "Author",
    "License-Expression",
    "License-File",
    "Keywords",
    "Classifier",
    "Requires-Python",
    "Requires-Dist",
    "Provides-Extra",
    "Description-Content-Type",
)
"""What the package index shows and pip reads."""


def main(tag: str | None) -> int:
    """Print each fault, or one line that there is none; return how the process is to end."""
    version = tubemq_spark.__version__
    faults = [*faults_of_the_changelog(version, tag)]
    for distribution, metadata in _distributions(_ROOT / "dist").items():
        faults += [f"{distribution}: {fault}" for fault in faults_of(metadata, version)]
    faults += faults_of_the_proto(tag)
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    if not faults:
        print(f"dist/ is tubemq_spark {version}")
    return 1 if faults else 0


def faults_of(metadata: Message, version: str) -> list[str]:
    """Return what is wrong with the metadata of a distribution."""
    faults = [f"the metadata has no {name}" for name in _FIELDS if not metadata.get(name)]
    if metadata.get("Version") != version:
        faults.append(f"the version is {metadata.get('Version')}, not {version}")
    if len(str(metadata.get_payload())) < len("# tubemq_spark"):
        faults.append("the metadata has no description")
    return faults


def faults_of_the_changelog(version: str, tag: str | None, text: str | None = None) -> list[str]:
    """Return what is wrong with the tag and the newest section of CHANGELOG.md."""
    if text is None:
        text = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = next(iter(re.findall(r"^## (.+)$", text, re.MULTILINE)), "missing")
    if tag is None:
        known = newest == "Unreleased" or newest.startswith(f"{version} ")
        return (
            []
            if known
            else [f"CHANGELOG.md begins with '{newest}', not with 'Unreleased' or '{version} (date)'"]
        )
    faults = [] if tag == f"v{version}" else [f"the tag is {tag}, but the version is {version}"]
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        faults.append(f"CHANGELOG.md begins with '{newest}', not with '{version} (year-month-day)'")
    return faults


def faults_of_the_proto(tag: str | None, root: Path = _ROOT) -> list[str]:
    """Return what is wrong with the .proto that later changes are compared with; nothing without a tag."""
    released = root / "tools" / "released_proto" / _PROTO
    current = root / "tubemq_spark" / "protocol" / "gateway" / "proto" / _PROTO
    if tag is None or released.read_bytes() == current.read_bytes():
        return []
    return ["tools/released_proto has not the .proto of this release: copy it there"]


def _distributions(folder: Path) -> dict[str, Message]:
    """Return the metadata of the wheel and of the sdist."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        of_wheel = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        wheel_text = archive.read(of_wheel).decode()
    with tarfile.open(sdist) as archive:
        of_sdist = min((name for name in archive.getnames() if name.endswith("/PKG-INFO")), key=len)
        member = archive.extractfile(of_sdist)
        if member is None:
            raise ValueError(f"{sdist} has no metadata")
        sdist_text = member.read().decode()
    return {path.name: Parser().parsestr(text) for path, text in ((wheel, wheel_text), (sdist, sdist_text))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
