"""The pinned TubeMQ distribution, fetched once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from .cache import cache_dir, cache_lock, check_sha256, scratch_dir
from .maven import ArtifactsUnavailableError, has_maven, run_maven
from .pins import BERKELEY_DB, MAVEN_COPY, TUBEMQ_SERVER, TUBEMQ_VERSION, Artifact


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

    @property
    def json_class_path(self) -> str:
        """Its JSON library (Jackson) alone."""
        return ":".join(str(jar) for jar in sorted(self.home.glob("lib/jackson-*.jar")))


def why_unavailable() -> str | None:
    """Name what this machine lacks to run a real TubeMQ, or None when nothing is missing."""
    if os.name != "posix":
        return "a real TubeMQ is only run on POSIX systems"
    if shutil.which("java") is None:
        return "no `java` on the PATH; a real TubeMQ needs Java 17 or newer"
    if not _is_cached() and not has_maven():
        return "no `mvn` on the PATH; Maven is needed once, to fetch TubeMQ"
    return None


def distribution() -> Distribution:
    """Return the unpacked distribution, fetching it first where the cache lacks it."""
    reason = why_unavailable()
    if reason is not None:
        raise ArtifactsUnavailableError(reason)
    if not _is_cached():
        with cache_lock():
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


def _home_path() -> Path:
    return cache_dir() / f"tubemq-server-{TUBEMQ_VERSION}"


def _berkeley_db_path() -> Path:
    return cache_dir() / BERKELEY_DB.file_name


def _is_cached() -> bool:
    return _home_path().is_dir() and _berkeley_db_path().is_file()


def _fetch(artifact: Artifact, target: Path) -> None:
    if target.exists():
        return
    with scratch_dir() as scratch:
        _copy_from_maven(artifact, scratch).rename(target)


def _unpack(artifact: Artifact, target: Path) -> None:
    if target.exists():
        return
    with scratch_dir() as scratch:
        content = scratch / "content"
        with tarfile.open(_copy_from_maven(artifact, scratch)) as archive:
            archive.extractall(content, filter="data")
        content.rename(target)


def _copy_from_maven(artifact: Artifact, directory: Path) -> Path:
    run_maven(
        MAVEN_COPY,
        f"-Dartifact={artifact.coordinate}",
        f"-DoutputDirectory={directory}",
        # Maven would read a pom.xml of the current directory, hence the scratch one.
        directory=directory,
        brings=artifact.coordinate,
    )
    path = directory / artifact.file_name
    check_sha256(path, artifact.coordinate, artifact.sha256)
    return path
