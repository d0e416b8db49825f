"""Producers in forked children, in other threads, and at the end of a process."""

import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading

import pytest

from testkit.children import forks, in_child
from tests.client.producer.test_send_batch import batch_of
from tests.client.scripted_cluster import SILENT, STORE, scripted_cluster
from tests.waiting import wait_until
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import ProduceError

SECONDS = 20


@pytest.fixture
def cluster():
    with scripted_cluster(2, demo="1:1:1,2:1:1#") as made:
        yield made


def assert_refused(condition, *calls):
    for call in calls:
        with pytest.raises(ProduceError) as refused:
            call()
        assert refused.value.condition == condition


@forks
def test_a_child_cannot_use_a_producer_and_leaves_it_alone(cluster):
    with cluster.sender() as producer:
        producer.send("demo", b"before", partition=(1, 0))

        def check():
            assert_refused(
                "TUBEMQ_PRODUCER_FORKED",
                lambda: producer.send("demo", b"in the child"),
                lambda: producer.send_batch(batch_of([b"in the child"])),
                producer.flush,
            )
            producer.close()

        in_child(check)
        producer.send("demo", b"after", partition=(1, 0))
    assert cluster.stored() == [b"before", b"after"]
    assert len(cluster.broker.server.accepted) == 1


@forks
def test_a_child_cannot_use_a_threaded_producer_and_leaves_it_alone(cluster):
    released = threading.Event()
    told_in = []
    with cluster.producer() as producer:
        done = producer.send("demo", b"before", partition=(1, 0))
        done.result(SECONDS)
        cluster.broker.script = lambda *_: STORE if released.wait(SECONDS) else SILENT
        pending = producer.send("demo", b"pending", partition=(1, 0))
        producer.send("demo", b"pending", partition=(1, 0), callback=lambda *_: told_in.append(os.getpid()))

        def check():
            assert_refused(
                "TUBEMQ_PRODUCER_FORKED",
                lambda: producer.send("demo", b"in the child"),
                lambda: producer.send("demo", b"in the child"),
                producer.flush,
                pending.result,
                pending.exception,
            )
            assert done.result(0).offset == 0
            producer.close()
            assert told_in == []

        in_child(check)
        released.set()
        assert pending.result(SECONDS).attempts == 1
    assert told_in == [os.getpid()]
    assert cluster.stored() == [b"before", b"pending", b"pending"]
    assert len(cluster.broker.server.accepted) == 1


@forks
def test_a_child_that_is_forked_while_threads_send_can_still_close(cluster):
    stop = threading.Event()

    def send():
        while not stop.is_set():
            producer.send("demo", b"x", callback=lambda *_: None)

    with (
        cluster.producer(max_in_flight=4) as producer,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        sending = [pool.submit(send) for _ in range(2)]
        wait_until(lambda: len(cluster.stored()) > 50)
        try:
            for _ in range(10):
                in_child(producer.close)
        finally:
            stop.set()
        for future in sending:
            future.result(SECONDS)
    assert sum(receipt.count for receipt in producer.receipts()) == len(cluster.stored())


def test_another_thread_is_refused_and_does_no_harm(cluster):
    with cluster.sender() as producer, concurrent.futures.ThreadPoolExecutor(1, "other") as pool:
        producer.send("demo", b"mine")
        for use in (
            lambda: producer.send("demo", b"theirs"),
            lambda: producer.send_batch(batch_of([b"theirs"])),
            producer.flush,
        ):
            with pytest.raises(ProduceError, match="thread 'MainThread', but 'other_0'") as refused:
                pool.submit(use).result(SECONDS)
            assert refused.value.condition == "TUBEMQ_PRODUCER_THREAD"
        producer.send("demo", b"mine")
    assert cluster.stored() == [b"mine", b"mine"]


def test_a_producer_belongs_to_the_thread_that_first_uses_it(cluster):
    producer = cluster.sender()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(producer.send, "demo", b"x").result(SECONDS)
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_THREAD"):
            producer.send("demo", b"x")
        pool.submit(producer.flush).result(SECONDS)
    producer.close()
    assert cluster.stored() == [b"x"]


def test_a_producer_that_was_paused_may_go_to_another_thread(cluster):
    with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.closing(cluster.sender()) as producer:
        producer.send("demo", b"here")
        producer.flush()
        producer.pause()
        pool.submit(producer.resume, "next").result(SECONDS)
        pool.submit(producer.send, "demo", b"there").result(SECONDS)
        with pytest.raises(ProduceError, match="TUBEMQ_PRODUCER_THREAD"):
            producer.flush()
        pool.submit(producer.flush).result(SECONDS)
    assert sorted(cluster.stored()) == [b"here", b"there"]


PROGRAM = """
import logging, sys
from tubemq_spark.client import ClientConfig, TubeMQClient
from tubemq_spark.model import Endpoint
logging.basicConfig()
config = ClientConfig((Endpoint.parse(sys.argv[1]),), "test", linger_ms=600_000)
producer = TubeMQClient(config).producer("forgetful")
producer.send("demo", b"x", callback=lambda result, error: print(error.condition))
"""


@pytest.mark.process
def test_a_process_that_does_not_close_its_producer_ends_and_says_what_is_lost():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=2) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.master],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "TUBEMQ_MESSAGE_ABANDONED\n"
        assert "forgetful closed with 1 messages not acknowledged" in done.stderr
        assert server.stats().messages_in == 0
