"""What tests do on a machine that cannot run a real TubeMQ."""

from __future__ import annotations

import os
from typing import Final

import pytest

from .artifacts import ArtifactsUnavailableError, distribution

REQUIRED_VARIABLE: Final = "TUBEMQ_REAL"


def is_required() -> bool:
    """Say whether a missing real TubeMQ is a failure (`TUBEMQ_REAL=required`)."""
    return os.environ.get(REQUIRED_VARIABLE) == "required"


def require_real_tubemq() -> None:
    """Skip the asking test when no real TubeMQ can be had, or fail it when one is required."""
    try:
        distribution()
    except ArtifactsUnavailableError as error:
        if is_required():
            pytest.fail(f"{REQUIRED_VARIABLE}=required, but: {error}", pytrace=False)
        pytest.skip(str(error))
