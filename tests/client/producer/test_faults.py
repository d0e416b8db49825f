"""The producer when brokers refuse, fail, fall silent, hang up or talk nonsense."""

import contextlib
import pickle

import pytest

from tests.client.scripted_cluster import (
    HANG_UP,
    OVERFLOW,
    SILENT,
    STORE,
    Do,
    refuse,
    scripted_cluster,
    then_store,
)
from tubemq_spark.errors import ProduceError
from tubemq_spark.protocol.constants import Method, Status
from tubemq_spark.protocol.errcodes import ErrCode, lookup

RETRIED = {code for code in ErrCode if lookup(code).retriable}
ROUTING = {ErrCode.FORBIDDEN, ErrCode.TOPIC_NOT_DEPLOYED}
"""Where the routing is asked for again, and the message sent again."""
REFUSED: set[int] = set(ErrCode) - RETRIED - ROUTING - {ErrCode.SUCCESS, ErrCode.CERTIFICATE_FAILURE}


@pytest.fixture
def cluster():
    with scripted_cluster() as made:
        yield made


def send_numbers(producer, count):
    for number in range(count):
        producer.send("demo", b"%d" % number)
    producer.flush()


def send_one(producer, **how):
    producer.send("demo", b"x", **how)
    producer.flush()


@pytest.mark.parametrize("code", sorted(RETRIED | ROUTING | {ErrCode.CERTIFICATE_FAILURE}))
def test_a_code_that_passes_is_waited_out(cluster, code):
    cluster.broker.script = then_store(refuse(code))
    with cluster.sender() as producer:
        producer.send("demo", b"x")
        producer.flush()
        assert producer.retried == 1
        assert [receipt.retried for receipt in producer.receipts()] == [1]
    assert cluster.stored() == [b"x"]


@pytest.mark.parametrize(
    ("code", "fate"),
    [
        *((code, "was not stored in demo/1:0") for code in sorted(REFUSED)),
        (999, "was sent to demo/1:0 and may or may not be stored"),
    ],
)
def test_a_code_that_stays_fails_at_once(cluster, code, fate):
    cluster.broker.script = then_store(refuse(code, "the broker's words"))
    with contextlib.closing(cluster.sender()) as producer:
        with pytest.raises(
            ProduceError, match=f"message 1 of producer .* {fate} .*attempts: 1.*{code}"
        ) as first:
            send_one(producer, partition=(1, 0))
        assert "the broker's words" in str(first.value)
        assert lookup(code).hint in str(first.value)
        with pytest.raises(ProduceError) as later:
            producer.send("demo", b"y")
        assert later.value is first.value
        with pytest.raises(ProduceError):
            producer.flush()
    assert len(cluster.broker.requests) == 1


def test_nothing_is_sent_after_the_first_error(cluster):
    cluster.broker.script = lambda _, number: refuse(400) if number == 40 else STORE
    with contextlib.closing(cluster.sender(max_in_flight=16)) as producer, pytest.raises(ProduceError):
        send_numbers(producer, 1_000)
    assert 40 < len(cluster.broker.requests) <= 40 + 16


def test_the_error_travels_between_processes(cluster):
    cluster.broker.script = then_store(refuse(400))
    with pytest.raises(ProduceError) as raised, cluster.sender() as producer:
        producer.send("demo", b"x")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_refused_partition_makes_the_routing_be_asked_for_once(cluster):
    """403 is what a broker says of a topic or partition it does not have."""

    def script(message, _):
        return refuse(403, "not existed") if message.partitionId < 3 else STORE

    cluster.broker.script = script
    with cluster.sender() as producer:
        producer.send("demo", b"a")
        cluster.master.topics["demo"] = "1:1:4#"
        cluster.broker.script = lambda message, _: refuse(403) if message.partitionId in (1, 2) else STORE
        for _ in range(3 * 32):  # a turn for each partition
            producer.send("demo", b"b")
        producer.flush()
    assert sorted(cluster.stored()) == [b"a"] + [b"b"] * 96
    assert cluster.master.seen.count(Method.PRODUCER_HEARTBEAT) == 2


def test_a_partition_that_stays_refused_fails_in_time(cluster):
    cluster.broker.script = lambda _, __: refuse(403, "topicName demo has been closed")
    with contextlib.closing(cluster.sender(delivery_timeout_ms=400)) as producer:
        for _ in range(10):
            producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"has been closed"):
            producer.flush()


def test_a_named_partition_that_went_away_fails_with_those_that_are_left(cluster):
    cluster.broker.script = lambda _, __: refuse(403)
    with contextlib.closing(cluster.sender(delivery_timeout_ms=2_000)) as producer:
        producer.send("demo", b"x", partition=(1, 2))
        cluster.master.topics["demo"] = "1:2:1#"
        with pytest.raises(ProduceError, match=r"does not list demo/1:2 now, only 1:0, 1:1;"):
            producer.flush()


def test_a_partition_that_comes_back_takes_what_was_to_go_there(cluster):
    cluster.broker.script = then_store(refuse(403))
    with cluster.sender(heartbeat_period_ms=20) as producer:
        producer.send("demo", b"x", partition=(1, 2))
        cluster.master.topics["demo"] = "1:2:1#"

        def come_back() -> None:
            if len(cluster.master.asked_for) > 10:
                cluster.master.topics["demo"] = "1:3:1#"

        cluster.master.on_heartbeat = come_back
        producer.flush()
        producer.send("demo", b"y", partition=(1, 2))
    assert cluster.broker.stored["demo", 2] == [b"x", b"y"]


@pytest.mark.parametrize("keep_order", [True, False])
def test_a_message_with_a_key_leaves_a_partition_that_is_gone_unless_order_is_kept(cluster, keep_order):
    with contextlib.closing(cluster.sender(delivery_timeout_ms=2_000, keep_order=keep_order)) as producer:
        send_one(producer, partition=(1, 0))
        partitioner = producer._destinations.topics["demo"].partitioner
        key = next(
            b"%d" % number
            for number in range(1_000)
            if partitioner.by_key(b"%d" % number).partition.partition_id == 2
        )
        cluster.master.topics["demo"] = "1:2:1#"
        cluster.broker.script = lambda message, _: refuse(403) if message.partitionId == 2 else STORE
        producer.send("demo", b"y", key=key)
        with (
            pytest.raises(ProduceError, match=r"does not list demo/1:2 now, only 1:0, 1:1;")
            if keep_order
            else contextlib.nullcontext()
        ):
            producer.flush()
    assert (b"y" in cluster.stored()) is not keep_order


def test_a_refusal_while_no_master_answers_is_waited_out(cluster):
    cluster.broker.script = then_store(*[refuse(403)] * 3)
    with cluster.sender(register_attempts=1, rpc_timeout_ms=300) as producer:
        producer.send("demo", b"x")
        cluster.master.server.close()
        producer.flush()
    assert cluster.stored() == [b"x"]


def test_overflow_slows_down_and_loses_nothing(cluster):
    cluster.broker.script = lambda _, number: OVERFLOW if number < 30 and number % 3 else STORE
    values = [b"%d" % number for number in range(1_000)]
    with cluster.sender(max_in_flight=64) as producer:
        for value in values:
            producer.send("demo", value)
        producer.flush()
        assert producer.retried == 20
    assert sorted(cluster.stored()) == sorted(values), (
        "what was refused was not stored, so nothing is there twice"
    )


def test_a_stopped_brokers_messages_go_to_another():
    with scripted_cluster(2, demo="1:1:1,2:1:1#") as cluster:
        cluster.brokers[0].script = lambda _, __: refuse(503, "temporary unavailable!")
        with cluster.sender() as producer:
            for _ in range(200):
                producer.send("demo", b"x")
            producer.flush()
        assert len(cluster.stored()) == 200
        assert len(cluster.brokers[1].stored["demo", 0]) == 200


def test_an_unreachable_brokers_messages_go_to_another():
    with scripted_cluster(2, demo="1:1:1,2:1:1#") as cluster:
        cluster.brokers[0].server.close()
        with cluster.sender() as producer:
            for _ in range(200):
                producer.send("demo", b"x")
            producer.flush()
        assert len(cluster.brokers[1].stored["demo", 0]) == 200


def test_an_unreachable_broker_fails_what_must_go_there():
    with scripted_cluster(2, demo="1:1:1,2:1:1#") as cluster:
        cluster.brokers[0].server.close()
        with contextlib.closing(cluster.sender(delivery_timeout_ms=300)) as producer:
            producer.send("demo", b"x", partition=(1, 0))
            with pytest.raises(
                ProduceError,
                match=r"message 1 of producer .* was not stored in demo/1:0 .*attempts: 0.*refused",
            ):
                producer.flush()


@pytest.mark.parametrize("stored", [True, False])
def test_a_connection_lost_in_the_middle_is_made_again(cluster, stored):
    cluster.broker.script = lambda _, number: Do(store=stored, hang_up=True) if number in (50, 300) else STORE
    values = [b"%d" % number for number in range(500)]
    with cluster.sender(max_in_flight=64) as producer:
        for value in values:
            producer.send("demo", value, partition=(1, 0))
        producer.flush()
        assert producer.retried > 0
        (receipt,) = producer.receipts()
        assert (receipt.count, receipt.first_offset) == (500, 0)
        assert receipt.retried > 0
    assert list(dict.fromkeys(cluster.stored())) == values, "the order of first appearance is kept"
    assert len(cluster.broker.server.accepted) == 3


def test_a_broker_that_hangs_up_every_time_fails_in_the_end(cluster):
    cluster.broker.script = lambda _, __: HANG_UP
    with contextlib.closing(cluster.sender(delivery_timeout_ms=400)) as producer:
        producer.send("demo", b"x")
        with pytest.raises(
            ProduceError, match=r"the connection to 127.0.0.1:.* failed: .*check that the broker runs"
        ):
            producer.flush()


def test_a_broker_that_never_answers_is_given_up(cluster):
    cluster.broker.script = lambda _, __: SILENT
    with contextlib.closing(cluster.sender(rpc_timeout_ms=100, delivery_timeout_ms=350)) as producer:
        producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"no answer within 0.1 s"):
            producer.flush()


def test_a_lost_answer_means_the_message_is_sent_again(cluster):
    cluster.broker.script = then_store(Do(answer=False))
    # Long enough that a busy machine answers the second one in time.
    with cluster.sender(rpc_timeout_ms=500) as producer:
        producer.send("demo", b"x")
        producer.flush()
        assert producer.retried == 1
    assert cluster.stored() == [b"x", b"x"]


def test_answers_in_another_order_reach_their_messages(cluster):
    cluster.broker.answer_in_groups_of = 25
    with cluster.sender() as producer:
        for number in range(100):
            producer.send("demo", b"%d" % number, partition=(1, number % 2))
        producer.flush()
        receipts = [(one.count, one.first_offset, one.last_offset) for one in producer.receipts()]
    assert receipts == [(50, 0, 98 * 28), (50, 28, 99 * 28)]
    assert producer.retried == 0


@pytest.mark.parametrize(
    ("exception", "status"),
    [
        ("InvocationTargetException", Status.ERROR),
        ("ServiceStoppingException", Status.ERROR),
        ("ServerNotReadyException", Status.FATAL),
    ],
)
def test_an_exception_of_the_moment_is_waited_out(cluster, exception, status):
    cluster.broker.script = then_store(Do(store=False, exception=exception, status=status))
    with cluster.sender() as producer:
        producer.send("demo", b"x")
    assert cluster.stored() == [b"x"]


def test_a_request_the_broker_cannot_read_fails_at_once(cluster):
    deed = Do(store=False, exception="Exception", status=Status.FATAL, text="Unsupported method ID :13")
    cluster.broker.script = then_store(deed)
    with contextlib.closing(cluster.sender()) as producer:
        producer.send("demo", b"x")
        with pytest.raises(ProduceError, match="failed with Exception: Unsupported method ID :13"):
            producer.flush()


@pytest.mark.parametrize(
    ("deed", "what"),
    [
        (Do(junk=b"HTTP/1.1 400 Bad Request\r\n\r\n"), "a frame starts with"),
        (Do(offset=27), "append offset 27"),
        (Do(store=False), "append offset -1"),
    ],
)
def test_an_answer_that_makes_no_sense_counts_as_a_lost_connection(cluster, deed, what):
    cluster.broker.script = then_store(deed)
    with contextlib.closing(cluster.sender()) as producer:
        send_and_flush(producer)
        assert producer.retried == 1
        assert len(cluster.broker.server.accepted) == 2
    assert cluster.stored() == [b"x"] * (1 + deed.store)
    cluster.broker.script = lambda *_: deed
    with (
        contextlib.closing(cluster.sender(retry_ambiguous=False)) as producer,
        pytest.raises(ProduceError, match=rf"SEND_FAILED.AMBIGUOUS.*makes no sense \(.*{what}"),
    ):
        send_and_flush(producer)


def send_and_flush(producer):
    producer.send("demo", b"x")
    producer.flush()


def test_retrying_can_be_forbidden(cluster):
    cluster.broker.script = then_store(OVERFLOW)
    with contextlib.closing(cluster.sender(delivery_timeout_ms=1)) as producer:
        with pytest.raises(ProduceError, match="TUBEMQ_SEND_FAILED"):
            send_and_flush(producer)
        assert len(cluster.broker.requests) <= 1


PERHAPS_STORED = {
    "a lost answer": Do(hang_up=True),
    "a lost request": HANG_UP,
    "no answer": SILENT,
    "a failure after storing": Do(code=500, text="audit failed"),
    "an exception": Do(store=False, exception="InvocationTargetException"),
    "a broker that is stopping": Do(store=False, exception="ServiceStoppingException"),
    "an unknown code": refuse(999),
}
NOT_STORED = {
    "419": OVERFLOW,
    "403": refuse(403),
    "415": refuse(415),
    "423": refuse(423),
    "503": refuse(503),
    "a broker that is starting": Do(
        store=False, exception="ServerNotReadyException", status=Status.FATAL, text="not ready"
    ),
}


@pytest.mark.parametrize("deed", PERHAPS_STORED)
def test_what_may_be_stored_is_not_sent_again_when_that_is_forbidden(cluster, deed):
    cluster.broker.script = then_store(STORE, PERHAPS_STORED[deed])
    with contextlib.closing(cluster.sender(retry_ambiguous=False, rpc_timeout_ms=200)) as producer:
        send_numbers(producer, 1)
        with pytest.raises(
            ProduceError, match=r"message 2 of .* was sent to demo/1:2 and may or may not be stored"
        ) as raised:
            send_one(producer, partition=(1, 2))
        assert raised.value.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS"
        assert raised.value.parameters["attempts"] == 1
    assert len(cluster.broker.requests) == 2


@pytest.mark.parametrize("deed", NOT_STORED)
def test_what_is_surely_not_stored_is_sent_again_all_the_same(cluster, deed):
    cluster.broker.script = then_store(*[NOT_STORED[deed]] * 3)
    with cluster.sender(retry_ambiguous=False) as producer:
        send_numbers(producer, 3)
        assert producer.retried == 3
    assert sorted(cluster.stored()) == [b"0", b"1", b"2"]


def test_a_connection_that_ended_while_nothing_was_sent_makes_nothing_ambiguous(cluster):
    with cluster.sender(retry_ambiguous=False) as producer:
        for number in range(3):
            producer.send("demo", b"%d" % number, partition=(1, 0))
            producer.flush()
            cluster.broker.server.drop_connections()
    assert cluster.stored() == [b"0", b"1", b"2"]
    assert producer.retried == 0


def test_a_broker_that_comes_back_gets_what_waited(cluster):
    with cluster.sender() as producer:
        producer.send("demo", b"a", partition=(1, 0))
        producer.flush()
        cluster.broker.server.drop_connections()
        for number in range(100):
            producer.send("demo", b"%d" % number, partition=(1, 0))
        producer.flush()
    assert set(cluster.stored()) >= {b"%d" % number for number in range(100)}


def test_the_log_counts_a_message_that_waits_for_a_broker_once(cluster, caplog):
    cluster.broker.script = then_store(*[refuse(ErrCode.SERVICE_UNAVAILABLE)] * 3)
    with cluster.sender() as producer:
        send_one(producer)
        assert producer.retried == 3
    (back,) = [record.getMessage() for record in caplog.records if "is back" in record.getMessage()]
    assert back.endswith(", 1 messages waited")
