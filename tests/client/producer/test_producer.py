"""The producer over real sockets: what it accepts, where it sends, what it reports, what it leaves."""

import logging
import pickle
import time

import pytest

from tests.client.scripted_cluster import (
    OVERFLOW,
    SILENT,
    VISIT_TOKEN,
    scripted_cluster,
)
from tubemq_spark.errors import ProduceError, TubeMQConnectionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.payload import decode_payload
from tubemq_spark.receipts import Receipt

MIB = 1 << 20


def send_for(seconds, producer):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        producer.send("demo", b"x")
        producer.flush()


def fail_after_sending(producer):
    with producer:
        producer.send("demo", b"x")
        raise ZeroDivisionError


def test_receipts_say_where_messages_landed(cluster):
    with cluster.sender() as producer:
        for number in range(30):
            producer.send("demo", b"x", partition=(1, number % 2))
        producer.flush()
        assert producer.receipts() == [
            Receipt(TopicPartition("demo", 1, 0), 15, 0, 28 * 28, bytes=15),
            Receipt(TopicPartition("demo", 1, 1), 15, 28, 28 * 29, bytes=15),
        ]
        assert pickle.loads(pickle.dumps(producer.receipts())) == producer.receipts()


def test_what_travels_is_what_was_given(cluster):
    with cluster.sender() as producer:
        producer.send("demo", b"body", attributes={"k": "v"}, message_type="typ", message_time="202401020304")
        producer.send("demo", b"plain")
    first, second = cluster.broker.requests
    decoded = decode_payload(first.data, first.flag)
    assert decoded.value == b"body"
    assert decoded.attributes == {"$msgType$": "typ", "$msgTime$": "202401020304", "k": "v"}
    assert (first.msgType, first.msgTime) == ("typ", "202401020304")
    assert (second.data, second.flag, second.HasField("msgType")) == (b"plain", 0, False)
    assert first.authInfo.visitAuthorizedToken == VISIT_TOKEN
    assert first.clientId == second.clientId


def test_a_new_visit_token_is_used_when_a_heartbeat_brings_it(cluster):
    with cluster.sender(heartbeat_period_ms=20) as producer:
        producer.send("demo", b"a")
        cluster.master.visit_token = 77
        until = time.monotonic() + 5
        while (
            cluster.broker.requests[-1:] == []
            or cluster.broker.requests[-1].authInfo.visitAuthorizedToken != 77
        ):
            assert time.monotonic() < until
            producer.send("demo", b"b")
            producer.flush()


@pytest.mark.parametrize("size", [1, 8_000, 8_192, 100_000, MIB])
def test_values_of_any_size_arrive_whole(cluster, size):
    values = [bytes([number]) * size for number in range(5)]
    with cluster.sender() as producer:
        for value in values:
            producer.send("demo", value, partition=(1, 0))
    assert cluster.stored() == values


def test_producers_begin_their_turns_at_different_partitions():
    with scripted_cluster(demo="1:100:1#") as cluster:
        for _ in range(6):
            with cluster.sender() as producer:
                producer.send("demo", b"x")
        assert len(cluster.broker.stored) > 1


def test_several_topics_share_one_producer():
    with scripted_cluster(a="1:1:1#", b="1:1:1#") as cluster:
        with cluster.sender() as producer:
            for number in range(10):
                producer.send("ab"[number % 2], b"%d" % number)
            producer.flush()
            assert [(receipt.partition.topic, receipt.count) for receipt in producer.receipts()] == [
                ("a", 5),
                ("b", 5),
            ]
        assert cluster.stored("a") == [b"0", b"2", b"4", b"6", b"8"]


def test_a_partition_that_does_not_exist_is_refused_and_harms_nothing(cluster):
    with cluster.sender() as producer:
        producer.send("demo", b"before")
        with pytest.raises(
            ProduceError, match=r"'demo' has no partition 1:7 .*; choose one of 1:0, 1:1, 1:2\."
        ):
            producer.send("demo", b"x", partition=(1, 7))
        producer.send("demo", b"after")
    assert sorted(cluster.stored()) == [b"after", b"before"]


def test_a_topic_that_was_refused_is_not_asked_for_again(cluster):
    with cluster.sender() as producer:
        with pytest.raises(ProduceError):
            producer.send("nowhere", b"x")
        producer.send("demo", b"x")
    assert cluster.master.asked_for == [["nowhere"], ["demo"]]


@pytest.mark.parametrize("name", ["", "__offset_history__", "t" * 65])
def test_topics_no_master_takes_are_refused_before_it_is_asked(cluster, name):
    with cluster.sender() as producer:
        with pytest.raises(ProduceError, match="a topic name"):
            producer.send(name, b"x")
        producer.send("demo", b"x")
    assert cluster.stored() == [b"x"]


def test_a_topic_that_becomes_publishable_in_time_is_used(cluster):
    asked = []

    def publish_later() -> None:
        asked.append(1)
        if len(asked) == 3:
            cluster.master.topics["late"] = "1:1:1#"

    cluster.master.deployed.add("late")
    cluster.master.on_heartbeat = publish_later
    with cluster.sender() as producer:
        producer.send("late", b"x")
    assert cluster.stored("late") == [b"x"]


@pytest.mark.parametrize(
    ("limit", "value", "attribute", "allowed"),
    [
        ("", MIB, 0, True),
        ("", MIB + 1, 0, False),
        ("2097152", 2 * MIB, 0, True),
        ("2097152", 2 * MIB + 1, 0, False),
        ("", MIB - 102, 100, True),
        ("", MIB - 101, 100, False),
        ("", MIB - 5_000, 4_998, True),
        ("", MIB - 20_000, 10_234, True),
    ],
)
def test_the_topics_limit_is_kept_to_the_byte(limit, value, attribute, allowed):
    """Java counts the attributes as text (here ``k=...``), without the four bytes of their length."""
    with scripted_cluster(demo=f"1:1:1#{limit}") as cluster, cluster.sender() as producer:
        attributes = {"k": "v" * attribute} if attribute else None
        if allowed:
            producer.send("demo", b"x" * value, attributes=attributes)
            producer.flush()
            assert len(cluster.broker.requests) == 1
        else:
            most = int(limit or MIB)
            with pytest.raises(ProduceError, match=f"of {most + 1} bytes .* above the limit of {most} bytes"):
                producer.send("demo", b"x" * value, attributes=attributes)
            assert cluster.broker.requests == []


@pytest.mark.parametrize(("count", "allowed"), [(5_119, True), (5_120, False)])
def test_long_attributes_do_not_pass_what_the_broker_allows(cluster, count, allowed):
    """Three bytes a character, one UTF-16 unit: below Java's limit, above the broker's."""
    value = b"x" * (MIB - 5_125)
    with cluster.sender() as producer:
        if allowed:
            producer.send("demo", value, attributes={"k": "\u20ac" * count})
        else:
            with pytest.raises(ProduceError, match=f"above the limit of {MIB + 10_240} bytes"):
                producer.send("demo", value, attributes={"k": "\u20ac" * count})


def test_routes_that_heartbeats_bring_are_followed(cluster):
    with cluster.sender(heartbeat_period_ms=20) as producer:
        producer.send("demo", b"x", partition=(1, 2))
        cluster.master.topics["demo"] = "1:5:1#"
        until = time.monotonic() + 5
        while time.monotonic() < until:
            producer.flush()
            try:
                producer.send("demo", b"y", partition=(1, 4))
            except ProduceError:
                producer.send("demo", b"x")
            else:
                break
        producer.flush()
        assert cluster.broker.stored["demo", 4] == [b"y"]
        assert (
            Receipt(TopicPartition("demo", 1, 4), 1, *[28 * (len(cluster.stored()) - 1)] * 2, bytes=1)
            in producer.receipts()
        )


def test_a_topic_closed_for_writing_is_not_written_any_more(cluster):
    with cluster.sender(heartbeat_period_ms=20, delivery_timeout_ms=1_000) as producer:
        producer.send("demo", b"x")
        producer.flush()
        cluster.master.topics.clear()
        cluster.master.deployed.add("demo")
        with pytest.raises(ProduceError, match="'demo' cannot be published to"):
            send_for(30, producer)


def test_a_master_that_forgot_the_producer_is_told_again(cluster):
    with cluster.sender() as producer:
        producer.send("demo", b"x")
        cluster.master.producers.clear()
        cluster.master.topics["other"] = "1:1:1#"
        producer.send("other", b"y")
    assert cluster.stored("other") == [b"y"]
    assert cluster.master.seen.count(Method.PRODUCER_REGISTER) == 2


def test_no_master_is_an_error_of_the_connection(cluster):
    cluster.master.server.close()
    producer = cluster.sender(register_attempts=1, delivery_timeout_ms=300)
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_NO_MASTER"):
        producer.send("demo", b"x")


def test_the_end_of_a_block_flushes_and_leaves_the_master(cluster):
    with cluster.sender() as producer:
        for _ in range(100):
            producer.send("demo", b"x")
    assert len(cluster.stored()) == 100
    assert cluster.master.producers == set()


def test_the_end_of_a_failed_block_closes_at_once(cluster, caplog):
    cluster.broker.script = lambda _, __: OVERFLOW
    # One that waited for its message would be stopped by the test's own time-out.
    with pytest.raises(ZeroDivisionError):
        fail_after_sending(cluster.sender(delivery_timeout_ms=600_000))
    assert "closed with 1 messages not acknowledged" in caplog.text


def test_close_says_how_many_messages_it_abandons(cluster, caplog):
    caplog.set_level(logging.WARNING)
    cluster.broker.script = lambda *_: SILENT
    producer = cluster.sender()
    for _ in range(3):
        producer.send("demo", b"x")
    producer.close()
    producer.close()
    assert [record.message.partition(" closed ")[2] for record in caplog.records] == [
        "with 3 messages not acknowledged; some of them may be stored"
    ]
    for use in (lambda: producer.send("demo", b"x"), producer.flush):
        with pytest.raises(ProduceError, match="producer is closed, and 3 of its messages"):
            use()
