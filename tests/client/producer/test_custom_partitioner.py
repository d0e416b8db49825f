"""How partitions are chosen is up to the user: in one of our ways, or by an object of the user's own."""

import collections
import contextlib
import threading

import pytest
from hypothesis import given, settings, strategies as st

from tests.client.producer.test_send_batch import batch_of
from tests.client.scripted_cluster import STORE, refuse, scripted_cluster, then_store
from tests.client.test_config import config
from tubemq_spark.client.config import BuiltInPartitioner
from tubemq_spark.errors import OptionError, ProduceError
from tubemq_spark.model import TopicPartition

THREE = [TopicPartition("demo", broker, 0) for broker in (1, 2, 3)]


@pytest.fixture
def cluster():
    with scripted_cluster(3, demo="1:1:1,2:1:1,3:1:1#") as made:
        yield made


class Own:
    """Does what a test says and remembers what it was asked."""

    def __init__(self, choose):
        self._choose = choose
        self.asked = []
        self.threads = set()

    def choose(self, topic, key, value, partitions, available):
        self.threads.add(threading.current_thread().name)
        self.asked.append((topic, key, value, tuple(partitions), tuple(available)))
        return self._choose(key, value, partitions, available)


def by_value(_key, value, partitions, _available):
    return partitions[int(value) % len(partitions)]


def counts(cluster):
    return [len(broker.stored["demo", 0]) for broker in cluster.brokers]


def test_sticky_messages_stay_together(cluster):
    used = collections.Counter()
    for _ in range(12):
        before = counts(cluster)
        with cluster.sender(partitioner=BuiltInPartitioner.STICKY) as producer:
            for _ in range(100):
                producer.send("demo", b"x")
            producer.flush()
            (receipt,) = producer.receipts()
        assert receipt.count == 100
        used[receipt.partition] += 1
        assert sum(counts(cluster)) - sum(before) == 100
    assert len(used) > 1, "producers stick to different partitions"


def test_sticky_messages_with_a_key_go_where_their_key_belongs(cluster):
    placed = []
    for partitioner in BuiltInPartitioner:
        with cluster.sender(partitioner=partitioner) as producer:
            for number in range(50):
                producer.send("demo", b"x", key=b"%d" % number)
            producer.flush()
            placed.append([(one.partition, one.count) for one in producer.receipts()])
    assert placed[0] == placed[1]
    assert len(placed[0]) == 3


def test_sticky_messages_leave_a_broker_that_refuses_them(cluster):
    refusing = {1, 2}
    for broker in cluster.brokers[:2]:
        broker.script = lambda _, __: refuse(503)
    with cluster.sender(partitioner=BuiltInPartitioner.STICKY) as producer:
        for _ in range(200):
            producer.send("demo", b"x")
        producer.flush()
        assert {one.partition.broker_id for one in producer.receipts()} == {1, 2, 3} - refusing
    assert counts(cluster) == [0, 0, 200]


def test_an_own_partitioner_is_asked_for_every_message(cluster):
    own = Own(by_value)
    with cluster.producer(partitioner=own) as producer:
        for number in range(90):
            producer.send("demo", b"%d" % number, key=b"k" if number % 2 else None)
    for number, broker in enumerate(cluster.brokers):
        assert broker.stored["demo", 0] == [b"%d" % value for value in range(number, 90, 3)]
    assert own.asked == [
        ("demo", b"k" if number % 2 else None, b"%d" % number, tuple(THREE), tuple(THREE))
        for number in range(90)
    ]


def test_an_own_partitioner_is_asked_for_every_message_of_a_batch(cluster):
    own = Own(by_value)
    values = [b"%d" % number for number in range(300)]
    with cluster.producer(partitioner=own) as producer:
        producer.send_batch(batch_of(values))
        producer.send_batch(batch_of(values, keys=[b"k"] * 300))
    for number, broker in enumerate(cluster.brokers):
        assert broker.stored["demo", 0] == values[number::3] * 2
    assert [(key, value) for _, key, value, *_ in own.asked] == [
        *((None, value) for value in values),
        *((b"k", value) for value in values),
    ]


def test_the_messages_before_one_that_cannot_be_placed_are_stored(cluster):
    own = Own(lambda _key, value, partitions, _available: partitions[0] if value != b"77" else None)
    values = [b"%d" % number for number in range(100)]
    producer = cluster.producer(partitioner=own)
    with pytest.raises(ProduceError, match="TUBEMQ_PARTITIONER_CHOICE"):
        producer.send_batch(batch_of(values))
    producer.flush()
    assert cluster.brokers[0].stored["demo", 0] == values[:77]


def test_an_own_partitioner_is_not_asked_for_a_named_partition(cluster):
    own = Own(by_value)
    with cluster.producer(partitioner=own) as producer:
        producer.send("demo", b"0", partition=(2, 0))
    assert counts(cluster) == [0, 1, 0]
    assert own.asked == []


def test_a_message_that_is_sent_again_is_placed_again_where_brokers_are_well(cluster):
    cluster.brokers[0].script = then_store(*[refuse(503)] * 5)
    own = Own(lambda _key, _value, _partitions, available: available[0])
    with cluster.producer(partitioner=own) as producer:
        producer.send("demo", b"only")
        producer.flush()
    assert counts(cluster) == [0, 1, 0]
    assert "tubemq-loop" not in own.threads
    assert [available for *_, available in own.asked] == [tuple(THREE), tuple(THREE[1:])]
    assert {value for _, _, value, *_ in own.asked} == {b"only"}
    assert {partitions for *_, partitions, _ in own.asked} == {tuple(THREE)}


def test_a_callback_waits_for_no_message_that_may_wait_for_its_partitioner(cluster):
    """The partitioner is asked again in the thread of callbacks."""
    refused = []

    def ask(_result, _error):
        other = producer.send("demo", b"1")
        for call in (other.result, other.exception):
            try:
                call()
            except ProduceError as error:
                refused.append(error.condition)

    with cluster.producer(partitioner=Own(by_value), linger_ms=60_000) as producer:
        producer.send("demo", b"0", callback=ask)
        producer.flush()
    assert refused == ["TUBEMQ_PRODUCER_IN_CALLBACK"] * 2
    assert counts(cluster) == [1, 1, 0]


def test_there_is_always_a_partition_that_is_available(cluster):
    for broker in cluster.brokers:
        broker.script = then_store(*[refuse(503)] * 3)
    own = Own(lambda _key, _value, _partitions, available: available[-1])
    with cluster.producer(partitioner=own) as producer:
        for number in range(20):
            producer.send("demo", b"%d" % number)
    assert sum(counts(cluster)) == 20
    assert all(available for *_, available in own.asked)


NOT_PARTITIONS = st.one_of(
    st.none(),
    st.integers(-1, 3),
    st.just((1, 0)),
    st.just(("demo", 1, 0)),
    st.text(max_size=5),
    st.builds(
        TopicPartition,
        st.sampled_from(["demo", "other", ""]),
        st.integers(-2, 9),
        st.integers(-1, 2) | st.just(10_000),
    ).filter(lambda one: one not in THREE),
)


@settings(deadline=None, max_examples=25)
@given(wrong=st.lists(NOT_PARTITIONS, min_size=1, max_size=5))
def test_what_is_not_one_of_the_partitions_is_refused_and_harms_nothing(wrong):
    with scripted_cluster(3, demo="1:1:1,2:1:1,3:1:1#") as cluster:
        answers = iter([THREE[0], *wrong, THREE[2]])
        with cluster.producer(partitioner=Own(lambda *_: next(answers))) as producer:
            producer.send("demo", b"first")
            for one in wrong:
                with pytest.raises(ProduceError) as refused:
                    producer.send("demo", b"never")
                assert refused.value.condition == "TUBEMQ_PARTITIONER_CHOICE"
                assert repr(one)[:100] in str(refused.value)
                assert "The partitioner Own returned" in str(refused.value)
                assert "1:0, 2:0, 3:0" in str(refused.value)
            producer.send("demo", b"last")
        assert [broker.stored["demo", 0] for broker in cluster.brokers] == [[b"first"], [], [b"last"]]


def test_what_an_own_partitioner_raises_is_raised_by_send_and_harms_nothing(cluster):
    with cluster.producer(partitioner=Own(by_value)) as producer:
        producer.send("demo", b"0")
        with pytest.raises(ValueError, match="invalid literal"):
            producer.send("demo", b"not a number")
        producer.send("demo", b"1")
    assert counts(cluster) == [1, 1, 0]


def test_a_wrong_choice_for_an_accepted_message_fails_it_alone(cluster):
    cluster.brokers[0].script = then_store(refuse(503), STORE)
    answers = iter([THREE[0], None, THREE[1]])
    with contextlib.closing(cluster.producer(partitioner=Own(lambda *_: next(answers)))) as producer:
        producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"Own returned None for a message to topic 'demo'"):
            producer.flush()
        producer.send("demo", b"y")
        producer.flush()
    assert counts(cluster) == [0, 1, 0]


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit("mine")], ids=["error", "exit"])
def test_what_is_raised_for_an_accepted_message_is_told_by_flush(cluster, error):
    cluster.brokers[0].script = then_store(refuse(503), STORE)
    answers = iter([THREE[0]])

    def choose(*_):
        for answer in answers:
            return answer
        raise error

    with contextlib.closing(cluster.producer(partitioner=Own(choose))) as producer:
        producer.send("demo", b"x")
        with pytest.raises(ProduceError, match=r"Own raised .*mine") as failed:
            producer.flush()
        assert failed.value.condition == "TUBEMQ_PARTITIONER_FAILED"
        assert failed.value.__cause__ is error


@pytest.mark.parametrize("wrong", ["sticky", None, 7, object()])
def test_what_cannot_choose_is_refused_as_a_setting(wrong):
    with pytest.raises(OptionError, match=r"setting partitioner is .* 'roundRobin', 'sticky' or an object"):
        config(partitioner=wrong).validate()


def test_our_partitioners_and_an_own_one_are_good_settings():
    for right in (*BuiltInPartitioner, Own(by_value)):
        assert config(partitioner=right).validate().partitioner is right
