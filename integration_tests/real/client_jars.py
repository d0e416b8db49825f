"""Java clients of several versions, each with all that it needs at run time.

The newest is the distribution's own. Of the versions that were published alone, the oldest and
the newest are fetched as Maven resolves them; `client_jars.json` pins every file by its SHA-256.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from .artifacts import distribution
from .cache import ChecksumError, cache_dir, cache_lock, check_sha256, scratch_dir
from .maven import ArtifactsUnavailableError, fetch_jars, has_maven
from .pins import TUBEMQ_VERSION

PINNED: Final[dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("client_jars.json").read_text(encoding="utf-8")
)
"""File name to SHA-256, by the client's version."""

VERSIONS: Final = (TUBEMQ_VERSION, *reversed(PINNED))
"""All versions of the Java client, the newest first."""


def client_class_path(version: str = TUBEMQ_VERSION) -> str:
    """Return the class path of a Java client and of Jackson, fetching them where the cache lacks them."""
    newest = distribution()
    if version == TUBEMQ_VERSION:
        return newest.client_class_path
    home = cache_dir() / f"tubemq-client-{version}"
    if not home.is_dir():
        if not has_maven():
            raise ArtifactsUnavailableError(
                f"no `mvn` on the PATH; Maven is needed once, to fetch the Java client {version}"
            )
        with cache_lock():
            _fetch(version, home)
    # The older clients bring no Jackson, so the distribution's does not stand in their way.
    return f"{home}/*:{newest.json_class_path}"


def _fetch(version: str, home: Path) -> None:
    if home.exists():
        return
    with scratch_dir() as scratch:
        jars = fetch_jars(
            f"org.apache.inlong:tubemq-client:{version}", scratch=scratch, brings=f"the Java client {version}"
        )
        _check(version, jars)
        jars.rename(home)


def _check(version: str, jars: Path) -> None:
    """Demand exactly the pinned files."""
    pinned = PINNED[version]
    seen = {jar.name for jar in jars.iterdir()}
    if seen != set(pinned):
        raise ChecksumError(
            f"the Java client {version} came with other files than pinned: {sorted(seen ^ set(pinned))}"
        )
    for name, sha256 in pinned.items():
        check_sha256(jars / name, name, sha256)
