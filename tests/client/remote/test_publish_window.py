"""Batches on their way to scripted gateways: in order, each told of once, and truly counted."""

import contextlib
import itertools
import threading

import numpy as np
import pytest

from tests.client.remote.scripted_gateway import scripted
from tests.waiting import wait_until
from tubemq_spark.client.producer.outgoing import outgoing_batch
from tubemq_spark.client.remote import publish_window
from tubemq_spark.client.remote.pipeline import GatewayPipeline
from tubemq_spark.errors import GatewayError, ProduceError
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.batches import INT32, INT64, pack
from tubemq_spark.protocol.send_batch import SendBatch

DRAINING = GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway="g")
FORGOTTEN = GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway="g", session="s")
DEAD = RuntimeError("it died")
NOTHING = iter(())
PARTITION = pb.Partition(topic="demo", broker_id=1, partition_id=0)


def stored(number, **fields):
    """The answer to a batch of one message."""
    outcomes = pb.PublishStreamResponse.Outcomes(
        partitions=[PARTITION],
        partition_codes=pack(np.zeros(1), INT32),
        offsets=pack(np.array([28 * number]), INT64),
    )
    return pb.PublishStreamResponse(number=number, outcomes=outcomes, **fields)


class Publishing:
    """One gateway's ``PublishStream``: for each stream, what is done with its batches, one after the other.

    That is an answer, several or none, or an error that ends the stream. Batches behind these are stored.
    """

    def __init__(self, *streams):
        self._streams = iter(streams)
        self.requests = []
        """What came, by stream."""
        self.ended = threading.Event()
        """Set when a stream has ended: gRPC tells a handler that it was cancelled, or that its requests have
        ended, whichever a thread finds first."""

    def __call__(self, requests):
        deeds = iter(next(self._streams, ()))
        came = []
        self.requests.append(came)
        try:
            for request in requests:
                came.append(request)
                if request.HasField("begin"):
                    deed = pb.PublishStreamResponse()
                else:
                    deed = next(deeds, None) or stored(request.number)
                if isinstance(deed, Exception):
                    raise deed
                yield from [deed] if isinstance(deed, pb.PublishStreamResponse) else deed
        finally:
            self.ended.set()

    def has(self, number):
        """Whether a batch has come, at least in part."""
        return any(request.number == number for came in self.requests for request in came)

    def bodies(self, stream):
        """Return the batches of a stream, each as its first body."""
        return [sends.from_proto(request.batch).values.value(0) for request in self.requests[stream][1:]]


class Told:
    """What became of one message."""

    def __init__(self, body, ended):
        self._body = body
        self._ended = ended
        self.error = None
        self.history = None

    def has_ended(self, _row):
        return False

    def stored(self, _rows, _partitions, _offsets, _details, *history):
        assert self.history is self.error is None, "it is told of once"
        self.history = history
        self._ended.append(self._body)

    def failed(self, _row, error):
        assert self.history is self.error is None, "it is told of once"
        self.error = error


class Sent:
    """A pipeline, and what became of the messages, each of which is a batch."""

    def __init__(self, gateways):
        self.pipeline = GatewayPipeline(gateways, "the test", per_message=True)
        self.batches, self.told = {}, {}
        self.stored = []

    def add(self, *bodies):
        for body in bodies:
            batch, _ = outgoing_batch(SendBatch.of("demo", [body]))
            self.batches[body] = batch
            batch.outcomes = self.told[body] = Told(body, self.stored)
            loop.run(self.pipeline.accept(batch, 0, 1))

    def flush(self):
        loop.run(self.pipeline.flush())

    def error(self, body):
        return self.told[body].error

    def histories(self):
        """How often each message was sent, and how often without an answer."""
        return {body: told.history for body, told in self.told.items()}


@pytest.fixture
def run():
    """Returns the gateways, and a pipeline through them."""
    topic = pb.CheckTopicResponse(partitions=[PARTITION], max_message_bytes=1 << 20)
    with contextlib.ExitStack() as closing:

        def begin(*gateways, **settings):
            scripts = [{"PublishStream": gateway, "CheckTopic": lambda _: topic} for gateway in gateways]
            running, reached = closing.enter_context(scripted(*scripts, **settings))
            sent = Sent(reached)
            closing.callback(lambda: loop.run(sent.pipeline.close()))
            return running, sent

        yield begin


def test_a_batch_travels_once_behind_what_begins_the_stream(run):
    gateway = Publishing()
    _, sent = run(gateway)
    sent.add(b"a", b"b")
    sent.flush()
    sent.add(b"c")
    sent.flush()
    (requests,) = gateway.requests
    assert requests[0].begin == pb.PublishStreamRequest.Begin(name="the test", per_message=True)
    assert gateway.bodies(0) == sent.stored == [b"a", b"b", b"c"]
    assert sent.histories() == dict.fromkeys([b"a", b"b", b"c"], (1, 0))


def test_what_a_gateway_that_dies_has_not_answered_goes_to_the_next_one_and_counts_as_that(run):
    first, second = Publishing([stored(1), NOTHING, DEAD]), Publishing()
    _, sent = run(first, second)
    sent.add(b"a", b"b", b"c")
    sent.flush()
    assert second.bodies(0) == [b"b", b"c"]
    assert sent.stored == [b"a", b"b", b"c"]
    assert sent.histories() == {b"a": (1, 0), b"b": (2, 1), b"c": (2, 1)}


def test_without_retry_ambiguous_it_fails_instead(run):
    _, sent = run(Publishing([DEAD]), retry_ambiguous=False)
    sent.add(b"a")
    sent.flush()
    error = sent.error(b"a")
    assert (error.condition, error.may_be_stored) == ("TUBEMQ_SEND_FAILED.AMBIGUOUS", True)
    assert "UNAVAILABLE: it died" in str(error)


@pytest.mark.parametrize(("end", "repeats"), [(DRAINING, 0), (FORGOTTEN, 1)])
def test_what_a_gateway_has_not_taken_is_no_repeat(run, end, repeats):
    """One that is about to stop says so; one that has forgotten the session may have stored it."""
    first, second = Publishing([end]), Publishing()
    _, sent = run(first, second, retry_ambiguous=bool(repeats))
    sent.add(b"a")
    sent.flush()
    assert sent.histories() == {b"a": (1 + repeats, repeats)}
    assert second.bodies(0) == [b"a"]


def test_a_gateway_that_is_about_to_stop_gets_no_more_and_is_heard_to_the_end(run):
    over = threading.Event()

    def late():
        over.wait(20)
        yield stored(2)

    first, second = Publishing([stored(1, draining=True), late()]), Publishing()
    _, sent = run(first, second)
    sent.add(b"a", b"b")
    wait_until(lambda: sent.stored)
    sent.add(b"c")
    assert second.requests == [], "the first one is still to answer"
    over.set()
    sent.flush()
    assert (first.bodies(0), second.bodies(0)) == ([b"a", b"b"], [b"c"])
    assert sent.histories() == dict.fromkeys([b"a", b"b", b"c"], (1, 0))


def test_the_only_gateway_is_not_left_when_it_is_about_to_stop(run):
    gateway = Publishing([stored(1, draining=True)])
    _, sent = run(gateway)
    sent.add(b"a")
    sent.flush()
    sent.add(b"b")
    sent.flush()
    assert gateway.bodies(0) == [b"a", b"b"]


def test_a_session_that_a_gateway_does_not_know_is_opened_and_the_stream_begun_again(run):
    gateway = Publishing()
    calls = itertools.count()

    def forget_once(requests):
        if next(calls) == 0:
            raise FORGOTTEN
        yield from gateway(requests)

    (running,), sent = run(forget_once)
    sent.add(b"a")
    sent.flush()
    assert running.calls == ["OpenSession", "CheckTopic", "PublishStream", "OpenSession", "PublishStream"]
    assert gateway.bodies(0) == [b"a"]
    assert sent.histories() == {b"a": (1, 0)}


def test_a_long_batch_travels_in_pieces_and_the_next_one_whole(run, monkeypatch):
    monkeypatch.setattr(publish_window, "PART_BYTES", 100)
    gateway = Publishing([NOTHING] * 5)
    _, sent = run(gateway)
    sent.add(b"x" * 350, b"y" * 100)
    wait_until(lambda: gateway.has(2))
    *pieces, whole = gateway.requests[0][1:]
    data = b"".join(piece.part.data for piece in pieces)
    assert pb.MessageBatch.FromString(data) == sends.to_proto(SendBatch.of("demo", [b"x" * 350]))
    assert {piece.part.size for piece in pieces} == {len(data)}
    assert {len(piece.part.data) for piece in pieces[:-1]} == {100}
    assert {piece.number for piece in pieces} == {1}
    assert sends.from_proto(whole.batch).values.value(0) == b"y" * 100


def test_what_no_gateway_takes_in_time_is_surely_not_stored(run):
    (running,), sent = run(Publishing(), delivery_timeout_ms=200)
    loop.run(sent.pipeline.place("demo", None))
    running.close()
    sent.add(b"a")
    sent.flush()
    error = sent.error(b"a")
    assert (error.condition, error.may_be_stored) == ("TUBEMQ_SEND_FAILED", False)
    assert "UNAVAILABLE" in str(error)


def test_a_gateway_that_does_not_take_a_stream_in_time_is_left(run):
    over = threading.Event()

    def hang(_):
        over.wait(20)
        yield pb.PublishStreamResponse()

    _, sent = run(hang, Publishing(), delivery_timeout_ms=200)
    sent.add(b"a")
    sent.flush()
    sent.add(b"b")
    sent.flush()
    over.set()
    assert (sent.error(b"a").may_be_stored, sent.stored) == (False, [b"b"])


def test_a_gateway_that_has_a_batch_is_given_a_moment_more_and_then_it_may_be_stored(run, monkeypatch):
    monkeypatch.setattr(publish_window, "_GRACE_S", 0.2)
    (running,), sent = run(Publishing([NOTHING]), delivery_timeout_ms=200)
    sent.add(b"a")
    sent.flush()
    sent.add(b"b")
    sent.flush()
    error = sent.error(b"a")
    assert error.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS"
    assert f"the gateway {running.address} did not answer in time" in str(error)
    assert sent.stored == [b"b"]


def test_an_error_that_concerns_all_ends_the_pipeline_and_what_is_under_way_is_abandoned(run):
    _, sent = run(
        Publishing([NOTHING, GatewayError("TUBEMQ_GATEWAY_FAILED", cause="a mistake")]), Publishing()
    )
    sent.add(b"a", b"b")
    with pytest.raises(GatewayError, match="a mistake") as first:
        sent.flush()
    with pytest.raises(GatewayError) as again:
        sent.add(b"c")
    assert again.value is first.value
    abandoned = {body: sent.error(body).condition for body in (b"a", b"b")}
    assert abandoned == dict.fromkeys((b"a", b"b"), "TUBEMQ_MESSAGE_ABANDONED")
    assert sent.pipeline.unacknowledged == 2


def test_a_pipeline_that_is_closed_ends_its_call_at_once_and_abandons_what_is_under_way(run):
    gateway = Publishing([NOTHING, NOTHING])
    _, sent = run(gateway)
    sent.add(b"a")
    wait_until(lambda: gateway.has(1))
    loop.run(sent.pipeline.close())
    assert gateway.ended.wait(20)
    assert "the producer was closed" in str(sent.error(b"a"))
    with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_CLOSED"):
        sent.add(b"b")


def test_what_is_given_up_fails_and_the_rest_goes_on(run):
    gateway = Publishing([NOTHING])
    _, sent = run(gateway)
    sent.add(b"a", b"b")
    wait_until(lambda: sent.stored)
    loop.call_soon(sent.pipeline.give_up, sent.batches[b"a"])
    sent.flush()
    assert sent.error(b"a").may_be_stored
    assert sent.stored == [b"b"]
