"""Jars of other systems for Spark: fetched once, each pinned by its SHA-256 in `spark_jars.json`.

They are what `spark.jars.packages` would bring, without what Spark has itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from .availability import is_required
from .cache import cache_dir, cache_lock, check_sha256, scratch_dir
from .maven import ArtifactsUnavailableError, fetch_jars, has_maven

PACKAGES: Final = {
    "avro": "org.apache.spark:spark-avro_2.13:4.2.0",
    "delta": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""As `spark.jars.packages` names them."""
PINNED: Final[dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("spark_jars.json").read_text(encoding="utf-8")
)
"""File name to SHA-256, by the system."""


def spark_jars(system: str) -> str:
    """Return the jars of a system as `spark.jars` has them, fetching them where the cache lacks them."""
    package = PACKAGES[system]
    home = cache_dir() / f"spark-{system}-{package.rpartition(':')[2]}"
    if not home.is_dir():
        if not has_maven():
            raise ArtifactsUnavailableError(f"no `mvn` on the PATH; Maven is needed once, to fetch {package}")
        with cache_lock():
            _fetch(system, package, home)
    return ",".join(str(home / name) for name in PINNED[system])


def _fetch(system: str, package: str, home: Path) -> None:
    if home.exists():
        return
    with scratch_dir() as scratch:
        jars = fetch_jars(package, scratch=scratch, brings=package)
        # Others come along that Spark has in versions of its own.
        for jar in jars.iterdir():
            if jar.name not in PINNED[system]:
                jar.unlink()
        for name, sha256 in PINNED[system].items():
            check_sha256(jars / name, name, sha256)
        jars.rename(home)


def main() -> int:
    """Fetch all; without Maven say so, which is a failure only where the Java TubeMQ is required."""
    try:
        for system in PACKAGES:
            spark_jars(system)
    except ArtifactsUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if is_required() else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
