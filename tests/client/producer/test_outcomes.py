"""Single messages of the send window, in virtual time: each is told of once, truly, and fails alone."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.client.producer.test_window import FATES, GOOD, LOST, OVERFLOW, run
from tests.client.virtual_brokers import Fate, batch_of
from tubemq_spark.client.producer.outcomes import Outcomes
from tubemq_spark.client.producer.runs import runs
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition

REFUSED = Fate(stored=False, code=400)
TWICE_SURE = Fate(stored=False, code=503)


class Told:
    """What was told of messages, by their values."""

    def __init__(self):
        self.results = {}
        self.errors = {}
        self.ended = []

    def teller(self, value):
        def tell(result, error):
            assert value not in self.results
            assert value not in self.errors
            if error is None:
                self.results[value] = result
            else:
                assert result is None
                self.errors[value] = error

        return tell


def submit(net, window, told, values, asked):
    """Hand a batch to the window, whose outcomes are asked for where a mark says so."""
    batch = batch_of(values)
    tells = [told.teller(value) if mark else None for value, mark in zip(values, asked, strict=True)]
    batch.outcomes = Outcomes(tells, 1, told.ended.append)
    first = 0
    while first < len(batch):
        after = first + window.room(batch.ends, first)
        window.submit(runs(batch, first, [net.choose() for _ in range(first, after)]))
        first = after
    return batch.outcomes


def send(net, window, count, asked=None):
    told = Told()
    values = [b"%d" % number for number in range(count)]
    for start in range(0, count, 10):
        some = values[start : start + 10]
        submit(net, window, told, some, asked[start : start + 10] if asked else [True] * len(some))
    window.flush()
    return told, values


def check_results(net, told):
    """Each result names a place where that message is."""
    for value, result in told.results.items():
        assert net.stored[result.offset // 28] == (result.partition, value)
        assert result.message_id == 1_000 + result.offset
        assert result.append_time_ms > 0
        assert 1 <= result.attempts == net.attempts[value]
        assert result.unanswered < result.attempts
        copies = [stored for _, stored in net.stored].count(value)
        assert copies - 1 <= result.unanswered
        assert result.may_be_repeated or copies == 1


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from([*FATES, REFUSED]), max_size=60),
    count=st.integers(1, 50),
    brokers=st.integers(1, 3),
    timeout_ms=st.sampled_from([600, 3_000, 60_000]),
    retry_ambiguous=st.booleans(),
)
def test_each_message_is_told_of_once_and_truly(fates, count, brokers, timeout_ms, retry_ambiguous):
    net, window = run(fates, brokers, 2, delivery_timeout_ms=timeout_ms, retry_ambiguous=retry_ambiguous)
    told, values = send(net, window, count)
    assert told.results.keys() | told.errors.keys() == set(values)
    assert window.unacknowledged == 0
    assert window.error is None
    assert len(told.ended) == (count + 9) // 10
    check_results(net, told)
    stored = {value for _, value in net.stored}
    for value, error in told.errors.items():
        assert isinstance(error, ProduceError)
        assert error.may_be_stored or value not in stored


@settings(deadline=None)
@given(
    fates=st.lists(st.sampled_from([*FATES, REFUSED]), max_size=40),
    asked=st.lists(st.booleans(), min_size=1, max_size=40),
)
def test_a_failure_that_nobody_asked_about_ends_the_window(fates, asked):
    net, window = run(fates, 2, 2, delivery_timeout_ms=600)
    told = Told()
    values = [b"%d" % number for number in range(len(asked))]
    with contextlib.suppress(ProduceError):
        submit(net, window, told, values, asked)
        window.flush()
    silent = {value for value, mark in zip(values, asked, strict=True) if not mark}
    if window.error is None:
        assert silent <= {value for _, value in net.stored}
    else:
        number = str(window.error).partition(" of test ")[0].rpartition("message ")[2]
        assert values[int(number) - 1] in silent
    check_results(net, told)


def test_a_stored_message_is_not_told_of_again_when_the_others_fail():
    told, ended = [], []
    outcomes = Outcomes([lambda result, error: told.append((result, error))] * 3, 10, ended.append)
    outcomes.stored([1], [TopicPartition("demo", 1, 0)], np.array([28]), None, 1, 0)
    errors = {number: ProduceError("TUBEMQ_PRODUCER_CLOSED", unacknowledged=number) for number in (10, 12)}
    outcomes.abandon(errors.__getitem__)
    stored, *failed = told
    assert stored[0].offset == 28
    assert failed == [(None, errors[10]), (None, errors[12])]
    assert ended == [outcomes]


def test_a_part_of_a_batch_keeps_the_numbers_of_its_messages():
    batch = batch_of([b"a", b"b", b"c"])
    part = batch.as_batch(1, 3)
    assert part.first_row == batch.first_row + 1


def test_messages_of_a_frozen_broker_fail_alone_when_their_time_is_over():
    net, window = run([], brokers=2, delivery_timeout_ms=5_000, rpc_timeout_ms=60_000)
    net.frozen = {1}
    told, _ = send(net, window, 200)
    assert told.errors
    assert len(told.errors) + len(told.results) == 200
    assert all(error.may_be_stored for error in told.errors.values())
    assert {result.partition.broker_id for result in told.results.values()} == {2}


def test_messages_that_never_left_are_surely_not_stored():
    net, window = run([], delivery_timeout_ms=5_000, rpc_timeout_ms=60_000)
    net.stuck = {1}
    told = Told()
    submit(net, window, told, [b"0"], [True])
    while not len(net.links.all[0].connection):
        window._drive(block=True)
    submit(net, window, told, [b"1", b"2"], [True, True])
    window.flush()
    assert {value: error.may_be_stored for value, error in told.errors.items()} == {
        b"0": True,
        b"1": False,
        b"2": False,
    }


def test_a_message_without_a_partition_fails_alone_when_its_time_is_over():
    net, window = run([OVERFLOW] * 2, delivery_timeout_ms=5_000)
    net.nowhere = "the master lists none"
    told, _ = send(net, window, 5)
    assert len(told.errors) == 2
    assert all("the master lists none" in str(error) for error in told.errors.values())


def test_what_may_be_stored_is_told_to_be_so():
    net, window = run([LOST, GOOD])
    told, _ = send(net, window, 1)
    assert told.results[b"0"].unanswered == 1
    assert told.results[b"0"].attempts == 2
    assert told.results[b"0"].may_be_repeated


def test_what_was_refused_before_is_sent_again_and_may_not_be_repeated():
    net, window = run([TWICE_SURE, OVERFLOW, GOOD])
    told, _ = send(net, window, 1)
    assert (told.results[b"0"].attempts, told.results[b"0"].unanswered) == (3, 0)


@pytest.mark.parametrize("raised", [ValueError("wrong"), SystemExit(1), KeyboardInterrupt()])
def test_what_is_told_may_raise_anything_and_harms_nobody(caplog, raised):
    net, window = run([])
    told = Told()

    def tell(result, error):
        raise raised

    batch = batch_of([b"0", b"1"])
    batch.outcomes = Outcomes([tell, told.teller(b"1")], 1, told.ended.append)
    window.submit(runs(batch, 0, [net.choose(), net.choose()]))
    window.flush()
    assert list(told.results) == [b"1"]
    assert told.ended == [batch.outcomes]
    (line,) = [record for record in caplog.records if "raised an error" in record.getMessage()]
    assert line.exc_info[1] is raised


def test_messages_that_are_left_are_abandoned_with_an_error_of_their_own():
    net, window = run([GOOD])
    net.frozen = {1}
    told = Told()
    outcomes = submit(net, window, told, [b"0", b"1"], [True, True])
    outcomes.abandon(lambda row: ProduceError("TUBEMQ_TOPIC_NAME", topic=row))
    assert {value: error.parameters["topic"] for value, error in told.errors.items()} == {b"0": 1, b"1": 2}
    assert told.ended == [outcomes]
    outcomes.abandon(lambda row: ProduceError("TUBEMQ_TOPIC_NAME", topic=row))
    assert told.ended == [outcomes]
