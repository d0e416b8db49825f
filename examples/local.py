"""What the examples run on: a TubeMQ server and a Spark of their own, which are gone at the end.

In a job of yours, the masters' address and a session of your cluster take their place.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQError
from tubemq_spark.spark.local import local_session, why_not

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def tubemq(*topics: str) -> Iterator[str]:
    """Yield the address of a master; each topic has two stores of one partition.

    Ports are free ones, so examples run side by side.
    """
    try:
        server = EmbeddedTubeMQ(topics=dict.fromkeys(topics, (2, 1)))
    except TubeMQError as error:
        sys.exit(str(error))
    with server:
        yield server.master


@contextlib.contextmanager
def spark() -> Iterator["SparkSession"]:
    """Yield a session on two cores."""
    reason = why_not()
    if reason is not None:
        sys.exit(f"This example {reason}.")
    with tempfile.TemporaryDirectory() as directory, local_session(Path(directory)) as session:
        yield session


def check(what: str, found: int, expected: int) -> None:
    """Print a count, or end the example if it is not the one expected."""
    if found != expected:
        sys.exit(f"{what}: {found}, but {expected} were expected.")
    print(f"{what}: {found}")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield an empty folder, for checkpoints and files."""
    with tempfile.TemporaryDirectory(prefix="example-") as directory:
        yield Path(directory)
