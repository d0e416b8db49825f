"""Fetch all that the tests on the Java TubeMQ need, before any test counts its time: `make artifacts`."""

from __future__ import annotations

import sys

from . import grpc_java
from .artifacts import distribution
from .availability import is_required
from .client_jars import VERSIONS, client_class_path
from .maven import ArtifactsUnavailableError


def main() -> int:
    """Fetch; without Maven say so, which is a failure only where the Java TubeMQ is required."""
    try:
        distribution()
        for version in VERSIONS:
            client_class_path(version)
    except ArtifactsUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 1 if is_required() else 0
    _fetch_grpc()
    return 0


def _fetch_grpc() -> None:
    """Fetch gRPC for Java; its one test is skipped without."""
    try:
        grpc_java.grpc_home()
    except ArtifactsUnavailableError as error:
        sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    sys.exit(main())
