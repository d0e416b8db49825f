"""Sessions with masters in the process's loop, for tests in threads."""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from tubemq_spark.client.master.session import MasterSession
from tubemq_spark.net.loop import run

AnySession = TypeVar("AnySession", bound=MasterSession)


@contextlib.contextmanager
def opened(session: AnySession) -> Iterator[AnySession]:
    """Open a session, and close it at the end of the block."""
    run(session.open())
    try:
        yield session
    finally:
        run(session.close())
