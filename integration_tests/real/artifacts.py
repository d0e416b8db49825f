"""Fetches with Maven, once, what tests on the Java TubeMQ need: each file is pinned by its SHA-256.

The cache is `$TUBEMQ_SPARK_CACHE`, or `~/.cache/tubemq_spark`. Every file is checked before it is used, and
becomes visible under its final name by a rename, so that a run cut off in the middle leaves nothing half
done. A lock lets several test runs on one machine share the cache.

`make artifacts` runs this module, before any test counts its time; `--spark` brings jars of other systems.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pytest

CACHE_VARIABLE: Final = "TUBEMQ_SPARK_CACHE"
REQUIRED_VARIABLE: Final = "TUBEMQ_REAL"
DOWNLOAD_TIMEOUT_S: Final = 900

TUBEMQ_VERSION: Final = "2.4.0"
SERVER: Final = (
    f"org.apache.inlong:tubemq-server:{TUBEMQ_VERSION}:tar.gz:bin",
    f"tubemq-server-{TUBEMQ_VERSION}-bin.tar.gz",
    "206393916331c51d3d0777dddc43e6671e3797705cc34397b14d16933a0e6c95",
)
"""The whole binary distribution: servers, Java client, load generators, their libraries."""
BERKELEY_DB: Final = (
    "com.sleepycat:je:18.3.12",
    "je-18.3.12.jar",
    "0a42bb7d53c0cfa7e445eb57bc2bf74fedbb8d22d7216a12dafa2a3aefe5c73e",
)
"""The master's meta store, which the distribution needs and does not contain."""
VERSIONS: Final = (TUBEMQ_VERSION, "1.13.0", "1.5.0")
"""Of the Java client, the newest first: the distribution's own, and of those published alone two."""
PACKAGES: Final = {
    "avro": "org.apache.spark:spark-avro_2.13:4.2.0",
    "delta": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""Other systems for Spark, as `spark.jars.packages` names them."""
GRPC_VERSION: Final = "1.71.0"
PROTOC: Final = "protoc-3.25.5-linux-x86_64.exe"
"""Of the version that this gRPC needs."""
GRPC_PLUGIN: Final = f"protoc-gen-grpc-java-{GRPC_VERSION}-linux-x86_64.exe"
PINNED: Final[dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("pins.json").read_text(encoding="utf-8")
)
"""File name to SHA-256, of the folders of the cache that have jars."""

_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy"
"""Version 3 of the plug-in reads the artifact's parent POM first, and that of the TubeMQ distribution was
never published; version 2 takes the file alone."""
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>integration_tests</groupId>
  <artifactId>wanted</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
)
_ALONE: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)

Artifacts = TypeVar("Artifacts")


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


def distribution() -> Distribution:
    """Return the unpacked distribution, fetching it first where the cache lacks it."""
    reason = why_unavailable()
    if reason is not None:
        raise ArtifactsUnavailableError(reason)
    berkeley_db = cached(BERKELEY_DB[1], lambda scratch: _copied(*BERKELEY_DB, scratch))
    return Distribution(cached(f"tubemq-server-{TUBEMQ_VERSION}", _unpacked), berkeley_db)


def why_unavailable() -> str | None:
    """Return what this machine lacks to run a real TubeMQ, or None when nothing is missing."""
    if os.name != "posix":
        return "a real TubeMQ is only run on POSIX systems"
    if shutil.which("java") is None:
        return "no `java` on the PATH; a real TubeMQ needs Java 17 or newer"
    folders = (BERKELEY_DB[1], f"tubemq-server-{TUBEMQ_VERSION}")
    if shutil.which("mvn") is None and not all((_cache() / name).exists() for name in folders):
        return "no `mvn` on the PATH; Maven is needed once, to fetch TubeMQ"
    return None


def client_class_path(version: str = TUBEMQ_VERSION) -> str:
    """Return the class path of a Java client and of Jackson, fetching them where the cache lacks them."""
    newest = distribution()
    if version == TUBEMQ_VERSION:
        return newest.client_class_path
    name = f"tubemq-client-{version}"
    home = cached(
        name,
        lambda scratch: pinned(name, jars(f"org.apache.inlong:tubemq-client:{version}", scratch=scratch)),
    )
    # The older clients bring no Jackson, so the distribution's does not stand in their way.
    jackson = ":".join(str(jar) for jar in sorted(newest.home.glob("lib/jackson-*.jar")))
    return f"{home}/*:{jackson}"


def spark_jars(system: str) -> str:
    """Return the jars of a system as `spark.jars` has them, fetching them where the cache lacks them.

    They are what `spark.jars.packages` would bring, without what Spark has itself.
    """
    name = f"spark-{system}-{PACKAGES[system].rpartition(':')[2]}"

    def fetch(scratch: Path) -> Path:
        directory = jars(PACKAGES[system], scratch=scratch)
        for jar in directory.iterdir():
            if jar.name not in PINNED[name]:
                jar.unlink()
        return pinned(name, directory)

    home = cached(name, fetch)
    return ",".join(str(home / file) for file in PINNED[name])


def grpc_java() -> Path:
    """Return the directory with gRPC for Java and its code generators, fetching what is missing."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ArtifactsUnavailableError("the pinned code generators are for Linux on x86-64")
    if shutil.which("javac") is None:
        raise ArtifactsUnavailableError("no `javac` on the PATH; a JDK is needed")
    name = f"grpc-java-{GRPC_VERSION}"

    def fetch(scratch: Path) -> Path:
        libraries = (
            f"io.grpc:{jar}:{GRPC_VERSION}" for jar in ("grpc-netty-shaded", "grpc-protobuf", "grpc-stub")
        )
        directory = jars(*libraries, scratch=scratch)
        for coordinate in (
            "com.google.protobuf:protoc:3.25.5:exe:linux-x86_64",
            f"io.grpc:protoc-gen-grpc-java:{GRPC_VERSION}:exe:linux-x86_64",
        ):
            _maven(_COPY, f"-Dartifact={coordinate}", f"-DoutputDirectory={directory}", directory=scratch)
        for program in (PROTOC, GRPC_PLUGIN):
            (directory / program).chmod(0o755)
        return pinned(name, directory)

    return cached(name, fetch)


def py4j_jar() -> Path:
    """Return the Java half of Py4J that comes with PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ArtifactsUnavailableError("PySpark, whose py4j jar is needed, is not installed")
    candidates = sorted(Path(spec.origin).parent.glob("jars/py4j-*.jar"))
    if not candidates:
        raise ArtifactsUnavailableError("this PySpark has no py4j jar in its jars directory")
    return candidates[-1]


def cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    """Return a file or folder of the cache; where it is not there, move what ``fetch`` makes to it.

    ``fetch`` is given a directory on the cache's own file system, so that the rename out of it is atomic.
    """
    home = _cache() / name
    if not home.exists():
        if shutil.which("mvn") is None:
            raise ArtifactsUnavailableError(f"no `mvn` on the PATH; Maven is needed once, to fetch {name}")
        _cache().mkdir(parents=True, exist_ok=True)
        with (_cache() / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not home.exists():
                with tempfile.TemporaryDirectory(prefix=".fetch-", dir=_cache()) as scratch:
                    fetch(Path(scratch)).rename(home)
    return home


def jars(*coordinates: str, scratch: Path, alone: bool = False) -> Path:
    """Return a directory with jars (`group:artifact:version`), by default with all that they need."""
    exclusions = _ALONE if alone else ""
    dependencies = "".join(_DEPENDENCY.format(*text.split(":"), exclusions) for text in coordinates)
    (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    settings = ("-DincludeScope=runtime", f"-DoutputDirectory={scratch}/jars")
    _maven(f"{_COPY}-dependencies", *settings, directory=scratch)
    return scratch / "jars"


def pinned(name: str, directory: Path) -> Path:
    """Return a directory that has exactly the pinned files."""
    names = {file.name for file in directory.iterdir()}
    if names != set(PINNED[name]):
        raise ChecksumError(f"{name} came with other files than pinned: {sorted(names ^ set(PINNED[name]))}")
    for file, sha256 in PINNED[name].items():
        _check_sha256(directory / file, sha256)
    return directory


def _cache() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path.home() / ".cache" / "tubemq_spark"


def _unpacked(scratch: Path) -> Path:
    with tarfile.open(_copied(*SERVER, scratch)) as archive:
        archive.extractall(scratch / "content", filter="data")
    return scratch / "content"


def _copied(coordinate: str, file: str, sha256: str, scratch: Path) -> Path:
    # Maven would read a pom.xml of the current directory, hence the scratch one.
    _maven(_COPY, f"-Dartifact={coordinate}", f"-DoutputDirectory={scratch}", directory=scratch)
    _check_sha256(scratch / file, sha256)
    return scratch / file


def _check_sha256(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != expected:
        raise ChecksumError(f"{path.name} has SHA-256 {sha256}, pinned is {expected}; refusing to use it")


def _maven(goal: str, *settings: str, directory: Path) -> None:
    """Run one goal in a directory, whose `pom.xml` it takes if there is one."""
    command = ["mvn", "--batch-mode", goal, *settings]
    try:
        done = subprocess.run(
            command, cwd=directory, timeout=DOWNLOAD_TIMEOUT_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ArtifactsUnavailableError(f"{command} was not done in {DOWNLOAD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise ArtifactsUnavailableError(f"{command} failed; it said:\n{done.stdout[-2000:]}")


def is_required() -> bool:
    """Return whether a missing real TubeMQ is a failure (`TUBEMQ_REAL=required`)."""
    return os.environ.get(REQUIRED_VARIABLE) == "required"


def require_real_tubemq() -> None:
    """Skip the present test where no real TubeMQ can be run, or fail it where one is required."""
    required(distribution)


def required(artifacts: Callable[[], Artifacts]) -> Artifacts:
    """Return what a function fetches; where it cannot, skip the present test, or fail it."""
    try:
        return artifacts()
    except ArtifactsUnavailableError as error:
        if is_required():
            pytest.fail(f"{REQUIRED_VARIABLE}=required, but: {error}", pytrace=False)
        pytest.skip(str(error))


def main() -> int:
    """Fetch; without Maven say so, which is a failure only where the Java TubeMQ is required."""
    try:
        if "--spark" in sys.argv:
            for system in PACKAGES:
                spark_jars(system)
            return 0
        for version in VERSIONS:
            client_class_path(version)
    except ArtifactsUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return int(is_required())
    try:
        grpc_java()
    except ArtifactsUnavailableError as error:  # for one file of tests, which says so itself
        sys.stderr.write(f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
