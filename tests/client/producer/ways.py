"""The two ways of a producer to its brokers: directly, and through two gateways."""

import contextlib
import dataclasses

from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint

WAYS = ("direct", "gateways")


class Fleet:
    """Two gateways before a scripted cluster, and producers that go through them."""

    def __init__(self, cluster, **settings):
        self._cluster = cluster
        settings_of = GatewaySettings(
            master_servers=(cluster.master.server.endpoint,), listen=Endpoint("127.0.0.1", 0), **settings
        )
        self.running = [
            BackgroundGateway(dataclasses.replace(settings_of, node_name=name).validate())
            for name in ("g1", "g2")
        ]
        self._opened = []

    def start(self):
        for gateway in self.running:
            gateway.start()
        self.addresses = tuple(Endpoint.parse(gateway.address) for gateway in self.running)

    def producer(self, **settings):
        config = dataclasses.replace(self._cluster.config(**settings), masters=())
        gateways = Gateways(self.addresses, config)
        producer = Producer(lambda _: GatewayPipeline(gateways, per_message=True, own=True))
        self._opened.append(producer)
        return producer

    def stop(self):
        for producer in self._opened:
            producer.close()
        for gateway in self.running:
            gateway.stop(0)


@contextlib.contextmanager
def by(way, cluster):
    """Return a scripted cluster whose producers go this way."""
    if way == "direct":
        yield cluster
        return
    fleet = Fleet(cluster)
    fleet.start()
    cluster.producer = fleet.producer
    cluster.fleet = fleet
    try:
        yield cluster
    finally:
        fleet.stop()
