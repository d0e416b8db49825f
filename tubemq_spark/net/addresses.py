"""The addresses behind host names.

A name is resolved for every connection, so that a server may move. While the resolver fails, the address that
was reached last counts: an outage of DNS must not cut off servers that run.

Of several addresses, the one that was reached last is tried first, and then the others. Each has an equal
part of the time that is left: one that swallows packets leaves time for the next.
"""

import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from tubemq_spark.model import Endpoint
from tubemq_spark.net.deadline import Deadline

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

logger = logging.getLogger(__name__)

Address = tuple[int, int, int, tuple[Any, ...]]
"""Family, type and protocol of a socket, and what to connect it to."""

_SOON_S: Final = 0.001
"""Instead of 0, which would mean something else to a socket."""

_reached: Final[dict[Endpoint, Address]] = {}
"""By endpoint, where it was reached last; shared by all connections of this process."""


def addresses_of(endpoint: Endpoint) -> list[Address]:
    """Return the addresses to try, in order.

    This may block for as long as the system's resolver is set to.
    """
    last = _reached.get(endpoint)
    try:
        answers = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except ValueError as error:  # a host that no name can be, listed by a server
        raise OSError(f"{endpoint.host!r} is no name of a host: {error}") from error
    except OSError as error:
        if last is None:
            raise
        logger.warning("%s cannot be resolved (%s); trying its last address %s", endpoint, error, last[3][0])
        return [last]
    addresses = [(family, kind, protocol, address) for family, kind, protocol, _, address in answers]
    # Only where it leads to: an event loop chooses the protocol itself.
    return sorted(addresses, key=lambda address: last is None or address[3] != last[3])


def is_address(host: str) -> bool:
    """Return whether a host is named by its address, which needs no resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def note_reached(endpoint: Endpoint, connected: "socket.socket | TransportSocket") -> None:
    """Remember where a connection was made to."""
    with contextlib.suppress(OSError):  # the peer has hung up since, which its user will be told
        _reached[endpoint] = connected.family, connected.type, connected.proto, connected.getpeername()


def connect(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Return a connection to the first address that takes it."""
    last_error: OSError | None = None
    addresses = addresses_of(endpoint)
    deadline = Deadline.after_ms(timeout_s * 1000)
    for left, (family, kind, protocol, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(part_of_s(deadline, left) or _SOON_S)
            opened.connect(address)
            note_reached(endpoint, opened)
        except OSError as error:
            opened.close()
            last_error = error
        else:
            return opened
    raise last_error or OSError("the name has no address")


def part_of_s(deadline: Deadline, addresses: int) -> float:
    """Return the seconds for the next of some addresses."""
    return deadline.remaining() / addresses
