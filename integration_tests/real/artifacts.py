"""Fetch the pinned artifacts once and keep them outside the build tree.

The cache is `$TUBEMQ_SPARK_CACHE`, or `~/.cache/tubemq_spark`. Every file is checked against
its pinned SHA-256 before it is used, and becomes visible under its final name by a rename, so
that a run cut off in the middle leaves nothing half done. A lock lets several test runs on one
machine share the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .pins import BERKELEY_DB, MAVEN_COPY, TUBEMQ_SERVER, TUBEMQ_VERSION, Artifact

CACHE_VARIABLE: Final = "TUBEMQ_SPARK_CACHE"
DOWNLOAD_TIMEOUT_S: Final = 900


class ArtifactsUnavailableError(Exception):
    """The artifacts cannot be had on this machine, for a reason outside the project."""


class ChecksumError(Exception):
    """A fetched file is not the one that was pinned."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An unpacked TubeMQ distribution and the jars that complete it."""

    home: Path
    berkeley_db: Path

    @property
    def server_class_path(self) -> str:
        """Everything the master and the brokers need."""
        return f"{self.berkeley_db}:{self.home}/lib/*"

    @property
    def client_class_path(self) -> str:
        """Everything the Java client and the load generators need."""
        return f"{self.home}/lib/*"


def why_unavailable() -> str | None:
    """Name what this machine lacks to run a real TubeMQ, or None when nothing is missing."""
    if os.name != "posix":
        return "a real TubeMQ is only run on POSIX systems"
    if shutil.which("java") is None:
        return "no `java` on the PATH; a real TubeMQ needs Java 17 or newer"
    if not _is_cached() and shutil.which("mvn") is None:
        return "no `mvn` on the PATH; Maven is needed once, to fetch TubeMQ"
    return None


def distribution() -> Distribution:
    """Return the unpacked distribution, fetching it first where the cache lacks it.

    Raises:
        ArtifactsUnavailableError: Java or Maven is missing, or Maven cannot reach the files.
        ChecksumError: a file arrived that is not the pinned one.
    """
    reason = why_unavailable()
    if reason is not None:
        raise ArtifactsUnavailableError(reason)
    if not _is_cached():
        with _cache_lock():
            _fetch(BERKELEY_DB, _berkeley_db_path())
            _unpack(TUBEMQ_SERVER, _home_path())
    return Distribution(home=_home_path(), berkeley_db=_berkeley_db_path())


def py4j_jar() -> Path:
    """Return the Java half of Py4J that comes with PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ArtifactsUnavailableError("PySpark, whose py4j jar is needed, is not installed")
    jars = sorted(Path(spec.origin).parent.glob("jars/py4j-*.jar"))
    if not jars:
        raise ArtifactsUnavailableError("this PySpark has no py4j jar in its jars directory")
    return jars[-1]


def _cache_dir() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path.home() / ".cache" / "tubemq_spark"


def _home_path() -> Path:
    return _cache_dir() / f"tubemq-server-{TUBEMQ_VERSION}"


def _berkeley_db_path() -> Path:
    return _cache_dir() / BERKELEY_DB.file_name


def _is_cached() -> bool:
    return _home_path().is_dir() and _berkeley_db_path().is_file()


@contextmanager
def _cache_lock() -> Iterator[None]:
    """Let one process at a time fill the cache."""
    _cache_dir().mkdir(parents=True, exist_ok=True)
    with (_cache_dir() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(artifact: Artifact, target: Path) -> None:
    if target.exists():
        return
    with _scratch_dir() as scratch:
        _copy_from_maven(artifact, scratch).rename(target)


def _unpack(artifact: Artifact, target: Path) -> None:
    if target.exists():
        return
    with _scratch_dir() as scratch:
        content = scratch / "content"
        with tarfile.open(_copy_from_maven(artifact, scratch)) as archive:
            archive.extractall(content, filter="data")
        content.rename(target)


@contextmanager
def _scratch_dir() -> Iterator[Path]:
    """Give a directory on the cache's own file system, so that a rename out of it is atomic."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=_cache_dir()) as scratch:
        yield Path(scratch)


def _copy_from_maven(artifact: Artifact, directory: Path) -> Path:
    command = [
        "mvn",
        "--batch-mode",
        MAVEN_COPY,
        f"-Dartifact={artifact.coordinate}",
        f"-DoutputDirectory={directory}",
    ]
    try:
        # Maven would read a pom.xml of the current directory, hence the scratch one.
        subprocess.run(
            command,
            cwd=directory,
            check=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        raise ArtifactsUnavailableError(
            f"Maven could not bring {artifact.coordinate}; it said:\n{error.stdout[-2000:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ArtifactsUnavailableError(
            f"Maven did not bring {artifact.coordinate} within {DOWNLOAD_TIMEOUT_S} s"
        ) from error
    path = directory / artifact.file_name
    _check_sha256(path, artifact)
    return path


def _check_sha256(path: Path, artifact: Artifact) -> None:
    with path.open("rb") as handle:
        seen = hashlib.file_digest(handle, "sha256").hexdigest()
    if seen != artifact.sha256:
        raise ChecksumError(
            f"{artifact.coordinate} has SHA-256 {seen}, pinned is {artifact.sha256}; refusing to use it"
        )
