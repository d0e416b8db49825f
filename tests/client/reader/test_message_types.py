"""Reading only messages of some types: the broker leaves out most of the others, the client the rest."""

import itertools

import pytest

from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.model import Endpoint, OffsetRange

ROW = 28
TYPES = ["Aa", "BB", "other", None]
"""The first two have the same hash, by which brokers choose."""


@pytest.fixture(scope="module")
def server():
    with EmbeddedTubeMQ(topics={"own": (1, 1), "shared": (1, 2)}) as server:
        with TubeMQClient.connect(server.master) as client, client.producer() as producer:
            for topic, partitions in (("own", [0]), ("shared", [0, 1])):
                for number, partition in zip(range(400), itertools.cycle(partitions)):
                    producer.send(
                        topic,
                        b"%d" % number,
                        # Runs of every length, so that ranges begin and end inside and between them.
                        message_type=TYPES[number * number // 40 % 4],
                        partition=(1, partition),
                    )
        yield server


def client_of(server, *types):
    return TubeMQClient(ClientConfig((Endpoint.parse(server.master),), "types", message_types=types))


def values(client, topic):
    return [int(record.value) for record in client.read(topic)]


def expected(*types):
    return [number for number in range(400) if TYPES[number * number // 40 % 4] in types]


@pytest.mark.parametrize("types", [("Aa",), ("BB", "other"), ("unheard_of",)])
@pytest.mark.parametrize("topic", ["own", "shared"])
def test_only_messages_of_these_types_are_read(server, topic, types):
    with client_of(server, *types) as client:
        assert sorted(values(client, topic)) == expected(*types)


@pytest.mark.parametrize("topic", ["own", "shared"])
def test_ranges_cut_them_without_gaps_and_repeats(server, topic):
    """Wherever a range ends: also between two messages that are left out."""
    with client_of(server, "Aa", "other") as client:
        layout = client.layout(topic)
        cuts = [ROW * row for row in (0, 1, 7, 50, 51, 133, 134, 200, 399, 400)]
        found = [
            int(record.value)
            for partition in layout.partitions
            for start, end in itertools.pairwise(cuts)
            for record in client.read_range(layout, OffsetRange(partition, start, end))
        ]
    assert sorted(found) == expected("Aa", "other")
