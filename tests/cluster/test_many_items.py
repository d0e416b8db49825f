"""More stores than one request may have: clients of gateways make several of them."""

from tests.cluster import gateways as running
from tubemq_spark.model import OffsetBounds, StoreId
from tubemq_spark.protocol.gateway import service


def test_stores_beyond_the_bound_of_a_request_are_asked_for():
    there = [StoreId("demo", broker, 0) for broker in (1, 2, 3)]
    others = [StoreId("demo", 9, number) for number in range(service.ITEMS + 5)]
    with running.three_brokers(gateways=1) as parts:
        cluster = parts.cluster
        bounds = cluster.bounds(cluster.layout(["demo"]), [*others, *there])
    assert bounds.by_store == dict.fromkeys(there, OffsetBounds(0, 0))
    assert bounds.failures.keys() == set(others)
