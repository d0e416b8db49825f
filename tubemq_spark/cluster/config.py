"""Which cluster, and the way to it."""

import dataclasses

from tubemq_spark.client.config import ClientConfig, usual_web_servers
from tubemq_spark.client.remote import check_access
from tubemq_spark.errors import OptionError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import DEFAULT_GATEWAY_PORT, DEFAULT_WEB_PORT
from tubemq_spark.settings.fields import setting
from tubemq_spark.settings.kinds import VERBATIM, addresses


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Names the masters, or gateways that stand before them. Picklable; safe to log."""

    client: ClientConfig
    """The masters, and how patient to be."""
    gateways: tuple[Endpoint, ...] = setting(
        addresses(DEFAULT_GATEWAY_PORT), "gateways to go through, in place of the masters", ()
    )
    web: tuple[Endpoint, ...] = setting(
        addresses(DEFAULT_WEB_PORT), "where the masters serve their administration API over HTTP", ()
    )
    gateway_token: str | None = setting(
        VERBATIM, "the token that shows gateways who calls, where they demand one", None, secret=True
    )

    @property
    def web_servers(self) -> tuple[Endpoint, ...]:
        """Where the masters serve their administration API."""
        return self.web or usual_web_servers(self.client.masters)

    def validate(self) -> "ClusterConfig":
        """Return the configuration when it makes sense."""
        if self.gateways and self.client.masters:
            raise OptionError("TUBEMQ_MASTERS_AND_GATEWAYS")
        if self.gateways:
            if self.web:
                raise OptionError(
                    "TUBEMQ_OPTIONS_EXCLUSIVE", option="tubemq.gateway.servers", other="tubemq.master.web"
                )
            check_access(self.client, self.gateway_token)
        elif self.gateway_token is not None:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option="tubemq.gateway.servers", other="tubemq.gateway.token"
            )
        dataclasses.replace(self.client, masters=self.client.masters or self.gateways).validate()
        return self
