"""How everything above gets a cluster."""

from tubemq_spark.client.config import ClientConfig
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.direct import DirectCluster
from tubemq_spark.net.pool import process_pool


def open_cluster(config: ClientConfig) -> Cluster:
    """Return the cluster a configuration names; cheap, since a process shares its channels.

    Spark reuses its Python workers for many tasks, so the channels outlive a task.
    """
    return DirectCluster(config, process_pool())
