"""Kafka's server and Spark's Kafka connector, fetched once; the versions that are compared."""

from pathlib import Path
from typing import Final

from integration_tests.real.cache import cache_dir, cache_lock, scratch_dir
from integration_tests.real.maven import run_maven
from integration_tests.real.pins import MAVEN_COPY_DEPENDENCIES

SPARK_VERSION: Final = "4.2.0"
KAFKA_VERSION: Final = "3.9.1"
SERVER: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",)
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.1",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
)

_DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}
    </dependency>"""
_ALONE: Final = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmarks</groupId><artifactId>{name}</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""


def server_jars() -> Path:
    """Return a directory with all that a Kafka broker needs.

    Raises:
        ArtifactsUnavailableError: Maven cannot bring it.
    """
    return _fetched(f"kafka-{KAFKA_VERSION}", SERVER, with_dependencies=True)


def connector_jars() -> Path:
    """Return a directory with what Spark's Kafka connector needs besides Spark.

    Raises:
        ArtifactsUnavailableError: Maven cannot bring it.
    """
    return _fetched(f"spark-kafka-{SPARK_VERSION}", CONNECTOR, with_dependencies=False)


def _fetched(name: str, coordinates: tuple[str, ...], *, with_dependencies: bool) -> Path:
    home = cache_dir() / name
    with cache_lock():
        if not home.is_dir():
            _fetch(name, home, coordinates, "" if with_dependencies else _ALONE)
    return home


def _fetch(name: str, home: Path, coordinates: tuple[str, ...], exclusions: str) -> None:
    dependencies = "".join(_DEPENDENCY.format(*text.split(":"), exclusions) for text in coordinates)
    with scratch_dir() as scratch:
        (scratch / "pom.xml").write_text(_POM.format(name=name, dependencies=dependencies), encoding="utf-8")
        jars = scratch / "jars"
        run_maven(
            MAVEN_COPY_DEPENDENCIES,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={jars}",
            directory=scratch,
            brings=name,
        )
        jars.rename(home)
