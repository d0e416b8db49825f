"""Maven, which brings the artifacts; it is needed once, to fill the cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

DOWNLOAD_TIMEOUT_S: Final = 900


class ArtifactsUnavailableError(Exception):
    """The artifacts cannot be had on this machine, for a reason outside the project."""


def has_maven() -> bool:
    """Say whether Maven is on the PATH."""
    return shutil.which("mvn") is not None


def run_maven(goal: str, *settings: str, directory: Path, brings: str) -> None:
    """Run one goal in a directory, whose `pom.xml` it takes if there is one.

    Raises:
        ArtifactsUnavailableError: Maven failed or was not done in time; the text names what it `brings`.
    """
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
