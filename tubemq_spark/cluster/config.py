"""Which cluster, and the way to it."""

import dataclasses

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import DEFAULT_WEB_PORT


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Names the masters, or gateways that stand before them. Picklable; safe to log."""

    client: ClientConfig
    """The masters, and how patient to be."""
    gateways: tuple[Endpoint, ...] = ()
    """Gateways to go through; none means that this process talks to the masters and the brokers itself."""
    web: tuple[Endpoint, ...] = ()
    """Where the masters serve their administration API; none means at the usual port of each master."""

    @property
    def web_servers(self) -> tuple[Endpoint, ...]:
        """Where the masters serve their administration API."""
        return self.web or tuple(Endpoint(master.host, DEFAULT_WEB_PORT) for master in self.client.masters)

    def validate(self) -> "ClusterConfig":
        """Return the configuration when it makes sense.

        Raises:
            OptionError: a setting does not; or masters and gateways are named, or neither.
        """
        if self.gateways and self.client.masters:
            raise OptionError("TUBEMQ_MASTERS_AND_GATEWAYS")
        dataclasses.replace(self.client, masters=self.client.masters or self.gateways).validate()
        return self
