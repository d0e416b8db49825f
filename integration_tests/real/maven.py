"""Maven, which brings the artifacts; it is needed once, to fill the cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from .pins import MAVEN_COPY_DEPENDENCIES

DOWNLOAD_TIMEOUT_S: Final = 900

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>integration_tests</groupId>
  <artifactId>wanted</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>{}
    </dependency>"""
_ALONE: Final = """
      <exclusions>
        <exclusion>
          <groupId>*</groupId>
          <artifactId>*</artifactId>
        </exclusion>
      </exclusions>"""


class ArtifactsUnavailableError(Exception):
    """The artifacts cannot be had on this machine, for a reason outside the project."""


def has_maven() -> bool:
    """Say whether Maven is on the PATH."""
    return shutil.which("mvn") is not None


def run_maven(goal: str, *settings: str, directory: Path, brings: str) -> None:
    """Run one goal in a directory, whose `pom.xml` it takes if there is one."""
    try:
        subprocess.run(
            ["mvn", "--batch-mode", goal, *settings],
            cwd=directory,
            check=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        raise ArtifactsUnavailableError(
            f"Maven could not bring {brings}; it said:\n{error.stdout[-2000:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ArtifactsUnavailableError(
            f"Maven did not bring {brings} within {DOWNLOAD_TIMEOUT_S} s"
        ) from error


def fetch_jars(*coordinates: str, scratch: Path, brings: str, alone: bool = False) -> Path:
    """Bring jars (`group:artifact:version`), by default with all that they need; return their directory."""
    exclusions = _ALONE if alone else ""
    dependencies = "".join(_DEPENDENCY.format(*text.split(":"), exclusions) for text in coordinates)
    (scratch / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
    jars = scratch / "jars"
    run_maven(
        MAVEN_COPY_DEPENDENCIES,
        "-DincludeScope=runtime",
        f"-DoutputDirectory={jars}",
        directory=scratch,
        brings=brings,
    )
    return jars
