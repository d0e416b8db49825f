"""Finding out again and again where the masters are, where the settings want that.

The list of the settings counts until the first answer. An answer that does not come, or names no master,
changes nothing: the last good list stays, and the log says so, once per row of failures. Sessions keep their
connections; they ask the new masters with their next question.
"""

import asyncio
import http.client
import logging
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Final

from tubemq_spark.client.master import identity
from tubemq_spark.errors import OptionError
from tubemq_spark.gateway.admission import Turns
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_ADDRESS: Final = re.compile(r"([\w.-]+|\[[\da-f:]+\]):\d+", re.ASCII | re.IGNORECASE)
_SHOWN: Final = 40
"""Characters of what is no address."""
_MOST_BYTES: Final = 64 << 10
"""Of a list over HTTP."""


class Discovery:
    """The masters of one gateway; used in the event loop."""

    def __init__(self, settings: GatewaySettings, workers: Turns) -> None:
        self._settings = settings
        self._first = settings.client_config().masters
        self._workers = workers
        self._failing = False

    @property
    def wanted(self) -> bool:
        """Whether there is anything to find out."""
        return self._settings.master_discovery != "off"

    async def refresh(self) -> None:
        """Find out where the masters are, and have sessions ask them; raises nothing."""
        if not self.wanted:
            return
        before = identity.current_masters(self._first)
        try:
            # A name server that is silent has no limit of its own.
            async with asyncio.timeout(_TIMEOUT_S):
                members = await self._workers.run(self._find)
        except (OSError, http.client.HTTPException, ValueError, OptionError) as error:
            if not self._failing:
                cause = str(error) or f"no server answered within {_TIMEOUT_S:.0f} s"
                logger.warning("the masters stay %s, since others cannot be found: %s", _texts(before), cause)
            self._failing = True
            return
        self._failing = False
        if set(members) != set(before):
            identity.replace_masters(self._first, members)
            logger.info("the masters are %s now, and were %s before", _texts(members), _texts(before))

    def _find(self) -> tuple[Endpoint, ...]:
        """Return the masters.

        Raises:
            OSError: no server answers, or one with an error.
            HTTPException: the answer is not one of an HTTP server.
            ValueError: the answer names none.
            OptionError: it names something that is no address.
        """
        url = self._settings.master_discovery_url
        members = _by_name(self._first) if url is None else _listed_at(url)
        if not members:
            raise ValueError("the answer names no master")
        return members


def _by_name(hosts: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return all addresses that the hosts have now."""
    members = {
        Endpoint(str(address[0]), host.port): None
        for host in hosts
        for *_, address in socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
    }
    return tuple(members)


def _listed_at(url: str) -> tuple[Endpoint, ...]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (the settings check it)
            text = answer.read(_MOST_BYTES).decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise
    addresses = [address for address in re.split(r"[\s,;]+", text) if address]
    # A page that is something else, such as an error in HTML, must not become names of hosts.
    if strange := [address for address in addresses if not _ADDRESS.fullmatch(address)]:
        raise ValueError(f"{strange[0][:_SHOWN]!r} is not host:port")
    return tuple(dict.fromkeys(map(Endpoint.parse, addresses)))


def _texts(masters: Iterable[Endpoint]) -> str:
    return ", ".join(map(str, masters))
