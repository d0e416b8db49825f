"""Batches on their way to scripted gateways: in order, each told of once, and truly counted."""

import contextlib
import itertools
import math
import threading
import time

import pytest

from tests.client.remote.scripted_gateway import scripted
from tests.waiting import wait_until
from tubemq_spark.client.remote import publish_window
from tubemq_spark.client.remote.publish_window import Parcel, PublishWindow
from tubemq_spark.errors import GatewayError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.send_batch import SendBatch

DRAINING = GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway="g")
FORGOTTEN = GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway="g", session="s")
DEAD = RuntimeError("it died")


class Publishing:
    """One gateway's ``PublishStream``: for each stream, what is done with its batches, one after the other.

    That is an answer, several or none, or an error that ends the stream. Batches behind these are answered
    with nothing but their numbers.
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
                    deed = next(deeds, pb.PublishStreamResponse(number=request.number))
                if isinstance(deed, Exception):
                    raise deed
                yield from [deed] if isinstance(deed, pb.PublishStreamResponse) else deed
        finally:
            self.ended.set()

    def bodies(self, stream):
        """Return the batches of a stream, each as its first body."""
        return [sends.from_proto(request.batch).values.value(0) for request in self.requests[stream][1:]]


class Sent:
    """A window, and what it has told of each parcel."""

    def __init__(self, gateways, **how):
        self.answers, self.failures = [], []
        self.window = PublishWindow(gateways, "the test", self._answered, self._failed, **how)
        self.parcels = {}

    def _answered(self, parcel, answer):
        self.answers.append((parcel.batch.values.value(0), answer.number))

    def _failed(self, parcel, cause, may_be_stored):
        self.failures.append((parcel.batch.values.value(0), cause, may_be_stored))

    def add(self, *bodies, due_s=60.0):
        for body in bodies:
            parcel = self.parcels[body] = Parcel(SendBatch.of("demo", [body]), time.monotonic() + due_s)
            self.window.add(parcel)
        self.window.work()

    def flush(self):
        while self.window.messages:
            self.window.wait(math.inf)
        assert self.window.bytes == 0

    def counts(self):
        """How often each parcel was sent, and how often without an answer."""
        return {body: (parcel.attempts, parcel.unanswered) for body, parcel in self.parcels.items()}


@pytest.fixture
def run(request):
    """Returns the gateways' publishing, and a window before them."""
    with contextlib.ExitStack() as closing:

        def begin(*gateways, per_message=False, **settings):
            scripts = [{"PublishStream": gateway} for gateway in gateways]
            running, reached = closing.enter_context(scripted(*scripts, **settings))
            sent = Sent(reached, per_message=per_message)
            closing.callback(sent.window.close)
            return running, sent

        yield begin


def test_a_batch_travels_once_behind_what_begins_the_stream(run):
    gateway = Publishing()
    _, sent = run(gateway, per_message=True)
    sent.add(b"a", b"b")
    assert (sent.window.messages, sent.window.bytes) == (2, 2)
    sent.flush()
    sent.add(b"c")
    sent.flush()
    (requests,) = gateway.requests
    assert requests[0].begin == pb.PublishStreamRequest.Begin(name="the test", per_message=True)
    assert gateway.bodies(0) == [b"a", b"b", b"c"]
    assert sent.answers == [(b"a", 1), (b"b", 2), (b"c", 3)]
    assert sent.counts() == dict.fromkeys([b"a", b"b", b"c"], (1, 0))


def test_what_a_gateway_that_dies_has_not_answered_goes_to_the_next_one_and_counts_as_that(run):
    first, second = Publishing([pb.PublishStreamResponse(number=1), [], DEAD]), Publishing()
    _, sent = run(first, second)
    sent.add(b"a", b"b", b"c")
    sent.flush()
    assert second.bodies(0) == [b"b", b"c"]
    assert [body for body, _ in sent.answers] == [b"a", b"b", b"c"]
    assert sent.counts() == {b"a": (1, 0), b"b": (2, 1), b"c": (2, 1)}


def test_without_retry_ambiguous_it_fails_instead(run):
    _, sent = run(Publishing([DEAD]), retry_ambiguous=False)
    sent.add(b"a")
    sent.flush()
    assert sent.failures == [(b"a", "UNAVAILABLE: it died", True)]


@pytest.mark.parametrize(("end", "repeats"), [(DRAINING, 0), (FORGOTTEN, 1)])
def test_what_a_gateway_has_not_taken_is_no_repeat(run, end, repeats):
    """One that is about to stop says so; one that has forgotten the session may have stored it."""
    first, second = Publishing([end]), Publishing()
    _, sent = run(first, second, retry_ambiguous=bool(repeats))
    sent.add(b"a")
    sent.flush()
    assert sent.counts() == {b"a": (1 + repeats, repeats)}
    assert second.bodies(0) == [b"a"]


def test_a_gateway_that_is_about_to_stop_gets_no_more_and_is_heard_to_the_end(run):
    over = threading.Event()

    def late():
        over.wait(20)
        yield pb.PublishStreamResponse(number=2)

    first, second = Publishing([pb.PublishStreamResponse(number=1, draining=True), late()]), Publishing()
    _, sent = run(first, second)
    sent.add(b"a", b"b")
    while not sent.answers:
        sent.window.wait(math.inf)
    sent.add(b"c")
    assert second.requests == [], "the first one is still to answer"
    over.set()
    sent.flush()
    assert (first.bodies(0), second.bodies(0)) == ([b"a", b"b"], [b"c"])
    assert sent.counts() == dict.fromkeys([b"a", b"b", b"c"], (1, 0))


def test_the_only_gateway_is_not_left_when_it_is_about_to_stop(run):
    gateway = Publishing([pb.PublishStreamResponse(number=1, draining=True)])
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
    assert running.calls == ["OpenSession", "PublishStream"] * 2
    assert gateway.bodies(0) == [b"a"]
    assert sent.counts() == {b"a": (1, 0)}


def test_a_long_batch_travels_in_pieces_and_the_next_one_whole(run, monkeypatch):
    monkeypatch.setattr(publish_window, "PART_BYTES", 100)
    gateway = Publishing([[]] * 5)
    _, sent = run(gateway)
    sent.add(b"x" * 350, b"y" * 100)
    wait_until(lambda: gateway.requests and gateway.requests[0][-1].number == 2)
    *pieces, whole = gateway.requests[0][1:]
    data = b"".join(piece.part.data for piece in pieces)
    assert pb.MessageBatch.FromString(data) == sends.to_proto(sent.parcels[b"x" * 350].batch)
    assert {piece.part.size for piece in pieces} == {len(data)}
    assert {len(piece.part.data) for piece in pieces[:-1]} == {100}
    assert {piece.number for piece in pieces} == {1}
    assert sends.from_proto(whole.batch).values.value(0) == b"y" * 100


def test_what_no_gateway_takes_in_time_is_surely_not_stored(run):
    (running,), sent = run(Publishing())
    running.close()
    sent.add(b"a")
    assert sent.failures == []
    sent.parcels[b"a"].due_at = time.monotonic()
    sent.flush()
    ((body, cause, may_be_stored),) = sent.failures
    assert (body, may_be_stored) == (b"a", False)
    assert "UNAVAILABLE" in cause


def test_a_gateway_that_has_a_batch_is_given_a_moment_more_and_then_it_may_be_stored(run):
    (running,), sent = run(Publishing([[], [], []]))
    sent.add(b"a", b"b", due_s=60)
    sent.parcels[b"a"].due_at = time.monotonic() - 10
    sent.parcels[b"b"].due_at = time.monotonic() - 1
    sent.window.work()
    cause = f"the gateway {running.address} did not answer in time"
    assert sent.failures == [(b"a", cause, True)]
    assert sent.window.messages == 1


def test_an_error_that_concerns_all_is_raised_and_they_are_not_told_of(run):
    _, sent = run(Publishing([GatewayError("TUBEMQ_GATEWAY_FAILED", cause="a mistake")]), Publishing())
    sent.add(b"a", b"b")
    with pytest.raises(GatewayError, match="a mistake"):
        sent.flush()
    assert (sent.answers, sent.failures, sent.window.messages) == ([], [], 2)


def test_a_window_that_is_closed_ends_its_call_at_once(run):
    gateway = Publishing([[], []])
    _, sent = run(gateway)
    sent.add(b"a")
    wait_until(lambda: gateway.requests and len(gateway.requests[0]) == 2)
    sent.window.close()
    assert gateway.ended.wait(20)
