"""How everything above gets a cluster."""

from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.direct import DirectCluster
from tubemq_spark.cluster.kept_producers import process_producers
from tubemq_spark.errors import OptionError
from tubemq_spark.net.pool import process_pool


def open_cluster(config: ClusterConfig) -> Cluster:
    """Return the cluster a configuration names; cheap, since a process shares its channels.

    Spark reuses its Python workers for many tasks, so channels and producers outlive a task.

    Raises:
        OptionError: the configuration names gateways.
    """
    if config.gateways:
        raise OptionError("TUBEMQ_GATEWAY_UNSUPPORTED", gateways=", ".join(map(str, config.gateways)))
    return DirectCluster(config.client, process_pool(), process_producers(), config.web_servers)
