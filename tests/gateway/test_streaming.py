"""Consuming as one long call: credit, commits and seeks go up, batches come down."""

import pytest

from tests.gateway.fleet import ROW, attach, fleet_of, fresh, place, values_of
from tests.gateway.running import BAD_REQUEST, BUSY, DRAINING, NO_SESSION, Stream, end_of
from tests.waiting import wait_until
from tubemq_spark.net.fair_quota import Owner
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

MUCH = 1 << 30


class Consuming(Stream):
    """One Consume call of a client."""

    def __init__(self, client, credit=MUCH):
        super().__init__(client, "Consume", pb.ConsumeRequest(begin=pb.ConsumeRequest.Begin()))
        if credit:
            self.credit(credit)

    def credit(self, size):
        self.send(pb.ConsumeRequest(credit=size))

    def commit(self, batch, **how):
        self.send(pb.ConsumeRequest(commit=pb.CommitRequest(batch=batch, **how)))
        return self.next("committed")

    def seek(self, partition, offset=None):
        self.send(pb.ConsumeRequest(seek=pb.ConsumeRequest.Seek(partition=partition, offset=offset)))
        return self.next("sought")

    def next(self, kind="batch"):
        """The next event of a kind; signs that there is nothing are passed over."""
        for event in self.call:
            which = event.WhichOneof("event")
            if which == kind:
                return getattr(event, kind)
            assert which == "waiting", event
        raise AssertionError("the stream is over")


def test_batches_come_by_themselves_and_commits_move_the_group(fleet):
    topic, group = fleet.topic(), fresh("group")
    reader = fleet.reader(topic, 1, 2, group=group)
    stream = Consuming(reader)
    fleet.publish(topic, b"one", b"two")
    first = stream.next()
    assert (values_of(first), first.partition, first.records.start) == ([b"one", b"two"], place(topic), 0)
    assert stream.commit(first.batch).position.offset == 2 * ROW
    fleet.publish(topic, b"three", broker_id=2)
    assert values_of(stream.next()) == [b"three"]
    stream.finish()
    reader("CloseSession")
    again = fleet.client(group)
    wanted = [pb.AttachPartitionsRequest.Wanted(partition=place(topic, broker)) for broker in (1, 2)]

    def offsets():
        return [one.offset for one in again("AttachPartitions", partitions=wanted).partitions]

    # What was sent and not committed comes again.
    wait_until(lambda: offsets() == [2 * ROW, 0], 10)


def test_no_batch_comes_without_credit(fleet):
    topic = fleet.topic()
    reader = fleet.reader(topic, 1, 2)
    for broker in (1, 2):
        fleet.publish(topic, b"x" * 100, broker_id=broker)
    stream = Consuming(reader, credit=0)
    assert stream.seek(place(topic), 0).offset == 0
    batches = [reader("Fetch", wait_ms=10_000) for _ in range(2)]
    assert {batch.partition.broker_id for batch in batches} == {1, 2}, "the stream has taken none"
    for batch in batches:
        reader("Commit", batch=batch.batch, roll_back=True)
    stream.credit(1)
    first = stream.next()
    # One fetch finds the other partition's messages: the stream has not taken them.
    other = reader("Fetch", wait_ms=10_000)
    assert {first.partition.broker_id, other.partition.broker_id} == {1, 2}
    reader("Commit", batch=other.batch, roll_back=True)
    stream.credit(MUCH)
    assert stream.next().partition == other.partition
    stream.finish()


def test_a_batch_that_is_taken_back_comes_again(fleet):
    topic = fleet.topic()
    stream = Consuming(fleet.reader(topic))
    fleet.publish(topic, b"one")
    first = stream.next()
    assert stream.commit(first.batch, roll_back=True).position.offset == 0
    assert values_of(stream.next()) == [b"one"]
    stream.finish()


def test_batches_sent_to_a_client_that_went_come_again_at_once(fleet):
    topic = fleet.topic()
    reader = fleet.reader(topic)
    fleet.publish(topic, b"one")
    stream = Consuming(reader)
    stream.next()
    stream.break_off()
    assert values_of(reader("Fetch", wait_ms=10_000)) == [b"one"]


def test_a_seek_goes_back_and_forth(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"one", b"two")
    stream = Consuming(fleet.reader(topic))
    assert values_of(stream.next()) == [b"one", b"two"]
    assert stream.seek(place(topic), ROW).offset == ROW
    assert values_of(stream.next()) == [b"two"]
    assert stream.seek(place(topic), 0).offset == 0
    assert values_of(stream.next()) == [b"one", b"two"]
    stream.finish()


def test_a_batch_that_a_seek_takes_back_does_not_come_before_the_seek(fleet):
    """Rolled back, the batch would be handed out again at once: the stream asks all the time."""
    topic = fleet.topic()
    fleet.publish(topic, b"one")
    stream = Consuming(fleet.reader(topic))
    stream.next()
    for _ in range(8):
        assert stream.seek(place(topic), 0).offset == 0
        assert values_of(stream.next()) == [b"one"]
    stream.finish()


@pytest.mark.parametrize(
    ("offset", "broker", "condition"),
    [(1, 1, "TUBEMQ_OFFSET_UNALIGNED"), (0, 77, "TUBEMQ_CONNECT.UNKNOWN")],
)
def test_a_seek_that_makes_no_sense_is_an_answer(fleet, offset, broker, condition):
    topic = fleet.topic()
    stream = Consuming(fleet.reader(topic, 2))
    assert stream.seek(place(topic, broker), offset).error.condition == condition
    fleet.publish(topic, b"goes on", broker_id=2)
    assert values_of(stream.next()) == [b"goes on"]
    stream.finish()


@pytest.mark.parametrize("batch", ["nonsense", "1:demo:0@77"])
def test_a_commit_of_no_batch_is_an_answer(fleet, batch):
    stream = Consuming(fleet.reader(fleet.topic()))
    assert stream.commit(batch).error.condition in {"TUBEMQ_CONFIRM_CONTEXT", "TUBEMQ_CONFIRM_LATE"}
    stream.finish()


def test_a_partition_that_fails_does_not_hold_up_the_others(fleet):
    topic = fleet.topic()
    stream = Consuming(fleet.reader(topic, 1, 2))
    fleet.publish(topic, b"a", b"b")
    batch = stream.next()
    stream.commit(batch.batch)
    fleet.server.faults.give_leases_away(topic, broker=1)
    fleet.publish(topic, b"lost")
    fleet.publish(topic, b"goes on", broker_id=2)
    assert values_of(stream.next()) == [b"goes on"]
    stream.finish()


def test_a_partition_that_was_given_up_is_told_of_and_the_others_go_on(fleet):
    topic = fleet.topic()
    with fleet.server.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST, broker=1):
        stream = Consuming(fleet.reader(topic, 1, 2))
        assert stream.next("error").code == ErrCode.BAD_REQUEST
    for broker, value in ((1, b"not read"), (2, b"one")):
        fleet.publish(topic, value, broker_id=broker)
    assert values_of(stream.next()) == [b"one"]
    stream.finish()


def test_a_stream_waits_until_something_is_attached_again(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"one")
    reader = fleet.reader(topic, 2)
    reader("DetachPartitions", partitions=[place(topic, 2)])
    stream = Consuming(reader)
    attach(reader, topic, 1)
    assert values_of(stream.next()) == [b"one"]
    stream.finish()


def test_the_first_command_is_begin_and_nonsense_ends_the_stream(fleet):
    client = fleet.reader(fleet.topic())
    stream = Consuming(client)
    stream.send(pb.ConsumeRequest())
    assert stream.end() == BAD_REQUEST
    call = client.method("Consume")(iter([pb.ConsumeRequest(credit=1)]), timeout=10)
    assert end_of(call)[0] == "INVALID_ARGUMENT"


def test_a_stream_needs_a_session_that_has_attached_partitions(fleet):
    assert Consuming(fleet.client()).end() == BAD_REQUEST
    closed = fleet.client()
    closed("CloseSession")
    assert Consuming(closed).end() == NO_SESSION


@pytest.mark.parametrize("credit", [0, MUCH])
def test_a_stream_ends_when_the_gateway_drains(server, credit):
    with fleet_of(server) as fleet:
        reader = fleet.reader(fleet.topic())
        stream = Consuming(reader, credit)
        fleet.wait_for_fetches(1)
        with fleet.draining(10_000):
            assert stream.end() == DRAINING


def test_one_client_does_not_take_all_places_of_fetches(server):
    with fleet_of(server, fetches=16) as fleet:
        reader = fleet.reader(fleet.topic())
        streams = [Consuming(reader) for _ in range(14)]
        fleet.wait_for_fetches(14)
        assert Consuming(reader).end() == BUSY
        with fleet.gateway._consuming.place(Owner("another")):
            pass
        for stream in streams:
            stream.finish()
