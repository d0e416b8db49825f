"""Who a client is to the servers, and which masters it asks.

The client id decides who owns a partition, so two clients must never share one: containers share process ids
and sometimes addresses, hence the clock and the random number. Brokers take what follows the last ``_``,
split it at ``-`` and show the first two parts as host and process; therefore no ``_`` follows the group.

The list of masters can change while the process runs. A list is known by what it was at first: settings have
that, and sessions with equal settings share connections. Only one thread replaces a list.
"""

import functools
import os
import platform
import secrets
import socket
import time
from typing import Final

from tubemq_spark import __version__
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol import messages
from tubemq_spark.protocol.pb import common_pb2

RUNTIME: Final = f"Python {platform.python_version()}"
"""What we send where Java's clients send the version of their JDK."""

_LOOPBACK: Final = "127.0.0.1"
_ANY_OTHER_HOST: Final = ("192.0.2.1", 9)
"""An address for documentation (RFC 5737): choosing a route to it sends nothing."""
_ADDRESS_NS: Final = 60_000_000_000
_NONCES: Final = (1 << 31) - 1
_replaced: Final[dict[tuple[Endpoint, ...], tuple[Endpoint, ...]]] = {}


def producer_id() -> str:
    """Return a new producer's id."""
    return f"{_unique()}-Python-{__version__}"


def consumer_id(group: str, kind: str = "Balance") -> str:
    """Return a new consumer's id; ``kind`` is what TubeMQ's Java clients say: Balance, Pull or Push."""
    return f"{group}_{_unique()}-{kind}-{__version__}"


def local_ipv4() -> str:
    """Return the address this host sends from, or the loopback address if it has no network.

    It may be a minute old: each micro-batch needs some ids, and their servers only show it.
    """
    return _local_ipv4(time.monotonic_ns() // _ADDRESS_NS)


@functools.lru_cache(maxsize=1)
def _local_ipv4(_minute: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_OTHER_HOST)
        except OSError:
            return _LOOPBACK
        return str(probe.getsockname()[0])


def _unique() -> str:
    return f"{local_ipv4()}-{os.getpid()}-{time.time_ns()}-{secrets.randbelow(1 << 31)}"


def proof_for_master(config: ClientConfig) -> common_pb2.AuthenticateInfo | None:
    """Return a proof that masters accept for 20 s; None without a user."""
    if config.username is None or config.password is None:
        return None
    return messages.authenticate_info(config.username, config.password, *_now_and_nonce())


def proof_for_broker(config: ClientConfig) -> str:
    """Return a proof for a broker; blank without a user."""
    if config.username is None or config.password is None:
        return ""
    return messages.broker_token(config.username, config.password, *_now_and_nonce())


def _now_and_nonce() -> tuple[int, int]:
    return time.time_ns() // 1_000_000, secrets.randbelow(_NONCES)


def replace_masters(first: tuple[Endpoint, ...], now: tuple[Endpoint, ...]) -> None:
    """Make clients whose settings have the first list ask these masters from now on."""
    _replaced[first] = now


def current_masters(first: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return which masters to ask instead of the first list."""
    return _replaced.get(first, first)
