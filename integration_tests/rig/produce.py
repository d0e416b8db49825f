"""Filling topics with our own producer, where a test is not about producing."""

from collections.abc import Iterable

from integration_tests.rig.samples import Sample
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.cluster.base import Cluster
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.model import Endpoint


def client_config(master: str, group: str = "it_group") -> ClientConfig:
    """Return a client's settings for a server of the tests."""
    return ClientConfig((Endpoint.parse(master),), group)


def cluster_of(config: ClientConfig) -> Cluster:
    """Return the cluster that these settings name, as the source and the sink see it."""
    return open_cluster(ClusterConfig(config))


def produce(master: str, topic: str, samples: Iterable[Sample]) -> None:
    """Send messages and wait until all are stored."""
    with TubeMQClient(client_config(master)) as client, client.producer() as producer:
        for sample in samples:
            producer.send(
                topic,
                sample.body,
                attributes=dict(sample.attributes) or None,
                message_type=sample.message_type,
                message_time=sample.message_time,
            )


def produce_numbers(master: str, topic: str, numbers: Iterable[int], *, width: int = 1) -> None:
    """Send numbers as text, with blanks in front up to a width: ``int`` reads them all the same."""
    produce(master, topic, (Sample(b"%*d" % (width, number)) for number in numbers))
