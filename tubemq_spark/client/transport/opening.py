"""How a client gets its transport."""

from tubemq_spark.client.config import usual_web_servers
from tubemq_spark.client.remote.access import check_access
from tubemq_spark.client.transport.base import Transport
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.client.urls import UrlSettings
from tubemq_spark.net.connections import Connections


def new_transport(settings: UrlSettings, connections: Connections) -> Transport:
    """Return the way to the cluster that settings name: through their gateways, if they name some.

    Raises:
        OptionError: a setting makes no sense through gateways, or gRPC is not installed.
    """
    config, gateways = settings.config, settings.gateways
    if not gateways:
        return DirectTransport(config, connections, lambda: usual_web_servers(config.masters))
    check_access(config, settings.gateway_token)
    # gRPC is needed for gateways only.
    from tubemq_spark.client.remote.gateways import Gateways
    from tubemq_spark.client.transport.gateway import GatewayTransport

    return GatewayTransport(Gateways(gateways, config, settings.gateway_token))
