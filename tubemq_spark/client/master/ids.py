"""Client ids, by which servers know a running client.

The client id decides who owns a partition, so two clients must never share one: containers share process ids
and sometimes addresses, hence the clock and the random number. Brokers take what follows the last ``_``,
split it at ``-`` and show the first two parts as host and process; therefore no ``_`` follows the group.
"""

import os
import platform
import secrets
import socket
import time
from typing import Final

from tubemq_spark import __version__

RUNTIME: Final = f"Python {platform.python_version()}"
"""What we send where Java's clients send the version of their JDK."""

_LOOPBACK: Final = "127.0.0.1"
_ANY_OTHER_HOST: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): choosing a route to it sends nothing."""


def producer_id() -> str:
    """Return a new producer's id."""
    return f"{_unique()}-Python-{__version__}"


def consumer_id(group: str, kind: str = "Balance") -> str:
    """Return a new consumer's id; ``kind`` is what TubeMQ's Java clients say: Balance, Pull or Push."""
    return f"{group}_{_unique()}-{kind}-{__version__}"


def local_ipv4() -> str:
    """Return the address this host sends from, or the loopback address if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_OTHER_HOST)
        except OSError:
            return _LOOPBACK
        return str(probe.getsockname()[0])


def _unique() -> str:
    return f"{local_ipv4()}-{os.getpid()}-{time.time_ns()}-{secrets.randbelow(1 << 31)}"
