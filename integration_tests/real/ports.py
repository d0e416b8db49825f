"""Free TCP ports for servers that must be told their port before they start."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the range from which systems take the ports of outgoing connections (32768 on Linux,
# 49152 elsewhere). A port out of that range could be taken by any client while its server
# restarts, and then the server cannot come back under its address.
LOWEST: Final = 15000
HIGHEST: Final = 32000

# Not the module's own functions: test plug-ins seed those, and two test runs that start
# together would then try the same ports.
_choice = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on and that was not given before."""
    while True:
        port = _choice.randrange(LOWEST, HIGHEST)
        if port not in _given and _can_bind(port):
            _given.add(port)
            return port


def _can_bind(port: int) -> bool:
    # On the wildcard address, because TubeMQ's web servers bind that one.
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
