"""The producer when brokers refuse, fail, fall silent, hang up or talk nonsense."""

import contextlib
import pickle

import pytest

from tests.client.scripted_cluster import (
    HANG_UP,
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


def send_one(producer, **how):
    producer.send("demo", b"x", **how)
    producer.flush()


@pytest.mark.parametrize("code", sorted(RETRIED | ROUTING | {ErrCode.CERTIFICATE_FAILURE}))
def test_a_code_that_passes_is_waited_out(cluster, code):
    cluster.broker.script = then_store(refuse(code))
    with cluster.sender() as producer:
        send_one(producer)
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


def test_a_named_partition_that_went_away_fails_with_those_that_are_left(cluster):
    def refuse_and_shrink(_, __):
        cluster.master.topics["demo"] = "1:2:1#"
        return refuse(403)

    cluster.broker.script = refuse_and_shrink
    with contextlib.closing(cluster.sender(delivery_timeout_ms=2_000)) as producer:
        producer.send("demo", b"x", partition=(1, 2))
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
        for number in range(20):
            producer.send("demo", b"%d" % number, key=b"%d" % number)
        producer.flush()
        key = cluster.broker.stored["demo", 2][0]
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
        send_one(producer)
        assert producer.retried == 1
        assert len(cluster.broker.server.accepted) == 2
    assert cluster.stored() == [b"x"] * (1 + deed.store)
    cluster.broker.script = lambda *_: deed
    with (
        contextlib.closing(cluster.sender(retry_ambiguous=False)) as producer,
        pytest.raises(ProduceError, match=rf"SEND_FAILED.AMBIGUOUS.*makes no sense \(.*{what}"),
    ):
        send_one(producer)


PERHAPS_STORED = {
    "a lost answer": Do(hang_up=True),
    "a lost request": HANG_UP,
    "no answer": SILENT,
    "a failure after storing": Do(code=500, text="audit failed"),
    "an exception": Do(store=False, exception="InvocationTargetException"),
    "a broker that is stopping": Do(store=False, exception="ServiceStoppingException"),
    "an unknown code": refuse(999),
}


@pytest.mark.parametrize("deed", PERHAPS_STORED)
def test_what_may_be_stored_is_not_sent_again_when_that_is_forbidden(cluster, deed):
    cluster.broker.script = then_store(STORE, PERHAPS_STORED[deed])
    with contextlib.closing(cluster.sender(retry_ambiguous=False, rpc_timeout_ms=200)) as producer:
        send_one(producer)
        with pytest.raises(
            ProduceError, match=r"message 2 of .* was sent to demo/1:2 and may or may not be stored"
        ) as raised:
            send_one(producer, partition=(1, 2))
        assert raised.value.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS"
        assert raised.value.parameters["attempts"] == 1
    assert len(cluster.broker.requests) == 2


def test_a_connection_that_ended_while_nothing_was_sent_makes_nothing_ambiguous(cluster):
    with cluster.sender(retry_ambiguous=False) as producer:
        for number in range(3):
            producer.send("demo", b"%d" % number, partition=(1, 0))
            producer.flush()
            cluster.broker.server.drop_connections()
    assert cluster.stored() == [b"0", b"1", b"2"]
    assert producer.retried == 0
