"""Kafka's server and Spark's Kafka connector, fetched once; the versions that are compared."""

from pathlib import Path
from typing import Final

from integration_tests.real.cache import cache_dir, cache_lock, scratch_dir
from integration_tests.real.maven import fetch_jars

SPARK_VERSION: Final = "4.2.0"
KAFKA_VERSION: Final = "3.9.1"
SERVER: Final = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",)
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.1",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
)


def server_jars() -> Path:
    """Return a directory with all that a Kafka broker needs.

    Raises:
        ArtifactsUnavailableError: Maven cannot bring it.
    """
    return _fetched(f"kafka-{KAFKA_VERSION}", SERVER, alone=False)


def connector_jars() -> str:
    """Return what Spark's Kafka connector needs besides Spark, as Spark's setting ``spark.jars`` has it.

    Raises:
        ArtifactsUnavailableError: Maven cannot bring it.
    """
    home = _fetched(f"spark-kafka-{SPARK_VERSION}", CONNECTOR, alone=True)
    return ",".join(str(path) for path in sorted(home.glob("*.jar")))


def _fetched(name: str, coordinates: tuple[str, ...], *, alone: bool) -> Path:
    home = cache_dir() / name
    with cache_lock():
        if not home.is_dir():
            with scratch_dir() as scratch:
                fetch_jars(*coordinates, scratch=scratch, brings=name, alone=alone).rename(home)
    return home
