"""One TubeMQ and one gateway for all tests of a module; each test has topics and clients of its own."""

import contextlib
import itertools
import threading

import psutil

from tests.gateway.running import Answers, PlainClient, Stream, gateway
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway import batches, gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.values import partition_from_proto
from tubemq_spark.protocol.send_batch import SendBatch

ROW = 28
_numbers = itertools.count(1)


def fresh(kind):
    return f"{kind}_{next(_numbers)}"


class Fleet:
    """Clients of one gateway, which are closed together."""

    def __init__(self, server, served):
        self.server = server
        self.served = served
        self.gateway = served.server
        self._stack = contextlib.ExitStack()

    def topic(self):
        """A topic of one partition on each of three brokers."""
        name = fresh("topic")
        self.server.add_topic(name)
        return name

    def client(self, group=None, *, served=None, client_id=None, epoch=1, **asked):
        address = (served or self.served).address
        made = self._stack.enter_context(PlainClient(address, client_id or fresh("client"), epoch))
        made.open(group=group or fresh("group"), **asked)
        return made

    def reader(self, topic, *brokers, group=None, accept_losses=False, **asked):
        """A client that has attached the topic's partitions from their beginning."""
        made = self.client(group, **asked)
        answers = attach(made, topic, *(brokers or (1,)), accept_losses=accept_losses)
        assert all(one.WhichOneof("result") == "offset" for one in answers), answers
        return made

    def publish(self, topic, *values, **how):
        publish(self.client("writers"), topic, *values, **how)

    def latest(self, topic, broker_id=1):
        """Return the end of a topic at a broker."""
        stores = [pb.Store(topic=topic, broker_id=broker_id)]
        return self.client()("QueryBounds", stores=stores).answers[0].bounds.latest

    def wait_for_fetches(self, count):
        """Wait until so many fetches, and streams of batches, are under way."""
        wait_until(lambda: self.gateway._consuming.places.used == count, 10)

    @contextlib.contextmanager
    def draining(self, *drain_ms):
        """Stop the gateway beside a block, and wait for the end of both."""
        stopping = threading.Thread(target=self.served.stop, args=drain_ms)
        stopping.start()
        yield
        stopping.join(20)
        assert not stopping.is_alive()

    def close(self):
        self._stack.close()


@contextlib.contextmanager
def fleet_of(server, **settings):
    """Run a gateway with these settings, and clients of it."""
    with gateway(server, **settings) as served, contextlib.closing(Fleet(server, served)) as fleet:
        yield fleet


def upstream(server):
    """Return how many connections this process has to a server."""
    endpoints = {server.master, *server.brokers.values()}
    connections = psutil.Process().net_connections(kind="inet")
    return sum(each.raddr != () and f"{each.raddr.ip}:{each.raddr.port}" in endpoints for each in connections)


def place(topic, broker_id=1):
    return pb.Partition(topic=topic, broker_id=broker_id, partition_id=0)


def attach(client, topic, *brokers, offset=0, **how):
    wanted = [
        pb.AttachPartitionsRequest.Wanted(partition=place(topic, broker), offset=offset) for broker in brokers
    ]
    return client("AttachPartitions", partitions=wanted, **how).partitions


def fetch(client, **how):
    return client("Fetch", **{"wait_ms": 10_000, "timeout": 15, **how})


def batch_to(topic, *values, broker_id=1, header=None):
    message = sends.to_proto(SendBatch.of(topic, list(values), header=header))
    message.MergeFrom(
        pb.MessageBatch(places=[pb.Place(broker_id=broker_id)], place_codes=bytes(4 * len(values)))
    )
    return message


def publish(client, topic, *values, **how):
    client("PublishStream", batch=batch_to(topic, *values, **how))


BEGIN = pb.PublishStreamRequest(begin=pb.PublishStreamRequest.Begin())


def publishing(client, topic):
    """Begin to publish, and return the stream when a batch is stored."""
    stream = Stream(client, "PublishStream")
    stream.ask(BEGIN)
    stream.ask(pb.PublishStreamRequest(batch=batch_to(topic, b"before"), number=1))
    return stream


def consuming(client, topic):
    """Attach a partition, and return the stream when a batch has come."""
    assert attach(client, topic, 1)[0].WhichOneof("result") == "offset"
    begin = pb.ConsumeRequest(begin=pb.ConsumeRequest.Begin())
    stream = Stream(client, "Consume", begin, pb.ConsumeRequest(credit=1))
    next(stream.call)
    return stream


def hearing(client, *_):
    """Return the events of a session from now on."""
    call = client.begin("SessionEvents")
    call.initial_metadata()
    return Answers(call)


def columns_of(answer):
    """The messages of an answer, as columns."""
    records = answer.records
    return batches.from_proto(records, records.data, partition_from_proto(answer.partition)).columns


def values_of(answer):
    return columns_of(answer).values() if answer.records.count else []
