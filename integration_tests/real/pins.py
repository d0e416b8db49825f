"""What is fetched: every outside artifact with its version and its checksum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a Maven repository."""

    coordinate: str
    """`group:artifact:version`, with `:type:classifier` where it is not a plain jar."""

    file_name: str
    """The name Maven gives to the copied file."""

    sha256: str


TUBEMQ_VERSION: Final = "2.4.0"

TUBEMQ_SERVER: Final = Artifact(
    coordinate=f"org.apache.inlong:tubemq-server:{TUBEMQ_VERSION}:tar.gz:bin",
    file_name=f"tubemq-server-{TUBEMQ_VERSION}-bin.tar.gz",
    sha256="206393916331c51d3d0777dddc43e6671e3797705cc34397b14d16933a0e6c95",
)
"""The whole binary distribution: servers, Java client, load generators, their libraries."""

BERKELEY_DB: Final = Artifact(
    coordinate="com.sleepycat:je:18.3.12",
    file_name="je-18.3.12.jar",
    sha256="0a42bb7d53c0cfa7e445eb57bc2bf74fedbb8d22d7216a12dafa2a3aefe5c73e",
)
"""The master's meta store, which the distribution needs and does not contain."""

MAVEN_COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy"
"""The goal that brings one file.

Version 3 of the plug-in reads the artifact's parent POM first, and that of the TubeMQ
distribution was never published; version 2 takes the file alone.
"""

MAVEN_COPY_DEPENDENCIES: Final = f"{MAVEN_COPY}-dependencies"
"""The goal that brings what a POM names, with all that this needs in turn."""
