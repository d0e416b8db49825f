"""What an assigned consumer does for its user, on three brokers."""

import asyncio
import collections
import concurrent.futures
import itertools
import json
import pickle
import threading
import time

import pytest

from testkit.children import forks, in_child
from tests.cases import in_one_test
from tests.client.assigned import (
    ROW,
    TOPIC,
    client_of,
    connected,
    consumer_of,
    in_loop,
    is_leaving,
    numbered,
    partition,
    produce,
    take,
)
from tests.client.ways import WAYS, only_direct, served
from tests.embedded.web import TOKEN, ask, change
from tests.waiting import wait_until
from tubemq_spark.client import Batch, Confirmed, ConsumePosition, PartitionStatus, TubeMQClient
from tubemq_spark.client.consumer.values import ConsumeStatus, PartitionState
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import (
    ConsumeError,
    DataLossError,
    OffsetFormatError,
    OptionError,
    RpcError,
    TubeMQConnectionError,
)
from tubemq_spark.offsets.loss import Loss, LossRecorder
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

server = served(stores=2, ways=WAYS)
shared = served(partitions=2)


def refused(code, call, *arguments, **more):
    with pytest.raises(ConsumeError) as error:
        call(*arguments, **more)
    assert error.value.code == code
    return str(error.value)


# Life.


def test_a_consumer_is_opened_once_and_never_again(server):
    with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC)
        assert "not open yet" in refused(420, consumer.fetch)
        assert consumer.closed
        with consumer:
            assert not consumer.closed
            text = refused(400, consumer.open)
            assert text.startswith("[TUBEMQ_CONSUMER_OPEN] The consumer of group ")
            assert text.endswith(" is open already; open it once, with open() or with a with block.")
        assert consumer.closed
        assert "closed" in refused(420, consumer.open)


@in_one_test(
    "call",
    [
        lambda consumer: consumer.fetch(),
        lambda consumer: consumer.confirm("1:demo:0@1"),
        lambda consumer: consumer.partitions(),
        lambda consumer: consumer.share(),
        lambda consumer: consumer.connect(partition()),
        lambda consumer: consumer.disconnect(partition()),
        lambda consumer: consumer.wait_until_ready(0),
        lambda consumer: next(iter(consumer)),
    ],
)
@in_one_test("opened", [True, False])
def test_calls_are_refused_when_the_consumer_is_not_open(server, call, opened):
    with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC)
        if opened:
            with consumer:
                pass
        assert "[TUBEMQ_CONSUMER_CLOSED]" in refused(420, call, consumer)


def test_an_opening_that_failed_may_be_tried_again(server):
    rule = server.faults.answer(Method.BALANCE_REGISTER, ErrCode.CONSUME_GROUP_FORBIDDEN, times=1)
    with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC)
        with pytest.raises(RpcError, match="450"):
            consumer.open()
        assert rule.hits == 1
        assert consumer.closed
        with consumer:
            assert len(consumer.partitions()) == 6


def test_a_layout_that_does_not_come_leaves_no_member_behind(server):
    server.faults.answer(Method.BALANCE_PARTITION_META, ErrCode.BAD_REQUEST, times=1)
    with client_of(server) as client:
        consumer = client.assigned_consumer(TOPIC, source_count=1, node_id=0)
        with pytest.raises(RpcError):
            consumer.open()
        # No consumer has the number.
        with client.assigned_consumer(TOPIC, source_count=1, node_id=0):
            pass


@only_direct
def test_closing_gives_everything_back_and_wakes_who_waits(server):
    produce(server, numbered(60))
    errors = []

    def wait_for_ever(consumer):
        try:
            consumer.fetch(-1)
        except ConsumeError as error:
            errors.append(error.code)

    with consumer_of(server) as consumer:
        for one in consumer.share():
            consumer.connect(one)
        taken = take(consumer, 60)
        threads = [threading.Thread(target=wait_for_ever, args=[consumer]) for _ in range(3)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(5)
    assert errors == [420] * 3
    assert sorted(taken) == sorted(numbered(60))
    # Everything is free, and confirmed.
    with consumer_of(server) as after:
        assert {after.connect(one).offset for one in after.share()} == {
            place.latest for place in after.positions().values()
        }
        assert after.fetch(100) is None


@pytest.mark.parametrize("kind", ["assigned", "group"])
def test_a_client_closes_its_consumers_and_opens_no_others(server, kind):
    client = client_of(server)
    make = client.assigned_consumer if kind == "assigned" else client.group_consumer
    consumer = make(TOPIC).open()
    if kind == "assigned":
        consumer.connect(partition())
    client.close()
    assert consumer.closed
    with consumer_of(server) as other:
        other.connect(partition())
    with pytest.raises(TubeMQConnectionError, match="closed"):
        make(TOPIC).open()


def test_what_was_not_confirmed_comes_again_after_closing(server):
    produce(server, numbered(3), where=partition())
    for _ in range(2):
        with connected(server) as consumer:
            assert [record.value for record in consumer.fetch()] == numbered(3)


def test_the_master_knows_a_consumer_until_it_closes(server):
    def members():
        answer = ask(
            server.master_web, method="admin_query_consume_group_detail", consumeGroup="etl", **TOKEN
        )
        return answer.get("count", 0)

    with consumer_of(server):
        assert members() == 1
    assert not members()


@forks
def test_a_forked_child_is_refused_and_disturbs_no_consumer(server):
    produce(server, numbered(3))
    with consumer_of(server) as consumer:
        for one in consumer.share():
            consumer.connect(one)

        def check():
            text = refused(420, consumer.fetch)
            assert "[TUBEMQ_CONSUMER_FORKED]" in text
            for look in (
                consumer.positions,
                consumer.status,
                consumer.missed_heartbeats,
                consumer.partitions,
                lambda: consumer.connect(partition()),
                lambda: consumer.disconnect(partition()),
                lambda: consumer.connected,
                lambda: consumer.paused,
                lambda: consumer.consume_status,
            ):
                refused(420, look)
            consumer.close()

        in_child(check)
        assert sorted(take(consumer, 3)) == numbered(3)


@in_one_test("wrong", [TOPIC, [TOPIC], [(TOPIC, 1, 0)], [None]])
def test_only_partitions_can_be_paused(server, wrong):
    with consumer_of(server) as consumer:
        for call in (consumer.pause, consumer.resume):
            with pytest.raises(OptionError, match="TopicPartition"):
                call(wrong)
        assert not consumer.paused


def test_one_partition_can_be_paused_without_a_list(server):
    with consumer_of(server) as consumer:
        consumer.pause(partition(1))
        consumer.pause([partition(2), partition(3)])
        assert consumer.paused == {partition(1), partition(2), partition(3)}
        consumer.resume(partition(2))
        assert consumer.paused == {partition(1), partition(3)}


def test_waiting_for_partitions_without_a_limit(server):
    with consumer_of(server) as consumer, concurrent.futures.ThreadPoolExecutor(1) as threads:
        ready = threads.submit(consumer.wait_until_ready, -1)
        wait_until(lambda: consumer._core.state.changes._waiting)
        consumer.connect(partition())
        assert ready.result(5) is True


def test_what_goes_on_in_the_background_has_the_consumers_name(server):
    with consumer_of(server) as consumer:
        names = {task.get_name() for task in in_loop(asyncio.all_tasks)}
        assert {f"{what} of {consumer.client_id}" for what in ("upkeep", "heartbeat")} <= names
    assert consumer.client_id.startswith("etl_")
    assert "-Balance-" in consumer.client_id


def test_a_consumer_tells_what_it_is(server):
    with consumer_of(server, message_types={TOPIC: ["a"]}, source_count=2, node_id=1) as consumer:
        assert (consumer.node.source_count, consumer.node.node_id) == (2, 1)
        assert consumer.is_filtered(TOPIC)
        assert not consumer.is_filtered("other")
        assert consumer.subscription.topics == (TOPIC,)
        assert consumer.config.group == "etl"
        assert abs(consumer.registered_at - time.time()) < 60


# Bad input.


@in_one_test(
    ("arguments", "text"),
    [
        ({"topics": []}, "topics"),
        ({"topics": "a:b"}, "topics"),
        ({"topics": None}, "topics"),
        ({"topics": TOPIC, "message_types": {TOPIC: ["x" * 257]}}, "message_types"),
        (
            {"topics": TOPIC, "message_types": {TOPIC: list(map(str, range(501)))}},
            "message_types",
        ),
        ({"topics": TOPIC, "message_types": {"other": ["x"]}}, "message_types"),
        ({"topics": TOPIC, "source_count": 2}, "node_id"),
        ({"topics": TOPIC, "node_id": 2}, "node_id"),
        ({"topics": TOPIC, "source_count": 2, "node_id": 2}, "node_id"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(server, arguments, text):
    with client_of(server) as client, pytest.raises(OptionError, match=text):
        client.assigned_consumer(**arguments)


@in_one_test("offset", [-1, 1, 27, -28])
def test_offsets_that_are_none_are_refused(server, offset):
    with consumer_of(server) as consumer:
        with pytest.raises(OffsetFormatError):
            consumer.connect(partition(), offset)
        assert consumer.connected == ()


def test_unknown_topics_are_refused_by_name(server):
    with client_of(server) as client, pytest.raises(RpcError, match="431") as error:
        client.assigned_consumer(["no_such_topic", TOPIC]).open()
    assert "no_such_topic" in str(error.value)


def test_two_members_cannot_have_one_number(server):
    with consumer_of(server, source_count=2, node_id=0), client_of(server) as client:
        with pytest.raises(RpcError, match="430"):
            client.assigned_consumer(TOPIC, source_count=2, node_id=0).open()
        with pytest.raises(RpcError, match="429"):
            client.assigned_consumer(TOPIC, source_count=3, node_id=1).open()


# Partitions.


def test_two_consumers_split_all_partitions_by_number(server):
    with (
        consumer_of(server, source_count=2, node_id=0) as first,
        consumer_of(server, source_count=2, node_id=1) as second,
    ):
        shares = [first.share(), second.share()]
        assert sorted([*shares[0], *shares[1]]) == sorted(first.partitions())
        assert all(shares)


@only_direct
def test_partitions_tells_which_can_be_read(server):
    with consumer_of(server) as consumer:
        assert set(consumer.partitions().values()) == {True}
        change(server, "admin_modify_topic_info", topicName=TOPIC, brokerId=2, acceptSubscribe="false")
        found = consumer.partitions()
        assert {one.broker_id for one, readable in found.items() if not readable} == {2}
        assert {one.broker_id for one in consumer.share()} == {1, 3}
        assert "422" not in refused(422, consumer.connect, partition(2))


def test_a_partition_that_does_not_exist_is_refused(server):
    with consumer_of(server) as consumer:
        assert "demo/1:7" in refused(404, consumer.connect, partition(1, 7))


def test_an_offset_given_is_where_reading_begins_and_where_the_group_stands(server):
    produce(server, numbered(10), where=partition())
    with consumer_of(server) as consumer:
        assert consumer.connect(partition(), 4 * ROW).offset == 4 * ROW
        assert take(consumer, 6) == numbered(6, 4)
    with consumer_of(server) as consumer:
        consumer.connect(partition(), 2 * ROW)
    with consumer_of(server) as consumer:
        assert consumer.connect(partition()).offset == 2 * ROW


@pytest.mark.parametrize(
    ("position", "new_group", "known_group"),
    [(ConsumePosition.FIRST, 0, 2), (ConsumePosition.LATEST, 5, 2), (ConsumePosition.ALWAYS_LATEST, 5, 5)],
)
def test_without_an_offset_the_consume_position_counts(server, position, new_group, known_group):
    produce(server, numbered(5), where=partition())
    with consumer_of(server, consume_position=position) as consumer:
        assert consumer.connect(partition()).offset == new_group * ROW
        consumer.disconnect(partition())
        consumer.connect(partition(), 2 * ROW)
        consumer.disconnect(partition())
        # A partition that comes back resumes.
        assert consumer.connect(partition()).offset == 2 * ROW
    with consumer_of(server, consume_position=position) as consumer:
        assert consumer.connect(partition()).offset == known_group * ROW


def test_an_offset_wins_over_the_position_that_is_always_the_latest(server):
    """With Java's client it is the other way round the first time."""
    produce(server, numbered(5), where=partition())
    with consumer_of(server, consume_position=ConsumePosition.ALWAYS_LATEST) as consumer:
        assert consumer.connect(partition(), ROW).offset == ROW
        assert take(consumer, 4) == numbered(4, 1)


def test_connecting_again_changes_nothing_and_says_so(server):
    produce(server, numbered(5), where=partition())
    with consumer_of(server) as consumer:
        consumer.connect(partition(), 2 * ROW)
        assert consumer.connect(partition()).offset == 2 * ROW
        assert consumer.connect(partition(), 2 * ROW).offset == 2 * ROW
        assert "disconnect" in refused(400, consumer.connect, partition(), 0)
        assert take(consumer, 3) == numbered(3, 2)


@only_direct
@pytest.mark.parametrize("offset", [0, 20 * ROW])
def test_an_offset_outside_of_the_store_is_a_loss(server, offset):
    produce(server, numbered(10), where=partition())
    server.faults.apply_retention(TOPIC)
    produce(server, numbered(2, 10), where=partition())
    kind, ends = (Loss.EXPIRED, 10) if not offset else (Loss.MOVED_BACK, 12)
    with consumer_of(server) as consumer:
        with pytest.raises(DataLossError, match=kind.value):
            consumer.connect(partition(), offset)
        assert consumer.connected == ()
    losses = LossRecorder()
    with consumer_of(server, on_loss=losses) as consumer:
        assert consumer.connect(partition(), offset).offset == ends * ROW
    assert [(loss.loss, loss.partition) for loss in losses.records] == [(kind, partition())]
    assert losses.records[0].rows == abs(ends - offset // ROW)


@only_direct
def test_another_consumer_of_the_group_is_not_pushed_away(server):
    with consumer_of(server) as first, consumer_of(server) as second:
        first.connect(partition())
        with pytest.raises(RpcError, match="410"):
            second.connect(partition())
        first.disconnect(partition())
        # Not so soon: the broker is spared.
        text = refused(421, second.connect, partition())
        assert "410" in text
        second._core._connecting._refused.clear()
        second.connect(partition())
        assert second.connected == (partition(),)


def test_disconnecting_gives_a_partition_up(server):
    produce(server, numbered(5))
    with consumer_of(server) as consumer:
        for one in consumer.share():
            consumer.connect(one)
        for one in consumer.share():
            assert consumer.disconnect(one)
        assert not consumer.disconnect(partition())
        assert consumer.connected == ()
        assert consumer.fetch(0) is None
        assert consumer.consume_status is ConsumeStatus.NOTHING_ASSIGNED


def test_a_batch_that_is_out_is_waited_for(server):
    with connected(server, 5, rebalance_wait_ms=10_000) as consumer:
        batch = consumer.fetch()
        thread = threading.Thread(target=consumer.disconnect, args=[partition()])
        thread.start()
        wait_until(lambda: is_leaving(consumer, partition()))
        assert thread.is_alive()
        assert consumer.confirm(batch).offset == 5 * ROW
        thread.join(5)
        assert consumer.connect(partition()).offset == 5 * ROW


@pytest.mark.parametrize(("rollback", "offset"), [(True, 0), (False, 5)])
def test_a_batch_that_stays_out_counts_as_the_settings_say(server, rollback, offset):
    with connected(server, 5, rebalance_wait_ms=0, rollback=rollback) as consumer:
        batch = consumer.fetch()
        consumer.disconnect(partition())
        assert "not connected" in refused(404, consumer.confirm, batch)
        assert consumer.connect(partition()).offset == offset * ROW


def test_waiting_until_a_partition_is_connected(server):
    produce(server, numbered(1), where=partition())
    with concurrent.futures.ThreadPoolExecutor(1) as threads, consumer_of(server) as consumer:
        fetching = threads.submit(consumer.fetch, -1)
        assert not consumer.wait_until_ready(20)
        threading.Timer(0.1, consumer.connect, [partition()]).start()
        assert consumer.wait_until_ready(5_000)
        assert consumer.wait_until_ready(0)
        assert [record.value for record in fetching.result(5)] == numbered(1)


@only_direct
def test_connected_partitions_and_positions_are_told(server):
    produce(server, numbered(4), where=partition(3))
    with consumer_of(server) as consumer:
        for broker in (3, 1, 2):
            consumer.connect(partition(broker))
        assert consumer.connected == tuple(partition(broker) for broker in (1, 2, 3))
        take(consumer, 4)
        places = consumer.positions()
        assert {one: (place.offset, place.latest) for one, place in places.items()} == {
            partition(1): (0, 0),
            partition(2): (0, 0),
            partition(3): (4 * ROW, 4 * ROW),
        }
        assert all(abs(place.heard_at - time.time()) < 60 for place in places.values())


def test_the_status_of_each_partition_is_told(server):
    with connected(server, 4) as consumer:
        consumer.fetch()
        found = consumer.status()
        assert len(found) == 6
        assert found[partition(2)] == PartitionStatus(subscribable=True, connected=False)
        mine = found[partition()]
        assert (mine.connected, mine.state, mine.offset, mine.trouble) == (
            True,
            PartitionState.IN_USE,
            0,
            None,
        )


@only_direct
def test_what_cannot_be_read_any_more_is_released_by_itself(server):
    with consumer_of(server, heartbeat_period_ms=20) as consumer:
        for one in consumer.share():
            consumer.connect(one)
        change(server, "admin_modify_topic_info", topicName=TOPIC, brokerId=2, acceptSubscribe="false")
        wait_until(lambda: {one.broker_id for one in consumer.connected} == {1, 3})
        trouble = consumer.status()[partition(2)].trouble
        assert trouble.code == ErrCode.PARTITION_UNSUBSCRIBABLE
        change(server, "admin_modify_topic_info", topicName=TOPIC, brokerId=2, acceptSubscribe="true")
        wait_until(lambda: consumer.partitions()[partition(2)])
        consumer.connect(partition(2))
        assert consumer.status()[partition(2)].trouble is None


# Messages.


def test_partitions_take_turns(server):
    with consumer_of(server) as consumer:
        for one in consumer.share():
            produce(server, numbered(2), where=one)
            consumer.connect(one)
        batches = [consumer.fetch() for _ in range(6)]
        assert sorted(batch.partition for batch in batches) == list(consumer.connected)
        assert consumer.consume_status is ConsumeStatus.ALL_IN_USE
        assert consumer.fetch(0) is None


SERVERS = list(
    itertools.product(
        (False, True), ({}, {"halving_quirk": True}, {"moving_404": True, "max_entries": 5}), ((2, 1), (1, 3))
    )
)
BY_DAY = (0, 3, 10)
"""Each value of each parameter is in one of them."""


@pytest.mark.parametrize(
    ("locally", "settings", "shape"),
    [
        pytest.param(*case, marks=[] if number in BY_DAY else [pytest.mark.nightly])
        for number, case in enumerate(SERVERS)
    ],
)
def test_everything_comes_once_and_in_order(locally, settings, shape):
    sent = collections.defaultdict(list)
    with EmbeddedTubeMQ(topics={TOPIC: shape}, brokers=3, settings=EmbeddedSettings(**settings)) as server:
        with consumer_of(server, confirm_locally=locally) as consumer:
            for one in consumer.share():
                consumer.connect(one)
            for start in (0, 90):
                for one in consumer.connected:
                    values = [b"%s %d" % (str(one).encode(), number) for number in range(start, start + 10)]
                    produce(server, values, where=one)
                    sent[one] += values
                found = collections.defaultdict(list)
                while sum(map(len, found.values())) < 10 * len(consumer.connected):
                    batch = consumer.fetch()
                    assert batch is not None, consumer.status()
                    found[batch.partition] += [record.value for record in batch]
                    consumer.confirm(batch)
                assert found == {one: values[-10:] for one, values in sent.items()}
            assert consumer.fetch(200) is None
        with consumer_of(server) as after:
            for one in after.share():
                after.connect(one)
            assert after.fetch(200) is None


def test_a_batch_tells_where_it_is_from(server):
    produce(server, numbered(4), where=partition(), message_type="a", attributes={"key": "value"})
    with consumer_of(server) as consumer:
        consumer.connect(partition(), ROW)
        batch = consumer.fetch()
        assert isinstance(batch, Batch)
        assert (batch.topic, batch.partition, batch.offset, batch.latest) == (
            TOPIC,
            partition(),
            ROW,
            4 * ROW,
        )
        assert (batch.lag, len(batch)) == (3, 3)
        assert str(batch.broker) == server.brokers[1]
        assert [(record.value, record.offset) for record in batch] == [
            (b"%d" % number, number * ROW) for number in (1, 2, 3)
        ]
        assert batch.records[0].message_type == "a"
        assert batch.records[0].attributes["key"] == "value"
        assert {(record.topic, record.flag) for record in batch} == {(TOPIC, 1)}
        assert len({record.message_id for record in batch}) == 3
        assert consumer.confirm(batch.context) == Confirmed(partition(), batch.context, 4 * ROW, 4 * ROW)


def test_records_of_a_store_with_several_partitions_have_no_offsets(shared):
    with connected(shared, 4) as consumer:
        assert {record.offset for record in consumer.fetch()} == {None}


def test_filters_are_checked_again_and_what_is_for_others_is_confirmed(shared):
    """Brokers compare hashes: "Aa" and "BB" have the same."""
    for kind in ("Aa", "BB", "other"):
        produce(shared, [kind.encode()], where=partition(), message_type=kind)
    produce(shared, [b"without"], where=partition())
    with connected(shared, message_types={TOPIC: ["BB"]}) as consumer:
        assert take(consumer, 1) == [b"BB"]
        produce(shared, [b"more"], where=partition(), message_type="Aa")
        assert consumer.fetch(200) is None
        wait_until(lambda: consumer.fetch(0) is None and consumer.positions()[partition()].offset == 5 * ROW)


def test_a_filter_does_not_delay_messages_until_they_are_flushed():
    """By TubeMQ's defaults it does, for up to half a minute."""
    settings = EmbeddedSettings(query_priority=301)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3, settings=settings) as server:
        produce(server, [b"new"], where=partition(), message_type="a")
        with connected(server, message_types={TOPIC: ["a"]}) as consumer:
            assert [record.value for record in consumer.fetch(0)] == [b"new"]


def test_a_batch_that_is_rolled_back_comes_again(server):
    with connected(server, 3) as consumer:
        first = consumer.fetch()
        assert (first.topic, first.partition, first.offset, first.latest) == (TOPIC, partition(), 0, 3 * ROW)
        assert str(first.broker) == server.brokers[1]
        # A broker that stops commits what it has fetched for us, unless it was told to drop that.
        dropped = server.faults.delay(
            Method.COMMIT_OFFSET, 0, only=lambda request: not request.lastPackConsumed
        )
        assert consumer.confirm(first, consumed=False).offset == 0
        assert dropped.hits == 1
        assert "again" in refused(400, consumer.confirm, first)
        again = consumer.fetch()
        assert again.records == first.records
        assert again.context != first.context
        refused(400, consumer.confirm, first)
        assert consumer.confirm(again).offset == 3 * ROW
        assert consumer.fetch(50) is None


@pytest.mark.parametrize("timeout_ms", [0, 30])
def test_a_fetch_ends_in_time_though_partitions_do_not_rest(server, timeout_ms):
    with consumer_of(server, not_found_wait_ms=0) as consumer:
        for one in consumer.share():
            consumer.connect(one)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            assert threads.submit(consumer.fetch, timeout_ms).result(10) is None


@pytest.mark.parametrize("timeout_ms", [-1, 60_000])
def test_a_fetch_waits_for_messages_that_come_later(server, timeout_ms):
    asked = server.faults.delay(Method.GET_MESSAGE, 0)
    with consumer_of(server) as consumer, concurrent.futures.ThreadPoolExecutor(1) as threads:
        consumer.connect(partition())
        fetching = threads.submit(consumer.fetch, timeout_ms)
        wait_until(lambda: asked.hits or fetching.done(), 30)
        produce(server, numbered(3), where=partition())
        assert [record.value for record in fetching.result(30)] == numbered(3)


@in_one_test("context", [None, 7, b"1:demo:0@1", "", "1:demo:0", "demo", "1:demo:0@", "x:demo:0@1", "1::0@1"])
def test_a_context_that_is_none_is_refused(server, context):
    with connected(server) as consumer, pytest.raises(OptionError, match="TUBEMQ_CONFIRM_CONTEXT"):
        consumer.confirm(context)


@only_direct
def test_local_confirmations_go_out_with_the_next_fetch_or_with_the_partition(server):
    produce(server, numbered(3), where=partition())
    commits = server.faults.delay(Method.COMMIT_OFFSET, 0)
    with connected(server, confirm_locally=True) as consumer:
        confirmed = consumer.confirm(consumer.fetch())
        assert confirmed.offset is None
        assert commits.hits == 0
        consumer.disconnect(partition())
        assert consumer.connect(partition()).offset == 3 * ROW
        produce(server, numbered(2, 3), where=partition())
        consumer.confirm(consumer.fetch())
        produce(server, numbered(2, 5), where=partition())
        assert take(consumer, 2) == numbered(2, 5)


def test_several_threads_share_a_consumer(shared):
    produce(shared, numbered(600))
    found = collections.Counter()
    lock = threading.Lock()

    def work(consumer):
        while found.total() < 600:
            batch = consumer.fetch(300)
            if batch is not None:
                with lock:
                    found.update(record.value for record in batch)
                consumer.confirm(batch)

    with consumer_of(shared) as consumer:
        for one in consumer.share():
            consumer.connect(one)
        threads = [threading.Thread(target=work, args=[consumer]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert found == collections.Counter(numbered(600))


def test_the_reason_for_waiting_is_told(server):
    with consumer_of(server, not_found_wait_ms=3_600_000) as consumer:
        assert consumer.consume_status is ConsumeStatus.NOTHING_ASSIGNED
        produce(server, numbered(1), where=partition())
        consumer.connect(partition())
        assert consumer.consume_status is ConsumeStatus.READY
        batch = consumer.fetch()
        assert consumer.consume_status is ConsumeStatus.ALL_IN_USE
        consumer.confirm(batch)
        wait_until(lambda: consumer.fetch(0) is None)
        assert consumer.consume_status is ConsumeStatus.ALL_RESTING
        assert [int(status) for status in (ConsumeStatus.NOTHING_ASSIGNED, ConsumeStatus.ALL_RESTING)] == [
            406,
            407,
        ]


@only_direct
def test_flow_control_of_the_group_makes_partitions_rest(server):
    rules = '[{"type": 1, "rule": [{"zeroCnt": 1, "freqInMs": 3600000}]}]'
    ask(
        server.master_web,
        method="admin_add_group_resctrl_info",
        groupName="etl",
        flowCtrlEnable="true",
        flowCtrlInfo=rules,
        qryPriorityId=303,
        **TOKEN,
    )
    with consumer_of(server, heartbeat_period_ms=20) as consumer:
        wait_until(lambda: consumer._core.control.pause_after_empty(1, 0) == 3_600_000)
        consumer.connect(partition())
        assert consumer.fetch(100) is None
        produce(server, numbered(1), where=partition())
        assert consumer.fetch(300) is None
        assert consumer.consume_status is ConsumeStatus.ALL_RESTING


@only_direct
def test_a_group_with_limits_of_its_own_asks_brokers_to_leave_theirs_out(server):
    limit = {"start": "00:00", "end": "23:59", "dltInM": 21, "limitInM": 12, "freqInMs": 900}
    with connected(server) as consumer:
        own = server.faults.delay(Method.GET_MESSAGE, 0, only=lambda request: request.escFlowCtrl)
        assert consumer.fetch(0) is None
        assert own.hits == 0
        consumer._core.control.update_group(5, json.dumps([{"type": 0, "rule": [limit]}]))
        wait_until(lambda: consumer.fetch(0) is None and own.hits > 0)


@only_direct
def test_a_broker_that_asks_to_wait_is_waited_for(server):
    with connected(server, not_found_wait_ms=0) as consumer:
        refused = server.faults.answer(Method.GET_MESSAGE, ErrCode.SERVER_CONSUME_SPEED_LIMIT, times=1)
        produce(server, numbered(2), where=partition())
        assert consumer.fetch(0) is None
        assert consumer.consume_status is ConsumeStatus.ALL_RESTING
        assert take(consumer, 2) == numbered(2)
        assert refused.hits == 1


def let_consume_from_max(server, consumer):
    wait_until(lambda: consumer._core._session._settled)
    method = "admin_set_client_balance_group_consume_from_max"
    assert ask(server.master_web, method=method, groupName="etl", **TOKEN)["result"]


@only_direct
def test_an_administrators_reset_is_followed(server):
    produce(server, numbered(5), where=partition())
    with consumer_of(server, heartbeat_period_ms=20, follow_resets=True) as consumer:
        consumer.connect(partition(), 0)
        batch = consumer.fetch()
        let_consume_from_max(server, consumer)
        wait_until(lambda: consumer._core.state.connected[partition()]._reset_wanted)
        # A batch that is out is not disturbed.
        consumer.confirm(batch, consumed=False)
        assert consumer.fetch(50) is None
        assert consumer.positions()[partition()].offset == 5 * ROW
        produce(server, [b"new"], where=partition())
        assert take(consumer, 1) == [b"new"]


@only_direct
def test_an_administrators_reset_is_ignored_with_a_warning_by_default(server, caplog):
    produce(server, numbered(5), where=partition())
    with consumer_of(server, heartbeat_period_ms=20) as consumer:
        consumer.connect(partition(), 0)
        let_consume_from_max(server, consumer)
        wait_until(lambda: "follow_resets" in caplog.text)
        assert take(consumer, 5) == numbered(5)


def test_values_and_errors_can_be_pickled(server):
    with connected(server, 1) as consumer:
        batch = pickle.loads(pickle.dumps(consumer.fetch()))
        assert consumer.confirm(batch).offset == ROW
        with pytest.raises(ConsumeError) as error:
            consumer.confirm(batch)
        assert pickle.loads(pickle.dumps(error.value)).code == 400


def test_a_client_of_a_url_needs_no_topics(server):
    with (
        TubeMQClient.from_url(
            f"tubemq://{server.master}?group=etl&topics=demo&source_count=2&node_id=1"
        ) as client,
        client.assigned_consumer() as consumer,
    ):
        assert consumer.subscription.topics == (TOPIC,)
        assert consumer.node.node_id == 1
