"""How a client gets its transport."""

from tubemq_spark.client.config import usual_web_servers
from tubemq_spark.client.remote.access import check_access
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.connections import Connections
from tubemq_spark.settings.fields import bad_setting


def new_transport(settings: UrlSettings, connections: Connections) -> Transport:
    """Return the way to the cluster that settings name: through their gateways, if they name some.

    Raises:
        OptionError: a setting makes no sense through gateways, or gRPC is not installed.
    """
    config, gateways = settings.config, settings.gateways
    if not gateways:
        return DirectTransport(config, connections, lambda: web_servers(settings))
    if settings.master_web:
        raise bad_setting("master_web", "given", "left out through gateways, whose operator sets it")
    check_access(config, settings.gateway_token)
    # gRPC is needed for gateways only.
    from tubemq_spark.client.remote.gateways import Gateways
    from tubemq_spark.client.transport.gateway import GatewayTransport

    return GatewayTransport(Gateways(gateways, config, settings.gateway_token))


def web_servers(settings: UrlSettings) -> tuple[Endpoint, ...]:
    """Return where masters may serve their administration API."""
    return settings.master_web or usual_web_servers(settings.config.masters)
