"""A message's future is one of the standard library's; only who waits makes it cost what those cost.

The outcomes of a batch: each message ends once, and its columns, its receipts and its futures agree.
"""

import concurrent.futures
import subprocess
import sys
import threading
import zlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.client.virtual_brokers import batch_of
from tubemq_spark.client.producer import futures
from tubemq_spark.client.producer.futures import BatchOutcome, SendFuture, SendResult, SharedByFutures, follow
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.send_connection import Details
from tubemq_spark.receipts import CHECKSUM_MODULUS, Receipt

RESULT = SendResult(TopicPartition("demo", 1, 0), 28, 1, 2, 1, 0)
ERROR = ProduceError("TUBEMQ_FLUSH_TIMEOUT", unacknowledged=1, seconds=1)
SECONDS = 60


def new_future(callback=None):
    return SendFuture(SharedByFutures(), callback)


def tell(future, result, error):
    """Give a future a batch of its own, whose message ends."""
    outcome = BatchOutcome(1, lambda _: None)
    follow(outcome, [future], lambda call: call())
    end(outcome, result, error)


def end(outcome, result, error):
    if error is not None:
        outcome.failed(0, error)
    else:
        offsets = np.array([result.offset])
        details = Details(np.array([result.message_id]), np.array([result.append_time_ms]))
        outcome.stored((0,), (result.partition,), offsets, details, result.attempts, result.unanswered)


@pytest.mark.parametrize("outcome", [(RESULT, None), (None, ERROR)])
def test_a_future_that_is_not_waited_for_makes_nothing_for_that(outcome):
    future = new_future()
    tell(future, *outcome)
    assert not future._for_waits


def test_the_standard_library_knows_no_other_parts_of_a_future():
    known = {"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"}
    assert vars(concurrent.futures.Future()).keys() == known


def test_a_future_has_no_other_attributes():
    with pytest.raises(AttributeError, match="'SendFuture' object has no attribute '_other'"):
        _ = new_future()._other


def test_a_future_is_asked_in_all_ways():
    future, failed = new_future(), new_future()
    called = []
    future.add_done_callback(called.append)
    assert not future.done()
    assert future.running()
    assert not future.cancel()
    tell(future, RESULT, None)
    tell(failed, None, ERROR)
    future.add_done_callback(called.append)
    assert called == [future, future]
    assert future.result() == RESULT
    assert future.exception() is None
    assert failed.exception() is ERROR
    assert "finished" in repr(future)
    assert set(concurrent.futures.as_completed([future, failed])) == {future, failed}


class Condition(threading.Condition):
    """Tells when a thread waits for it."""

    def __init__(self):
        super().__init__()
        self.waited_for = threading.Event()

    def wait(self, timeout=None):
        self.waited_for.set()
        return super().wait(timeout)


@pytest.mark.parametrize(("way", "outcome"), [("result", (RESULT, None)), ("exception", (None, ERROR))])
def test_who_sleeps_is_woken(way, outcome):
    future = new_future()
    condition = future._for_waits["_condition"] = Condition()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(getattr(future, way), 2 * SECONDS)
        assert condition.waited_for.wait(SECONDS)
        tell(future, *outcome)
        assert waiting.result(SECONDS) in outcome


class Waiters(list):
    """Those who wait for one future among others; tells when there is one."""

    def __init__(self):
        super().__init__()
        self.there = threading.Event()

    def append(self, waiter):
        super().append(waiter)
        self.there.set()


@pytest.mark.parametrize(
    ("until", "outcome"),
    [
        (concurrent.futures.FIRST_COMPLETED, (RESULT, None)),
        (concurrent.futures.FIRST_EXCEPTION, (None, ERROR)),
    ],
)
def test_who_waits_for_one_of_several_is_woken(until, outcome):
    futures = [new_future(), new_future()]
    waiters = futures[1]._for_waits["_waiters"] = Waiters()
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(concurrent.futures.wait, futures, 2 * SECONDS, until)
        assert waiters.there.wait(SECONDS)
        tell(futures[0], *outcome)
        assert waiting.result(SECONDS) == ({futures[0]}, {futures[1]})


@pytest.mark.parametrize("outcome", [(RESULT, None), (None, ERROR)])
@pytest.mark.parametrize("late", [False, True])
def test_who_has_seen_a_message_open_is_told(outcome, late):
    """Whenever another thread looks: here at the last moment before the message has ended, or has a batch."""
    called = []

    class LookedAt(SendFuture):
        def __setattr__(self, name, value):
            if name == "_batch" and not late:
                self.add_done_callback(called.append)
            super().__setattr__(name, value)

    class Errors(dict):
        def __setitem__(self, row, error):
            if late:
                future.add_done_callback(called.append)
            super().__setitem__(row, error)

    future = LookedAt(SharedByFutures())
    batch = BatchOutcome(1, lambda _: None)
    batch.errors = Errors()
    follow(batch, [future], lambda call: call())
    if late and outcome[1] is None:
        future.add_done_callback(called.append)
    end(batch, *outcome)
    assert called == [future]


def test_two_threads_that_look_get_the_same_condition(monkeypatch):
    future = new_future()
    both_make_one = threading.Barrier(2)

    def make():
        both_make_one.wait(SECONDS)
        return threading.Condition()

    monkeypatch.setattr(futures, "_FOR_WAITS", {"_condition": make})
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: future._condition, range(2))
    assert first is second


TOLD_WHILE_GARBAGE_IS_COLLECTED = """
import gc, sys, threading, time
import numpy as np
from tubemq_spark.client.producer.futures import SendFuture, SharedByFutures, follow
from tubemq_spark.client.producer.futures import BatchOutcome

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)  # another thread has its turn

def tell():
    begin.wait()
    follow(outcome, futures, lambda call: call())
    for row in range(len(futures)):
        Garbage()
        outcome.stored((row,), ("partition",), np.array([row]), None, 1, 0)

sys.setswitchinterval(1e-6)
gc.set_threshold(5)
shared = SharedByFutures()
for _ in range(200):
    dicts = [{} for _ in range(90)]  # none is left that Python keeps for new ones
    futures = [SendFuture(shared) for _ in range(20)]
    outcome = BatchOutcome(len(futures), lambda _: None)
    begin = threading.Barrier(2)
    thread = threading.Thread(target=tell)
    thread.start()
    begin.wait()
    for row, future in enumerate(futures):
        Garbage()
        assert future.result(60).offset == row
    thread.join()
"""


def test_a_thread_may_look_while_another_tells_and_garbage_is_collected():
    command = [sys.executable, "-X", "faulthandler", "-c", TOLD_WHILE_GARBAGE_IS_COLLECTED]
    run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stderr


FATES = ["stored", "again", "failed", "refused", "open"]
PARTITIONS = [TopicPartition("demo", broker, 0) for broker in (1, 2, 3)]


def error_of(row):
    return ProduceError("TUBEMQ_TOPIC_NAME", topic=row)


def store(outcome, rows, partitions, details, attempts=1, unanswered=0):
    offsets = np.array([28 * row for row in rows], np.int64)
    stored_details = Details(np.array(rows) + 1_000, np.array(rows) + 2_000) if details else None
    outcome.stored(rows, partitions, offsets, stored_details, attempts, unanswered)


@given(
    fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=20),
    details=st.booleans(),
    data=st.data(),
)
def test_columns_receipts_and_futures_agree(fates, details, data):
    batch = batch_of([b"x" * (row + 1) for row in range(len(fates))])
    places = [data.draw(st.sampled_from(PARTITIONS)) for _ in fates]
    rows = {fate: [row for row, each in enumerate(fates) if each == fate] for fate in set(fates)}
    refused = {row: error_of(row) for row in rows.get("refused", [])}
    ends, called = [], []
    outcome = BatchOutcome(len(fates), ends.append, refused)
    futures = [SendFuture(SharedByFutures()) for _ in fates]
    asked = data.draw(st.sets(st.sampled_from(range(len(fates)))))
    follow(outcome, futures, lambda call: call())
    for row in asked - refused.keys():
        futures[row].add_done_callback(called.append)
    if at_once := rows.get("stored"):
        store(outcome, at_once, [places[row] for row in at_once], details)
    for row in rows.get("again", []):
        store(outcome, (row,), (places[row],), details, 3, 2)
    for row in rows.get("failed", []):
        outcome.failed(row, error_of(row))
    left = rows.get("open", [])
    assert outcome.left == len(left)
    assert [row for row in range(len(fates)) if not outcome.has_ended(row)] == left
    outcome.abandon(error_of)
    assert ends == [outcome] * (set(fates) != {"refused"})
    assert sorted(map(futures.index, called)) == sorted(asked - refused.keys())

    columns = outcome.columns()
    for row, fate in enumerate(fates):
        assert futures[row].done()
        if fate not in ("stored", "again"):
            assert columns.places[row] == -1
            assert futures[row].exception().parameters["topic"] == row
            continue
        assert columns.partitions[columns.places[row]] == places[row]
        sent = (3, 2) if fate == "again" else (1, 0)
        stored_details = (1_000 + row, 2_000 + row) if details else (None, None)
        assert futures[row].result() == SendResult(places[row], 28 * row, *stored_details, *sent)
    stored = rows.get("stored", []) + rows.get("again", [])
    receipts = outcome.receipts(batch)
    for receipt in receipts:
        its = [row for row in stored if places[row] == receipt.partition]
        again = [row for row in its if fates[row] == "again"]
        assert receipt == Receipt(
            receipt.partition,
            len(its),
            28 * min(its),
            28 * max(its),
            len(again),
            2 * len(again),
            sum(row + 1 for row in its),
            sum(zlib.crc32(b"x" * (row + 1)) for row in its) % CHECKSUM_MODULUS,
        )
    assert sum(receipt.count for receipt in receipts) == len(stored)


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_is_refused_from_the_start_has_ended(count):
    ends = []
    outcome = BatchOutcome(count, ends.append, {0: error_of(0)})
    outcome.begin()
    assert ends == ([outcome] if count == 1 else [])
