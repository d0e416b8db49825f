"""Producers that serve one task after the other: who has them, what a task sees of others, how they end."""

import contextlib
import dataclasses
import logging
import re
import threading

import pytest

from testkit.children import in_child
from testkit.message_sender import single
from tests.client.scripted_cluster import OVERFLOW, scripted_cluster, then_store
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.kept_producers import KeptProducers, process_producers
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.cluster.transport_cluster import TransportCluster
from tubemq_spark.errors import ProduceError
from tubemq_spark.protocol.constants import Method


@pytest.fixture
def cluster():
    with scripted_cluster() as made:
        yield made


@pytest.fixture
def kept(cluster):
    with contextlib.closing(KeptOf(cluster)) as made:
        yield made


class KeptOf(KeptProducers):
    """The kept producers of a scripted cluster."""

    def __init__(self, cluster, **more):
        super().__init__(cluster.connections, **more)
        self.config = ClientConfig((cluster.master.server.endpoint,), "test", rpc_timeout_ms=2_000)

    def close(self):
        self.close_idle()

    def task(self, *values, name="", **settings):
        """Send messages as a task does; return its producer, its receipts, and how often it sent again."""
        with self.sender(dataclasses.replace(self.config, **settings), name) as sender:
            for value in values:
                sender.send_batch(single("demo", value))
            sender.flush()
            return sender, sender.receipts(), sender.retried


def fail_after_sending(kept, used, error):
    with kept.sender(kept.config) as sender:
        used.append(sender)
        sender.send_batch(single("demo", b"a"))
        sender.flush()
        raise error


def test_the_next_task_needs_neither_registration_nor_connection(cluster, kept):
    first, *_ = kept.task(b"a")
    second, *_ = kept.task(b"b")
    assert second is first
    assert cluster.stored() == [b"a", b"b"]
    assert cluster.master.seen.count(Method.PRODUCER_REGISTER) == 1
    assert cluster.master.seen.count(Method.PRODUCER_CLOSE) == 0
    assert len(cluster.broker.server.accepted) == 1


def test_tasks_of_one_process_share_producers_through_their_cluster(cluster):
    config = ClusterConfig(ClientConfig((cluster.master.server.endpoint,), "test")).validate()
    for value in (b"a", b"b"):
        with open_cluster(config).sender("a task") as sender:
            sender.send_batch(single("demo", value))
    assert len(process_producers()) == 1
    process_producers().close_idle()
    assert cluster.stored() == [b"a", b"b"]
    assert cluster.master.producers == set()
    assert len(cluster.broker.server.accepted) == 1


def test_a_cluster_without_kept_producers_closes_its_own(cluster, kept):
    with TransportCluster(DirectTransport(kept.config, cluster.connections)).sender() as sender:
        sender.send_batch(single("demo", b"a"))
    assert cluster.master.producers == set()


def test_receipts_and_counts_are_those_of_the_task_alone(cluster, kept):
    cluster.broker.script = then_store(OVERFLOW, OVERFLOW)
    _, receipts, retried = kept.task(b"a", b"b")
    assert (sum(one.count for one in receipts), retried) == (2, 2)
    _, receipts, retried = kept.task(b"c")
    (receipt,) = receipts
    assert (receipt.count, receipt.first_offset, receipt.retried, retried) == (1, 28 * 2, 0, 0)
    _, receipts, _ = kept.task()
    assert receipts == []


def test_each_task_has_its_own_line_in_the_log_and_its_own_numbers(kept, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.client.producer.log")
    kept.task(b"a", b"b", name="task 1")
    kept.task(b"c", name="task 2")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    numbers = r"waited [\d.]+ s for room; slowest broker 1 \(127.*\): mean .*; took [\d.]+ s"
    assert re.fullmatch(
        rf"task 1: 2 messages \(2 bytes\) to 1 partition; 2 requests, 0 of them retries; {numbers}", told[0]
    )
    assert re.fullmatch(
        rf"task 2: 1 message \(1 byte\) to 1 partition; 1 request, 0 of them retries; {numbers}", told[1]
    )
    with pytest.raises(ProduceError, match="message 1 of task 3"):
        kept.task(b"x" * (1 << 21), name="task 3")


def test_tasks_at_the_same_time_have_producers_of_their_own(kept):
    with kept.sender(kept.config) as one, kept.sender(kept.config) as other:
        assert one is not other
    assert len(kept) == 2


def test_other_settings_need_another_producer(kept):
    first, *_ = kept.task(b"a")
    second, *_ = kept.task(b"b", max_in_flight=7)
    assert second is not first


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_a_task_that_fails_closes_its_producer(cluster, kept, error):
    used = []
    with pytest.raises(error):
        fail_after_sending(kept, used, error)
    assert len(kept) == 0
    assert cluster.master.producers == set()
    with pytest.raises(ProduceError, match="closed"):
        used[0].send_batch(single("demo", b"b"))


def test_a_task_whose_messages_are_refused_closes_its_producer(cluster, kept):
    cluster.broker.script = lambda *_: OVERFLOW
    with pytest.raises(ProduceError):
        kept.task(b"a", delivery_timeout_ms=100)
    assert len(kept) == 0
    assert cluster.master.producers == set()


def test_messages_that_a_task_did_not_flush_are_flushed_at_its_end(cluster, kept):
    with kept.sender(kept.config) as sender:
        sender.send_batch(single("demo", b"a"))
    assert cluster.stored() == [b"a"]
    assert sender.unacknowledged == 0


def test_a_lost_connection_is_opened_again_and_no_message_is_sent_twice(cluster, kept, caplog):
    kept.task(b"a")
    cluster.broker.server.drop_connections()
    _, (receipt,), retried = kept.task(b"b")
    assert (receipt.retried, receipt.unanswered, retried) == (0, 0, 0)
    assert cluster.stored() == [b"a", b"b"]
    assert len(cluster.broker.server.accepted) == 2
    assert caplog.records == []


def test_an_idle_producer_is_closed_after_a_while(cluster):
    kept = KeptOf(cluster, idle_ms=50)
    producer, *_ = kept.task(b"a")
    wait_until(lambda: not cluster.master.producers)
    assert len(kept) == 0
    with pytest.raises(ProduceError, match="closed"):
        producer.send_batch(single("demo", b"b"))


def test_a_producer_in_use_is_not_closed_for_having_been_idle(cluster):
    with contextlib.closing(KeptOf(cluster, idle_ms=1_000)) as kept:
        first, *_ = kept.task(b"a")
        with kept.sender(kept.config) as sender:
            assert sender is first
            assert not threading.Event().wait(1.2)
            sender.send_batch(single("demo", b"b"))
        assert cluster.stored() == [b"a", b"b"]


def test_closing_idle_producers_unregisters_them_at_the_master(cluster, kept):
    kept.task(b"a")
    kept.close_idle()
    kept.close_idle()
    assert cluster.master.producers == set()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_no_producers_and_leaves_those_of_its_parent(cluster, kept):
    first, *_ = kept.task(b"a")

    def check():
        assert len(kept) == 0
        assert first.unacknowledged == 0
        kept.close_idle()

    in_child(check)
    second, _, retried = kept.task(b"b")
    assert (second is first, retried) == (True, 0)
    assert cluster.stored() == [b"a", b"b"]
    assert len(cluster.broker.server.accepted) == 1
