"""How everything above gets a cluster."""

from typing import TYPE_CHECKING

from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.net.connections import process_connections

if TYPE_CHECKING:
    from tubemq_spark.cluster.kept_producers import KeptProducers


def open_cluster(config: ClusterConfig, *, for_task: bool = False) -> Cluster:
    """Return the cluster a configuration names; cheap, since a process shares its channels.

    Spark reuses its Python workers for many tasks, so channels and producers outlive a task.
    """
    if config.gateways:
        # gRPC is needed for gateways only.
        from tubemq_spark.client.remote.gateways import process_gateways
        from tubemq_spark.client.transport.gateway import GatewayTransport

        gateways = process_gateways(config.gateways, config.client, config.gateway_token)
        return TransportCluster(GatewayTransport(gateways), for_task=for_task)
    transport = DirectTransport(config.client, process_connections(), lambda: config.web_servers)
    return TransportCluster(transport, _producers, for_task=for_task)


def _producers() -> "KeptProducers":
    # Who only reads does not wait for the import of what producers need.
    from tubemq_spark.cluster.kept_producers import process_producers

    return process_producers()
