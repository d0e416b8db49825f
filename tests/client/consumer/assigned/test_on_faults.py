"""Assigned consumers where things go wrong: nothing is lost, and what is confirmed does not come again.

Some of it goes wrong in TubeMQ's Java client; the tests of that say so.
"""

import collections
import dataclasses
import logging
import threading
import time

import pytest

from tests.client.assigned import (
    ROW,
    TOPIC,
    client_of,
    connected,
    consumer_of,
    fill,
    in_loop,
    keep_leases,
    numbered,
    partition,
    produce,
    take,
    upkeep,
)
from tests.client.ways import served
from tests.embedded.web import change, close_topic, remove_topic
from tests.waiting import wait_until
from tubemq_spark.client import ConsumePosition
from tubemq_spark.client.consumer.values import ConsumeStatus
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import ConsumeError, DataLossError, RpcError, TubeMQConnectionError, TubeMQError
from tubemq_spark.net import addresses, loop
from tubemq_spark.offsets.loss import Loss, LossRecorder
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.packed_strings import parse_partition

pytestmark = pytest.mark.sampled

COUNT = 24
STEP = 4
"""A fetch looks at so many records."""


@pytest.fixture(params=[(1, 1), (1, 2)], ids=["own store", "shared store"])
def server(request):
    settings = EmbeddedSettings(max_entries=STEP)
    with EmbeddedTubeMQ(topics={TOPIC: request.param}, brokers=3, settings=settings) as running:
        yield running


dense = served(max_entries=STEP)


def close_broker_for_reading(server, broker):
    change(server, "admin_modify_topic_info", topicName=TOPIC, brokerId=broker, acceptSubscribe="false")


def connect_all(consumer):
    for one in consumer.share():
        consumer.connect(one)


def read_through(consumer, sent):
    """Read everything, whatever confirmations fail; return what was confirmed, and what came again."""
    confirmed = collections.defaultdict(list)
    doubtful = collections.defaultdict(set)
    deadline = time.monotonic() + 30
    while any(len(set(confirmed[one])) < len(values) for one, values in sent.items()):
        assert time.monotonic() < deadline, consumer.status()
        batch = consumer.fetch(200)
        if batch is None:
            continue
        values = [record.value for record in batch]
        try:
            consumer.confirm(batch)
        except TubeMQError:
            doubtful[batch.partition].update(values)
        else:
            confirmed[batch.partition] += values
    return confirmed, doubtful


def answered(*what, **when):
    return lambda faults: faults.answer(*what, **when)


def lost(*what, **when):
    return lambda faults: faults.drop_connection(*what, **when)


FETCH, COMMIT, REGISTER = Method.GET_MESSAGE, Method.COMMIT_OFFSET, Method.PARTITION_REGISTER
LAYOUT, HEARTBEAT = Method.BALANCE_PARTITION_META, Method.BALANCE_HEARTBEAT
FAULTS = {
    "503 to fetches": answered(FETCH, 503, skip=2, times=4),
    "500 to fetches": answered(FETCH, 500, skip=2, times=3),
    "301 to a fetch": answered(FETCH, ErrCode.MOVED, skip=2, times=2),
    "404 where there are messages": answered(FETCH, 404, skip=2, times=3),
    "a broker that failed while it read": answered(FETCH, 0, skip=1, times=2),
    "lost leases": answered(FETCH, ErrCode.HB_NO_NODE, skip=3, times=3),
    "415 to fetches": answered(FETCH, ErrCode.CERTIFICATE_FAILURE, skip=3, times=2),
    "lost fetches": lost(FETCH, skip=3, times=3),
    "lost answers to fetches": lost(FETCH, skip=3, times=3, carried_out=True),
    "cut answers to fetches": lambda faults: faults.truncate(FETCH, skip=3, times=2),
    "garbled answers to fetches": lambda faults: faults.corrupt(FETCH, 12, skip=3, times=2),
    "lost commits": lost(COMMIT, skip=2, times=3),
    "lost answers to commits": lost(COMMIT, skip=2, times=3, carried_out=True),
    "401 to commits": answered(COMMIT, 401, skip=1, times=3),
    "503 to commits": answered(COMMIT, 503, skip=1, times=3),
    "503 to registers": answered(REGISTER, 503, times=1),
    "lost registers": lost(REGISTER, times=1),
    "lost answers to registers": lost(REGISTER, times=1, carried_out=True),
    "415 to a register": answered(REGISTER, ErrCode.CERTIFICATE_FAILURE, times=1),
    "415 to a lease's heartbeat": answered(Method.PARTITION_HEARTBEAT, ErrCode.CERTIFICATE_FAILURE, times=1),
    "lost leases' heartbeats": lost(Method.PARTITION_HEARTBEAT, times=3),
    "a lost layout": lost(LAYOUT, times=2),
    "a refused layout": answered(LAYOUT, 500, skip=1, times=1),
    "lost heartbeats": lost(HEARTBEAT, times=2),
    "411 to heartbeats": answered(HEARTBEAT, ErrCode.HB_NO_NODE, times=2),
    "411 to the layout": answered(LAYOUT, ErrCode.HB_NO_NODE, times=1),
    "a lost register at the master": lost(Method.BALANCE_REGISTER, times=1),
    "a lost close": lost(Method.CONSUMER_CLOSE, times=1),
}


@pytest.mark.parametrize("locally", [False, True], ids=["remote", "local"])
@pytest.mark.parametrize("fault", FAULTS)
def test_trouble_at_any_request_loses_nothing(server, fault, locally):
    sent = fill(server, COUNT)
    rule = FAULTS[fault](server.faults)
    with consumer_of(
        server, confirm_locally=locally, heartbeat_period_ms=50, rpc_timeout_ms=2_000
    ) as consumer:
        connect_all(consumer)
        confirmed, doubtful = read_through(consumer, sent)
        wait_until(lambda: rule.hits > 0 or fault == "a lost close" or (locally and "commits" in fault))
    for one, values in sent.items():
        once = list(dict.fromkeys(confirmed[one]))
        assert once == values, "in order, and nothing is missing"
        repeats = [value for value, count in collections.Counter(confirmed[one]).items() if count > 1]
        # With a local confirmation the broker may not have heard of it.
        assert locally or set(repeats) <= doubtful[one]
    assert rule.hits > 0 or (locally and "commits" in fault)


def test_a_killed_broker_costs_the_others_nothing_and_comes_back(server, caplog):
    sent = fill(server, COUNT)
    with consumer_of(server, heartbeat_period_ms=50, rpc_timeout_ms=1_000) as consumer:
        connect_all(consumer)
        server.faults.stop_broker(2)
        away = {one for one in sent if one.broker_id == 2}
        rest = {one: values for one, values in sent.items() if one not in away}
        confirmed, _ = read_through(consumer, rest)
        assert {one: confirmed[one] for one in rest} == rest
        wait_until(lambda: consumer.fetch(0) is None and away <= set(consumer.connected))
        wait_until(lambda: consumer.fetch(0) is None and all(consumer.status()[one].trouble for one in away))
        assert caplog.text.count("cannot be read; it is tried again") == len(away)
        server.faults.start_broker(2)
        back = {one: sent[one] for one in away}
        confirmed, _ = read_through(consumer, back)
        assert {one: confirmed[one] for one in away} == back
        assert not any(one.trouble for one in consumer.status().values())


def test_partitions_of_a_broker_that_the_master_gave_up_are_given_up_all_at_once(caplog):
    settings = EmbeddedSettings(broker_timeout_ms=0)
    with EmbeddedTubeMQ(topics={TOPIC: (4, 1)}, brokers=3, settings=settings) as server:
        sent = fill(server, COUNT)
        with consumer_of(server, rebalance_wait_ms=400) as consumer:
            connect_all(consumer)
            out = [consumer.fetch() for _ in sent]
            assert len({batch.partition for batch in out}) == 12
            server.faults.stop_broker(2)
            waits = []
            wait = consumer._core.state.wait_for_batches
            consumer._core.state.wait_for_batches = lambda partitions: (
                waits.append(partitions) or wait(partitions)
            )
            upkeep(consumer)
            assert [len(partitions) for partitions in waits] == [4], "one wait for all"
            assert {one.broker_id for one in consumer.connected} == {1, 3}
            assert caplog.text.count("is given up") == 4
            server.faults.start_broker(2)
            for batch in out:
                if batch.partition.broker_id != 2:
                    consumer.confirm(batch)
            wait_until(lambda: len(consumer.share()) == 12)
            connect_all(consumer)
            back = {one: values for one, values in sent.items() if one.broker_id == 2}
            assert read_through(consumer, back)[0] == back


def test_a_broker_that_hangs_costs_the_others_no_lease(dense):
    """With Java's client each broker in turn is waited for, up to ten seconds."""
    with consumer_of(dense, rpc_timeout_ms=2_000) as consumer:
        connect_all(consumer)
        dense.faults.freeze_broker(2)
        heard = dense.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        upkeep(consumer)
        assert heard.hits == 2
        assert len(consumer.connected) == 3
        dense.faults.start_broker(2)


NEVER_MS = 3_600_000


def hang_at_masters(dense, *methods):
    """Answer nothing; consumers do not wait for that either when they leave."""
    return [dense.faults.hold(method) for method in (*methods, Method.CONSUMER_CLOSE)]


def leave_without_waiting(consumer):
    consumer._core._session._config = dataclasses.replace(consumer.config, rpc_timeout_ms=1)


def test_a_master_that_is_silent_costs_no_lease(dense):
    settings = {"heartbeat_period_ms": 20, "rpc_timeout_ms": NEVER_MS}
    with consumer_of(dense, **settings) as consumer:
        connect_all(consumer)
        wait_until(lambda: not consumer._core._session._lock.locked())
        hang_at_masters(dense, Method.BALANCE_HEARTBEAT, Method.BALANCE_PARTITION_META)
        wait_until(consumer._core._session._lock.locked)
        heard = dense.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        wait_until(lambda: heard.hits >= 9)
        leave_without_waiting(consumer)
        dense.faults.release()


def test_a_batch_that_is_out_costs_no_lease_of_other_partitions(dense):
    """Its partition is to be given up, and waits for it."""
    fill(dense, COUNT)
    settings = {"heartbeat_period_ms": 20, "rebalance_wait_ms": NEVER_MS}
    with consumer_of(dense, **settings) as consumer:
        connect_all(consumer)
        out = {batch.partition: batch for batch in (consumer.fetch() for _ in range(3))}
        close_broker_for_reading(dense, 2)
        wait_until(lambda: consumer._core._connecting._giving_up is not None)
        heard = dense.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        wait_until(lambda: heard.hits >= 9)
        assert len(consumer.connected) == 3
        consumer.confirm(out[partition(2)])
        wait_until(lambda: consumer.connected == (partition(1), partition(3)))
        for broker in (1, 3):
            consumer.confirm(out[partition(broker)])


def test_a_batch_that_is_never_confirmed_does_not_keep_a_consumer_from_closing(dense):
    fill(dense, COUNT)
    with consumer_of(dense, heartbeat_period_ms=20, rebalance_wait_ms=NEVER_MS) as consumer:
        connect_all(consumer)
        assert all(consumer.fetch() for _ in range(3))
        close_broker_for_reading(dense, 2)
        wait_until(lambda: consumer._core._connecting._giving_up is not None)
    wait_until(consumer._core._connecting._giving_up.done)


def test_a_token_that_one_broker_refuses_is_renewed_and_nothing_waits_for_that(dense):
    with consumer_of(dense, rpc_timeout_ms=NEVER_MS) as consumer:
        connect_all(consumer)
        first_heartbeat_is_over(consumer)
        dense.faults.answer(Method.PARTITION_HEARTBEAT, ErrCode.CERTIFICATE_FAILURE, broker=1)
        heard = dense.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        asked, _ = hang_at_masters(dense, Method.BALANCE_HEARTBEAT)
        for _ in range(2):
            keep_leases(consumer)
        wait_until(lambda: asked.hits == 1)
        assert set(consumer.missed_heartbeats().values()) == {2}
        assert heard.hits == 4, "those of the other two brokers"
        leave_without_waiting(consumer)
        dense.faults.release()


def test_a_broker_that_cannot_be_connected_to_costs_the_others_no_lease(dense, monkeypatch):
    """The resolver of names hangs, for one."""
    answer = threading.Event()
    resolve = addresses.addresses_of
    with consumer_of(dense, connect_timeout_ms=NEVER_MS) as consumer:
        connect_all(consumer)
        away = consumer._core.state.connected[partition(2)].endpoint

        def hang(endpoint):
            if endpoint == away:
                answer.wait(20)
            return resolve(endpoint)

        monkeypatch.setattr(addresses, "is_address", lambda host: False)
        monkeypatch.setattr(addresses, "addresses_of", hang)
        leases = consumer._core._leases
        loop.call_soon(leases._reader.connections.connected(away).close)
        heard = dense.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        for hits in (2, 4, 6):
            in_loop(leases.run_once)
            wait_until(lambda: len(leases._heartbeats) == 1)
            assert heard.hits == hits
        answer.set()
        wait_until(lambda: not len(leases._heartbeats))
        assert len(consumer.connected) == 3


def test_an_error_of_one_heartbeat_drops_no_partition(dense):
    """With Java's client it drops all partitions of the broker."""
    with consumer_of(dense) as consumer:
        connect_all(consumer)
        lost = dense.faults.drop_connection(Method.PARTITION_HEARTBEAT, times=3)
        upkeep(consumer)
        assert lost.hits == 3
        assert len(consumer.connected) == 3
        sent = fill(dense, COUNT)
        confirmed, _ = read_through(consumer, sent)
        assert confirmed == sent


def test_missed_heartbeats_are_counted_by_broker_and_told_once(dense, caplog):
    caplog.set_level(logging.INFO)
    with consumer_of(dense, rpc_timeout_ms=1_000) as consumer:
        connect_all(consumer)
        brokers = consumer._core.state.connected
        first, third = (brokers[partition(broker)].endpoint for broker in (1, 3))
        dense.faults.stop_broker(1)
        for _ in range(2):
            upkeep(consumer)
        dense.faults.answer(Method.PARTITION_HEARTBEAT, 500, broker=3, times=1)
        upkeep(consumer)
        assert consumer.missed_heartbeats() == {first: 3, third: 1}
        upkeep(consumer)
        assert consumer.missed_heartbeats() == {first: 4}
        dense.faults.start_broker(1)
        upkeep(consumer)
        assert consumer.missed_heartbeats() == {}
        assert caplog.text.count(f"no lease at {first} could be renewed") == 1
        assert caplog.text.count(f"leases at {first} are renewed again, after 4 missed heartbeats") == 1

        dense.faults.stop_broker(2)
        upkeep(consumer)
        consumer.disconnect(partition(2))
        upkeep(consumer)
        assert consumer.missed_heartbeats() == {}, "nothing is held there"
        dense.faults.start_broker(2)


def test_leases_are_kept_without_fetches():
    settings = EmbeddedSettings(lease_timeout_ms=1_000, scan_period_ms=50)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (1, 2)}, brokers=3, settings=settings) as server,
        consumer_of(server, heartbeat_period_ms=50) as consumer,
        consumer_of(server) as other,
    ):
        for number in (0, 1):
            consumer.connect(partition(1, number))
        heartbeats = server.faults.delay(Method.PARTITION_HEARTBEAT, 0)
        wait_until(lambda: heartbeats.hits >= 25, 30)
        for number in (0, 1):
            with pytest.raises(RpcError, match="410"):
                other.connect(partition(1, number))


def test_a_heartbeat_finds_out_that_a_lease_was_lost(dense, caplog):
    caplog.set_level(logging.INFO)
    sent = fill(dense, COUNT)
    with consumer_of(dense) as consumer:
        connect_all(consumer)
        dense.faults.forget_leases()
        upkeep(consumer)
        assert caplog.text.count("is registered again: its broker has forgotten us") == 3
        confirmed, _ = read_through(consumer, sent)
        assert confirmed == sent
        assert "cannot be read" not in caplog.text, "no fetch has to find it out"


@pytest.mark.parametrize("how", ["fetch", "heartbeat"])
def test_a_partition_that_another_consumer_took_is_given_up(dense, how, caplog):
    with consumer_of(dense) as consumer:
        connect_all(consumer)
        dense.faults.give_leases_away(broker=2)
        if how == "heartbeat":
            upkeep(consumer)
        else:
            wait_until(lambda: consumer.fetch(0) is None and len(consumer.connected) < 3)
        assert consumer.connected == (partition(1), partition(3))
        assert consumer.status()[partition(2)].trouble.code in (410, 412)
        assert "demo/2:0 is given up" in caplog.text


@pytest.mark.parametrize("server", [(1, 2)], ids=["two per broker"], indirect=True)
def test_a_given_up_partition_is_told_to_brokers_no_more(server):
    """With Java's client it is in one more heartbeat, and comes back as lost."""

    def told():
        """Return what each heartbeat of a period names, as broker and number."""
        sent = []
        rule = server.faults.delay(
            Method.PARTITION_HEARTBEAT, 0, only=lambda request: sent.append(list(request.partitionInfo))
        )
        upkeep(consumer)
        rule.cancel()
        infos = (sorted(map(parse_partition, texts), key=lambda info: info.partition) for texts in sent)
        return sorted([(info.broker_id, info.partition_id) for info in of_one] for of_one in infos)

    with consumer_of(server) as consumer:
        connect_all(consumer)
        assert told() == [[(broker, 0), (broker, 1)] for broker in (1, 2, 3)], "one to each broker"
        consumer.disconnect(partition(2))
        assert told() == [[(1, 0), (1, 1)], [(2, 1)], [(3, 0), (3, 1)]]
        consumer.disconnect(partition(2, 1))
        assert told() == [[(1, 0), (1, 1)], [(3, 0), (3, 1)]]


def test_a_heartbeat_loses_exactly_the_partitions_that_the_broker_names(caplog):
    caplog.set_level(logging.INFO)
    with (
        EmbeddedTubeMQ(topics={TOPIC: (1, 1), "other": (1, 1)}, brokers=3) as server,
        consumer_of(server, [TOPIC, "other"]) as consumer,
    ):
        connect_all(consumer)
        before = set(consumer.connected)
        server.faults.forget_leases("other", broker=1)
        server.faults.give_leases_away("other", broker=2)
        upkeep(consumer)
        assert set(consumer.connected) == before - {partition(2, topic="other")}
        registers = server.faults.delay(Method.PARTITION_REGISTER, 0)
        for where in consumer.connected:
            produce(server, [b"x"], where.topic, where)
        take(consumer, 5)
        assert registers.hits == 1
        assert "other/1:0 is registered again: its broker has forgotten us" in caplog.text


def test_a_batch_that_is_not_confirmed_in_time_comes_again(dense):
    """With Java's client it blocks its partition for ever."""
    with connected(dense, 3, confirm_timeout_ms=1_000) as consumer:
        first = consumer.fetch()
        assert consumer.consume_status is ConsumeStatus.ALL_IN_USE
        wait_until(lambda: keep_leases(consumer) or consumer.consume_status is ConsumeStatus.READY)
        again = consumer.fetch(5_000)
        assert again.records == first.records
        with pytest.raises(ConsumeError, match="in time") as late:
            consumer.confirm(first)
        assert late.value.code == 400
        assert consumer.confirm(again).offset == 3 * ROW


def test_a_batch_that_is_not_confirmed_in_time_may_count_as_consumed(dense):
    with connected(dense, 3, confirm_timeout_ms=50, rollback=False) as consumer:
        assert [record.value for record in consumer.fetch()] == numbered(3)
        produce(dense, [b"next"], where=partition())
        assert [record.value for record in consumer.fetch()] == [b"next"]


def first_heartbeat_is_over(consumer):
    """Return when nothing asks for the layout by itself any more."""
    wait_until(lambda: consumer._core._session._settled and not consumer._core._session._lock.locked())


def test_an_error_of_the_layout_is_told_and_hides_behind_no_cache(dense):
    """With Java's client the next ten seconds answer with what was known, as if all were well."""
    with consumer_of(dense, layout_period_ms=3_600_000) as consumer:
        before = consumer.partitions()
        first_heartbeat_is_over(consumer)
        consumer._core._session._layout_at -= 3_600
        dense.faults.answer(Method.BALANCE_PARTITION_META, ErrCode.BAD_REQUEST, times=2)
        for _ in range(2):
            with pytest.raises(RpcError, match="400"):
                consumer.partitions()
        assert consumer.partitions() == before


def test_the_master_is_not_asked_for_the_layout_all_the_time(dense):
    with consumer_of(dense, layout_period_ms=3_600_000) as consumer:
        asked = dense.faults.hold(Method.BALANCE_PARTITION_META)
        assert consumer.partitions()
        assert asked.hits == 0
        first_heartbeat_is_over(consumer)
        consumer._core._session._layout_at -= 3_600
        threads = [threading.Thread(target=consumer.partitions) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: asked.hits == 1)
        again = dense.faults.delay(Method.BALANCE_PARTITION_META, 0)
        asked.release()
        for thread in threads:
            thread.join()
        assert asked.hits + again.hits == 1


def test_a_master_that_forgot_the_consumer_answers_for_the_layout_at_once(dense):
    """With Java's client only a heartbeat registers again."""
    with consumer_of(dense) as consumer:
        dense.faults.forget_clients()
        assert len(consumer.partitions()) == 3


def test_a_register_that_fails_once_still_begins_where_it_should(dense):
    """With Java's client the second attempt begins with the first message instead of the last."""
    produce(dense, numbered(5), where=partition())
    with consumer_of(dense, consume_position=ConsumePosition.LATEST) as consumer:
        failed = dense.faults.answer(Method.PARTITION_REGISTER, 503, times=1)
        assert consumer.connect(partition()).offset == 5 * ROW
        assert failed.hits == 1


@pytest.mark.parametrize(("code", "tries"), [(410, 1), (503, 2), (403, 1), (400, 1)])
def test_a_register_is_repeated_only_if_that_may_help(dense, code, tries):
    """With Java's client it is always repeated."""
    with consumer_of(dense) as consumer:
        refused = dense.faults.answer(
            Method.PARTITION_REGISTER, code, only=lambda request: request.opType == OpType.REGISTER
        )
        with pytest.raises(RpcError, match=str(code)) as error:
            consumer.connect(partition())
        assert refused.hits == tries
        assert "a test asked for this answer" in str(error.value)


def test_a_register_whose_answer_is_lost_keeps_no_other_consumer_away(dense):
    with consumer_of(dense) as consumer, consumer_of(dense) as other:
        dense.faults.drop_connection(Method.PARTITION_REGISTER, times=2, carried_out=True)
        with pytest.raises(TubeMQConnectionError):
            consumer.connect(partition())
        other.connect(partition())


def test_two_threads_connect_to_a_partition_once(dense):
    """With Java's client both register it."""
    with consumer_of(dense) as consumer:
        registers = dense.faults.delay(Method.PARTITION_REGISTER, 200)
        threads = [threading.Thread(target=consumer.connect, args=[partition()]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        assert consumer.connected == (partition(),)
        consumer.fetch(50)
        assert registers.hits == 1


def test_closing_while_a_fetch_hangs_ends_soon(dense):
    with client_of(dense, rpc_timeout_ms=500) as client:
        consumer = client.assigned_consumer(TOPIC).open()
        consumer.connect(partition())
        held = dense.faults.hold(Method.GET_MESSAGE)
        errors = []

        def fetch():
            try:
                consumer.fetch(-1)
            except ConsumeError as error:
                errors.append(error.code)

        thread = threading.Thread(target=fetch)
        thread.start()
        wait_until(lambda: held.hits >= 1)
        consumer.close()
        thread.join(5)
        assert errors == [420]


def test_closing_beside_a_broker_that_hangs_ends_soon(caplog):
    caplog.set_level(logging.DEBUG, "tubemq_spark.client.broker.lease")
    with EmbeddedTubeMQ(topics={TOPIC: (1, 20)}, brokers=3) as server:
        with consumer_of(server, rpc_timeout_ms=1_200) as consumer:
            connect_all(consumer)
            assert len(consumer.connected) == 60
            server.faults.freeze_broker(2)
        server.faults.start_broker(2)
        # One time-out, and not one for each of its partitions.
        assert caplog.text.count("could not release demo/2:") == 1
        with consumer_of(server) as other:
            for one in other.share():
                if one.broker_id != 2:
                    other.connect(one)


def test_expired_records_are_a_loss_and_the_others_go_on(dense):
    sent = fill(dense, COUNT)
    with consumer_of(dense) as consumer:
        connect_all(consumer)
        consumer.confirm(consumer.fetch())
        dense.faults.apply_retention(TOPIC)
        left = set(sent)
        for _ in sent:
            with pytest.raises(DataLossError, match="EXPIRED"):
                consumer.fetch()
            (lost,) = left - set(consumer.connected)
            left.remove(lost)
            assert isinstance(consumer.status()[lost].trouble, DataLossError)
        # A consumer that connects without an offset begins where the log does.
        assert consumer.connect(partition()).offset == COUNT * ROW


def test_expired_records_can_be_passed_over(dense):
    losses = LossRecorder()
    fill(dense, COUNT)
    with consumer_of(dense, on_loss=losses) as consumer:
        connect_all(consumer)
        dense.faults.apply_retention(TOPIC)
        produce(dense, [b"after"], where=partition())
        assert take(consumer, 1) == [b"after"]
    assert (Loss.EXPIRED, 0, COUNT * ROW, COUNT) in [
        (loss.loss, loss.start, loss.end, loss.rows) for loss in losses.records
    ]


def test_a_damaged_message_is_a_loss(dense):
    """With Java's client it vanishes."""
    produce(dense, [b"good", b"bad and evil", b"fine"], where=partition())
    losses = LossRecorder()
    dense.faults.corrupt(Method.GET_MESSAGE, b"bad and evil")
    with connected(dense) as consumer:
        with pytest.raises(DataLossError, match="CORRUPT"):
            consumer.fetch()
        assert consumer.connected == ()
    with connected(dense, on_loss=losses) as consumer:
        assert take(consumer, 2) == [b"good", b"fine"]
    assert [(loss.loss, loss.rows) for loss in losses.records] == [(Loss.CORRUPT, 1)]


def test_a_log_that_was_cut_is_a_loss(dense):
    with connected(dense, 8) as consumer:
        take(consumer, 8)
        dense.faults.lose_messages(TOPIC, 3)
        with pytest.raises(DataLossError, match="MOVED_BACK"):
            consumer.fetch()


def test_a_topic_that_is_removed_is_released(dense):
    with consumer_of(dense, heartbeat_period_ms=50) as consumer:
        connect_all(consumer)
        close_topic(dense, TOPIC)
        remove_topic(dense, TOPIC)
        deadline = time.monotonic() + 10
        while partition(1) in consumer.connected:
            assert time.monotonic() < deadline
            consumer.fetch(20)
        assert consumer.connected == (partition(2), partition(3))


def test_a_partition_rests_after_an_error_for_the_time_that_fits_the_code(dense):
    with connected(dense, 3) as consumer:
        cache = consumer._core.state.cache
        now = 0.0
        cache._clock = lambda: now

        def rest_s():
            wait_until(lambda: consumer.fetch(0) is None and cache.wait_s() is not None)
            return cache.wait_s()

        dense.faults.forget_leases()
        assert rest_s() == pytest.approx(0.3)
        now += 0.3
        for code, seconds in {403: 2, 301: 0.2, 500: 0.3}.items():
            dense.faults.answer(Method.GET_MESSAGE, code, times=1)
            assert rest_s() == pytest.approx(seconds)
            now += seconds
        assert take(consumer, 3) == numbered(3), "it was registered again"


def test_a_refusal_for_good_gives_the_partition_up_and_is_told(dense):
    with consumer_of(dense) as consumer:
        connect_all(consumer)
        dense.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST, broker=2)
        with pytest.raises(RpcError, match="400"):
            take(consumer, 1)
        assert consumer.connected == (partition(1), partition(3))


def test_a_broker_that_is_away_is_told_when_connecting(dense):
    with consumer_of(dense) as consumer:
        dense.faults.stop_broker(2)
        with pytest.raises(TubeMQConnectionError):
            consumer.connect(partition(2))
        dense.faults.start_broker(2)
        consumer.connect(partition(2))


def test_tokens_that_expired_are_renewed():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=3) as server, consumer_of(server) as consumer:
        connect_all(consumer)
        refused = server.faults.answer(
            Method.PARTITION_REGISTER, ErrCode.CERTIFICATE_FAILURE, times=1, skip=1
        )
        renewed = server.faults.delay(Method.BALANCE_HEARTBEAT, 0)
        consumer.disconnect(partition(1))
        consumer.connect(partition(1))
        assert refused.hits == 1
        assert renewed.hits == 1
