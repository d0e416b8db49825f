"""What tests do on a machine that cannot run a real TubeMQ."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

import pytest

from .artifacts import distribution
from .maven import ArtifactsUnavailableError

Artifacts = TypeVar("Artifacts")

REQUIRED_VARIABLE: Final = "TUBEMQ_REAL"


def is_required() -> bool:
    """Say whether a missing real TubeMQ is a failure (`TUBEMQ_REAL=required`)."""
    return os.environ.get(REQUIRED_VARIABLE) == "required"


def require_real_tubemq() -> None:
    """Skip the asking test when no real TubeMQ can be had, or fail it when one is required."""
    required(distribution)


def required(artifacts: Callable[[], Artifacts]) -> Artifacts:
    """Return what is fetched; where that cannot be had, skip the asking test, or fail it."""
    try:
        return artifacts()
    except ArtifactsUnavailableError as error:
        if is_required():
            pytest.fail(f"{REQUIRED_VARIABLE}=required, but: {error}", pytrace=False)
        pytest.skip(str(error))
