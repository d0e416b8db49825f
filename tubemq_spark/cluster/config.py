"""Which cluster, and the way to it."""

import dataclasses

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.partitioners import BuiltInPartitioner, bad_partitioner
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
        return self.web or tuple(Endpoint(master.host, DEFAULT_WEB_PORT) for master in self.client.masters)

    def validate(self) -> "ClusterConfig":
        """Return the configuration when it makes sense.

        Raises:
            OptionError: a setting does not; or masters and gateways are named, or neither.
        """
        if self.gateways and self.client.masters:
            raise OptionError("TUBEMQ_MASTERS_AND_GATEWAYS")
        if self.gateways:
            self._check_gateways()
        elif self.gateway_token is not None:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option="tubemq.gateway.servers", other="tubemq.gateway.token"
            )
        dataclasses.replace(self.client, masters=self.client.masters or self.gateways).validate()
        return self

    def _check_gateways(self) -> None:
        """Refuse what has no meaning through a gateway."""
        client = self.client
        if self.web:
            raise OptionError(
                "TUBEMQ_OPTIONS_EXCLUSIVE", option="tubemq.gateway.servers", other="tubemq.master.web"
            )
        if not isinstance(client.partitioner, BuiltInPartitioner):
            raise bad_partitioner(client.partitioner)
        # The gateway logs in with it, so it gets the password itself and not a signature made with it.
        if client.tls is None and client.password is not None:
            raise OptionError("TUBEMQ_OPTION_NEEDED", option="tubemq.tls.enabled", other="tubemq.password")
        if client.tls is None and self.gateway_token is not None:
            raise OptionError(
                "TUBEMQ_OPTION_NEEDED", option="tubemq.tls.enabled", other="tubemq.gateway.token"
            )
        if client.tls is not None and client.tls.key_password is not None:
            raise OptionError(
                "TUBEMQ_OPTION_VALUE",
                option="tubemq.tls.keyPassword",
                value="given",
                expected="left out with gateways, whose connections need a key that is not encrypted",
            )
