"""Publish streams: one that rests between two flushes has neither a thread nor connections of its own."""

import queue

import psutil
import pytest

from tests.gateway.fleet import Fleet, batch_to, publish
from tests.gateway.running import gateway
from tests.waiting import wait_until
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


class Stream:
    """A publish stream; each command waits for its answer."""

    def __init__(self, client):
        self._commands = queue.SimpleQueue()
        self.call = client.method("PublishStream")(iter(self._commands.get, None), timeout=60)
        self.ask(begin=pb.PublishStreamRequest.Begin(name="stream"))

    def ask(self, **command):
        self._commands.put(pb.PublishStreamRequest(**command))
        answer = next(self.call)
        assert not answer.HasField("error"), answer.error
        return answer

    def send(self, topic, *values):
        self.ask(batch=batch_to(topic, *values))

    def flush(self):
        return sum(one.count for one in self.ask(flush=pb.PublishStreamRequest.Flush()).receipts)

    def finish(self):
        receipts = self.ask(finish=pb.PublishStreamRequest.Finish()).receipts
        self._commands.put(None)
        assert list(self.call) == []
        return sum(one.count for one in receipts)

    def break_off(self):
        self.call.cancel()
        self._commands.put(None)


@pytest.fixture
def narrow(server):
    """A gateway for one client that publishes at a time."""
    with gateway(server, publishes=1, queue_ms=50) as served:
        fleet = Fleet(server, served)
        yield fleet
        fleet.close()


def test_streams_take_turns_between_their_flushes(narrow):
    topic = narrow.topic()
    first = Stream(narrow.client("writers"))
    first.send(topic, b"a")
    assert first.flush() == 1
    second = Stream(narrow.client("writers"))
    second.send(topic, b"b", b"c")
    assert second.flush() == 2
    first.send(topic, b"d")
    assert first.flush() == 2
    assert second.finish() == 2
    assert first.finish() == 2


def test_many_streams_that_rest_share_connections_to_brokers(server, narrow):
    topic = narrow.topic()
    endpoints = {*server.brokers.values()}

    def upstream():
        found = psutil.Process().net_connections(kind="inet")
        return sum(1 for one in found if one.raddr and f"{one.raddr.ip}:{one.raddr.port}" in endpoints)

    streams, counted = [], []
    for _ in range(10):
        streams.append(Stream(narrow.client("writers")))
        streams[-1].send(topic, b"x")
        assert streams[-1].flush() == 1
        counted.append(upstream())
    assert set(counted) == {counted[0]}
    assert [stream.finish() for stream in streams] == [1] * 10


def test_a_stream_that_breaks_off_gives_its_thread_to_the_next(narrow):
    topic = narrow.topic()
    first = Stream(narrow.client("writers"))
    first.send(topic, b"a")
    first.break_off()
    wait_until(lambda: narrow.served.server._admission.publishes.running == 0)
    second = Stream(narrow.client("writers"))
    second.send(topic, b"b")
    assert second.finish() == 1


def test_a_stream_that_waits_for_its_turn_goes_on(narrow):
    topic = narrow.topic()
    first = Stream(narrow.client("writers"))
    first.flush()
    second = Stream(narrow.client("writers"))
    second.send(topic, b"b")
    first._commands.put(pb.PublishStreamRequest(batch=batch_to(topic, b"a")))
    assert second.finish() == 1
    assert not next(first.call).HasField("error")
    assert first.finish() == 1


def test_receipts_of_a_stream_are_of_all_its_turns(narrow):
    topic = narrow.topic()
    stream = Stream(narrow.client("writers"))
    for number in range(1, 4):
        stream.send(topic, b"x")
        told = stream.ask(tell=pb.PublishStreamRequest.Tell()).receipts
        assert sum(one.count for one in told) in {number - 1, number}
        assert stream.flush() == number
    assert stream.finish() == 3


def test_producers_are_registered_at_the_master_for_the_sessions(server):
    """One for those that take turns, as long as the gateway lives."""
    before = server.overview().producers
    with gateway(server) as served:
        fleet = Fleet(server, served)
        topic = fleet.topic()
        clients = [fleet.client("writers") for _ in range(3)]
        for client in clients:
            publish(client, topic, b"x")
        assert server.overview().producers == before + 1
        for client in clients:
            client("CloseSession")
        publish(fleet.client("writers"), topic, b"x")
        assert server.overview().producers == before + 1
        fleet.close()
    wait_until(lambda: server.overview().producers == before)
