"""An embedded server that demands logins and visit tokens, for which the command has no option.

It prints its addresses like the command, and runs until it is killed.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.corpus import TOPICS
from fuzz.credentials import PASSWORD, USER
from tubemq_spark.embedded.config.settings import EmbeddedSettings
from tubemq_spark.embedded.server import EmbeddedTubeMQ


def main(arguments: Sequence[str]) -> None:
    """Run the server; the only argument is the data directory."""
    settings = EmbeddedSettings(
        authenticate_producers=True,
        authenticate_consumers=True,
        users={USER: PASSWORD},
        check_visit_tokens=True,
    )
    (data,) = arguments
    with EmbeddedTubeMQ(Path(data), TOPICS, settings=settings) as server:
        lines = [f"{name} {server.addresses[name]}" for name in server.addresses]
        print("\n".join((*lines, "Stop")), flush=True)
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
