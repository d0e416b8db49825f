"""How a gateway tells the others that it is there, if the settings name a directory for that."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tubemq_spark.gateway.session.directory import Directory, Peer
from tubemq_spark.gateway.session.workers import Workers
from tubemq_spark.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_PERIODS: Final = 6
"""For how many periods of housekeeping a gateway that says nothing counts as there."""


class Announcing:
    """The announcements of one gateway; a directory that cannot be used is a warning, and tried again."""

    def __init__(self, settings: GatewaySettings, workers: Workers) -> None:
        self._settings = settings
        self._workers = workers
        self._directory: Directory | None = None
        if settings.announce_dir is not None:
            lease_s = _PERIODS * settings.housekeeping_ms / 1000
            self._directory = Directory(Path(settings.announce_dir), lease_s)

    def peers(self) -> list[Peer]:
        """Return the gateways of the cluster that are there; none without a directory."""
        return [] if self._directory is None else self._directory.peers(self._settings.cluster_name)

    async def begin(self, address: str) -> None:
        """Join the cluster's gateways at an address."""
        if self._directory is not None:
            self._directory.join(self._settings.name, address, self._settings.cluster_name)
            await self.renew()

    async def renew(self) -> None:
        """Still be there, and see who else is."""
        if self._directory is not None:
            await self._try(self._directory.renew)

    async def end(self) -> None:
        """Leave the cluster's gateways."""
        if self._directory is not None:
            await self._try(self._directory.leave)

    async def _try(self, work: Callable[[], None]) -> None:
        try:
            await self._workers.run(work)
        except OSError as error:
            logger.warning("the directory of gateways cannot be used: %s", error)
