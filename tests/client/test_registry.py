"""Which producers and consumers of a process are open, and what happens to them when it ends."""

import concurrent.futures
import contextlib
import gc
import subprocess
import sys
import threading

import pytest

from testkit.children import forks, in_child
from tests.client.assigned import client_of, consumer_of
from tubemq_spark.client import open_clients
from tubemq_spark.client.registry import Registry
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ

TOPIC = "demo"


@pytest.fixture
def server():
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=settings) as running:
        yield running


def client_threads():
    """Return the names of this process's threads that are not the server's."""
    of_server = ("tubemq-listen-", "tubemq-serve-", "tubemq-scheduler")
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tubemq-") and not name.startswith(of_server)]


def kinds():
    return [client.kind for client in open_clients()]


def test_clients_are_known_by_number_as_long_as_they_are_open(server):
    with client_of(server) as one, client_of(server, "other") as other:
        group, assigned = one.group_consumer(TOPIC), other.assigned_consumer(TOPIC)
        assert open_clients() == (), "consumers are open when they were opened"
        with contextlib.closing(one.producer()) as producer, other.producer() as threaded:
            group.open()
            assigned.open()
            found = open_clients()
            assert [client.kind for client in found] == [
                "producer",
                "producer",
                "group consumer",
                "assigned consumer",
            ]
            assert [client.client_id for client in found] == [
                one_of_all.client_id for one_of_all in (producer, threaded, group, assigned)
            ]
            assert [client.number for client in found] == sorted({client.number for client in found})
            group.close()
            assert kinds() == ["producer", "producer", "assigned consumer"]
        assert kinds() == ["assigned consumer"]
        last = open_clients()[0].number
        with one.producer():
            assert open_clients()[-1].number > last, "no number is used again"
    assert open_clients() == (), "a client closes its consumers"


def test_an_opening_that_failed_leaves_nothing_open(server):
    with client_of(server) as client, pytest.raises(Exception, match="TOPIC_NOT_DEPLOYED"):
        client.group_consumer("nowhere").open()
    assert open_clients() == ()


def test_a_producer_that_is_forgotten_is_not_kept(server):
    with client_of(server) as client:
        forgotten = [client.producer()]
        assert kinds() == ["producer"]
        with pytest.warns(ResourceWarning, match="was not closed"):
            forgotten.clear()
        gc.collect()
        assert open_clients() == ()


def test_clients_of_one_process_share_the_thread_of_heartbeats(server):
    with (
        client_of(server) as one,
        client_of(server, "other") as other,
        one.group_consumer(TOPIC),
        other.assigned_consumer(TOPIC),
    ):
        assert client_threads() == ["tubemq-loop"]


@forks
def test_a_forked_child_has_no_open_client_of_its_parent(server):
    with client_of(server) as client, client.producer() as producer, client.group_consumer(TOPIC) as consumer:

        def check():
            assert open_clients() == ()
            with client_of(server, "child").producer():
                consumer.close()
                producer.close()
                assert kinds() == ["producer"]

        in_child(check)
        assert kinds() == ["producer", "group consumer"]


class Troubled:
    """A client whose closing fails."""

    client_id = "troubled"

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True
        raise RuntimeError("can't start new thread at interpreter shutdown")


def test_numbers_count_from_one_and_no_two_clients_have_the_same():
    registry = Registry()
    clients = [[Troubled() for _ in range(50)] for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda some: [registry.enter(client, "group consumer") for client in some], clients))
    assert [client.number for client in registry.open_clients()] == list(range(1, 201))


def test_a_client_that_cannot_be_closed_does_not_stop_the_others(caplog):
    registry = Registry()
    clients = [Troubled(), Troubled()]
    for client in clients:
        registry.enter(client, "group consumer", closes_at_exit=True)
    registry.close_all()
    assert [client.closed for client in clients] == [True, True]
    assert sum("could not be closed" in record.getMessage() for record in caplog.records) == 2


PROGRAM = """
import logging, sys
from tubemq_spark.client import ClientConfig, ConsumePosition, ConsumerConfig, TubeMQClient
from tubemq_spark.model import Endpoint, TopicPartition
logging.basicConfig()
settings = ConsumerConfig(consume_position=ConsumePosition.FIRST)
config = ClientConfig((Endpoint.parse(sys.argv[1]),), "etl", heartbeat_period_ms=100, consumer=settings)
client = TubeMQClient(config)
if sys.argv[2] == "group":
    consumer = client.group_consumer("demo").open()
    assert consumer.wait_until_ready(20_000)
else:
    consumer = client.assigned_consumer("demo").open()
    consumer.connect(TopicPartition("demo", 1, 0))
print("held:", len(consumer.connected))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["group", "assigned"])
def test_a_process_that_does_not_close_its_consumer_gives_everything_back(server, kind):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, server.master, kind],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("held: ")
    assert "is closed because the process ends" in done.stderr
    # The master still counts a member that did not leave, and a broker refuses what another consumer holds.
    with consumer_of(server) as other:
        for where in other.partitions():
            other.connect(where)
