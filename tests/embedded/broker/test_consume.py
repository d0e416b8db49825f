"""Consuming over the wire: ownership, positions, limits, and the order of all checks."""

import dataclasses
import json
import time

import pytest

from tests.embedded.wire import BrokerClient, fetch_request
from tests.waiting import wait_until
from tubemq_spark.embedded.broker import groups as groups_module
from tubemq_spark.embedded.config.catalog import TopicStatus
from tubemq_spark.embedded.server import EmbeddedSettings, TopicSpec

QUICK = EmbeddedSettings(lease_timeout_ms=60, scan_period_ms=10)
NEVER_SCANNED = EmbeddedSettings(lease_timeout_ms=1, scan_period_ms=3_600_000)


def payloads(answer):
    return [message.payLoadData for message in answer.messages]


def numbered(count):
    return [b"%03d" % number for number in range(count)]


@pytest.fixture
def five(broker):
    """A broker with five messages in the one partition of ``demo``."""
    broker.send(*numbered(5))
    return broker


# --- the example of the specification


def test_the_worked_example(five):
    registered = five.register()
    assert (registered.currOffset, registered.maxOffset, registered.errMsg) == (0, 140, "OK!")
    first = five.fetch(lastPackConsumed=True)
    assert payloads(first) == numbered(5)
    assert (first.currOffset, first.maxOffset, first.currDataDlt) == (0, 140, 0)
    assert (first.minLimitTime, first.escFlowCtrl, first.requireSlow) == (0, False, False)
    assert first.errMsg == "OK!"
    assert payloads(five.fetch(lastPackConsumed=False)) == numbered(5), "not confirmed: again"
    assert payloads(five.fetch()) == numbered(5), "absent means false"
    committed = five.commit(lastPackConsumed=True)
    assert (committed.success, committed.currOffset, committed.maxOffset) == (True, 140, 140)
    end = five.fetch(lastPackConsumed=True)
    assert (end.success, end.errCode, end.errMsg) == (False, 404, "The request offset reached maxOffset!")
    assert (end.currOffset, end.currDataDlt, end.minLimitTime) == (-1, -1, -1)
    assert not end.HasField("maxOffset")


def test_the_next_fetch_confirms_the_last(five):
    five.register()
    five.fetch(lastPackConsumed=True)
    assert five.fetch(lastPackConsumed=True).errCode == 404
    five.unregister(status=1)
    assert five.register().currOffset == 140


def test_commit_confirms_unless_it_says_no_and_twice_is_harmless(five):
    five.register()
    five.fetch()
    assert five.commit(lastPackConsumed=False).currOffset == 0
    assert payloads(five.fetch()) == numbered(5)
    assert five.commit().currOffset == 140, "absent means true"
    assert five.commit().currOffset == 140


def test_a_fetch_that_finds_nothing_for_the_partition_moves_on_at_once(start, connect):
    broker = connect(start(topics={"demo": (1, 2)}))
    broker.send(*numbered(4), partition_id=1)
    broker.register(0)
    empty = broker.fetch(0)
    assert (empty.success, empty.errCode, payloads(empty), empty.currOffset) == (True, 200, [], 0)
    assert broker.fetch(0).errCode == 404
    assert broker.commit(0).currOffset == 112


def test_a_client_that_does_not_read_its_answers_makes_the_broker_read_no_more(tubemq, broker):
    """300 fetches of 50 bytes in one write: their answers together would have 300 MB."""
    broker.send(bytes(1 << 20))
    broker.register()
    fetches = [fetch_request(lastPackConsumed=False, manualCommitOffset=False)] * 300
    for request in fetches:
        broker.connection.send_request(*request, 10_000)
    broker.socket.sendall(broker.connection.data_to_send())
    broker.socket.recv(1)
    assert tubemq.stats().messages_out < 150


def test_manual_mode_reads_ahead_and_one_commit_confirms_all(start, connect):
    broker = connect(start(settings=EmbeddedSettings(max_entries=2)))
    broker.send(*numbered(5))
    broker.register()
    seen = [broker.fetch(manualCommitOffset=True, lastPackConsumed=flag) for flag in (True, False, True)]
    assert [(answer.currOffset, payloads(answer)) for answer in seen] == [
        (0, [b"000", b"001"]),
        (56, [b"002", b"003"]),
        (112, [b"004"]),
    ]
    assert broker.fetch(manualCommitOffset=True).errCode == 404
    assert payloads(broker.fetch(lastPackConsumed=False)) == [b"000", b"001"], "committed is still 0"
    broker.commit(lastPackConsumed=False)
    broker.fetch(manualCommitOffset=True)
    broker.fetch(manualCommitOffset=True)
    assert broker.commit().currOffset == 112


def test_partitions_of_a_store_share_offsets_and_max(start, connect):
    broker = connect(start(topics={"demo": (1, 3)}))
    for number, payload in enumerate(numbered(9)):
        broker.send(payload, partition_id=number % 3)
    for partition_id in range(3):
        assert broker.register(partition_id).maxOffset == 252
        assert broker.drain(partition_id) == numbered(9)[partition_id::3]
        assert broker.commit(partition_id).currOffset == 252


# --- register


def test_register_again_takes_over_the_filter(five):
    five.send(b"typed", msgType="kind")
    five.register(filterCondStr=["kind"])
    assert five.drain() == [b"typed"]
    five.register(currOffset=0)
    assert five.drain() == [*numbered(5), b"typed"]


def test_groups_do_not_see_each_other(tubemq, five, connect):
    other = connect(tubemq, group="other")
    five.register()
    other.register()
    assert five.drain() == other.drain() == numbered(5)


def test_a_partition_has_one_owner_in_a_group(tubemq, five, connect):
    other = connect(tubemq, client="consumer-2")
    five.register()
    refused = other.register()
    assert (refused.success, refused.errCode, refused.currOffset) == (False, 410, -1)
    assert (
        refused.errMsg == "[Duplicated Register] Partition 1#group:demo:0 has been registered by consumer-1"
    )
    assert not refused.HasField("maxOffset")
    assert (other.fetch().errCode, other.unregister().errCode) == (412, 412)
    assert other.fetch().errMsg == (
        "[Duplicated Request] Partition=group:demo:0 of Broker=1 has been consumed by consumer-1;"
        "Current consumer consumer-2"
    )
    assert (other.commit().errCode, other.commit().currOffset) == (401, -1)
    five.unregister()
    assert other.register().success


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"clientId": ""}, 400, "Request miss necessary clientId data!"),
        ({"topicName": " "}, 400, "Request miss necessary topicName data!"),
        ({"topicName": "nosuch"}, 403, "topicName nosuch not existed, please check your configure"),
        ({"groupName": ""}, 400, "Request miss necessary groupName data!"),
        ({"groupName": "g" * 1025}, 400, "groupName's length over max value, allowed max length is 1024"),
        ({"opType": 30}, 400, "Invalid request:30"),
        (
            {"partitionId": 10_000},
            500,
            "Register broker failure!, exception is Wrong partition value 10000,valid partitions in (0,0)",
        ),
    ],
)
def test_what_register_refuses(broker, fields, code, text):
    answer = broker.register(**fields)
    assert (answer.success, answer.errCode, answer.errMsg, answer.currOffset) == (False, code, text, -1)


def test_names_are_taken_without_blanks_around_them(five):
    assert five.register(clientId=" consumer-1 ", groupName=" group ", topicName=" demo ").success
    assert payloads(five.fetch()) == numbered(5)


# --- unregister


@pytest.mark.parametrize(("status", "start_at"), [(0, 140), (1, 0), (9, 0)])
def test_unregister_confirms_with_status_0_only(five, status, start_at):
    five.register()
    five.fetch()
    answer = five.unregister(status=status)
    assert (answer.success, answer.errCode, answer.currOffset) == (True, 200, -1)
    assert five.fetch().errCode == 411
    assert five.register().currOffset == start_at


def test_unregister_without_register(five):
    answer = five.unregister()
    assert (answer.errCode, answer.currOffset) == (411, -1)
    five.register()
    five.unregister()
    assert five.unregister().errCode == 411, "the group has a position now, but no consumer"


# --- heartbeat and time-outs


def test_a_heartbeat_names_what_is_not_held(tubemq, start, closing, connect):
    server = start(topics={"demo": (1, 3)})
    mine, other = connect(server), connect(server, client="consumer-2")
    mine.register(0)
    other.register(1)
    parts = [f"1:10.0.0.1:8123#demo:{number}" for number in range(3)]
    answer = mine.heartbeat(*parts)
    assert (answer.success, answer.errCode, answer.hasPartFailure, answer.requireAuth) == (
        True,
        200,
        True,
        False,
    )
    assert list(answer.failureInfo) == [f"412:{parts[1]}", f"411:{parts[2]}"]
    good = mine.heartbeat(parts[0])
    assert (good.hasPartFailure, list(good.failureInfo)) == (False, [])


@pytest.mark.parametrize(("field", "name"), [("client", "clientId"), ("group", "groupName")])
def test_a_heartbeat_needs_names(broker, field, name):
    setattr(broker, field, "")
    answer = broker.heartbeat()
    assert (answer.success, answer.errCode, answer.errMsg) == (
        False,
        400,
        f"Request miss necessary {name} data!",
    )


def test_a_heartbeat_with_a_text_that_is_no_partition_is_an_exception_as_in_java(broker):
    with pytest.raises(AssertionError, match="InvocationTargetException"):
        broker.heartbeat("1:10.0.0.1:8123:demo:0")
    assert broker.heartbeat().success


def test_a_silent_consumer_loses_its_partition_and_what_is_in_flight(start, connect):
    server = start(settings=QUICK)
    broker, other = connect(server), connect(server, client="consumer-2")
    broker.send(*numbered(5))
    broker.register()
    broker.fetch()
    wait_until(lambda: not server._state.leases.all())
    assert broker.fetch().errCode == 411
    assert broker.commit().errCode == 401
    assert list(broker.heartbeat("1:h:1#demo:0").failureInfo) == ["411:1:h:1#demo:0"]
    assert other.register().currOffset == 0


@pytest.mark.parametrize("keep_alive", ["fetch", "heartbeat"])
def test_fetch_and_heartbeat_keep_a_partition_commit_does_not(start, connect, keep_alive):
    server = start(settings=EmbeddedSettings(lease_timeout_ms=400, scan_period_ms=10))
    broker, leases, now_ms = connect(server), server._state.leases, [0]
    leases._now_ms = lambda: now_ms[0]
    broker.register()
    for _ in range(5):
        now_ms[0] += 100
        broker.fetch() if keep_alive == "fetch" else broker.heartbeat("1:h:1#demo:0")
        assert not leases.expired()
    assert leases.all()
    for _ in range(4):
        now_ms[0] += 100
        broker.commit()
    wait_until(lambda: not leases.all())


def test_messages_that_a_dead_consumer_fetched_are_not_consumed(start, connect, tmp_path):
    """Not even if the server shuts down in order before another consumer gets the partition."""
    server = start(tmp_path, settings=NEVER_SCANNED)
    dead = connect(server)
    dead.send(*numbered(3))
    dead.register()
    assert len(dead.fetch().messages) == 3
    time.sleep(0.01)
    other = connect(server, client="other")
    assert other.register().errCode == 410
    server.close()
    with server.reopened() as again:
        assert connect(again).register().currOffset == 0


def test_a_consumer_that_finds_a_dead_owner_is_refused_once_more(start, connect):
    server = start(settings=NEVER_SCANNED)
    dead, heir = connect(server), connect(server, client="consumer-2")
    dead.register()
    wait_until(lambda: all(map(server._state.leases.has_expired, server._state.leases.all().values())))
    answer = heir.register()
    assert (answer.errCode, answer.errMsg) == (
        410,
        "[Duplicated Register] Remove Invalid Consumer Register consumer-1#group:demo:0",
    )
    assert dead.fetch().errCode == 411
    assert heir.register().success


def test_a_late_owner_that_was_not_replaced_goes_on(start, connect):
    """As in TubeMQ, where an expired lease counts until the next scan."""
    server = start(settings=NEVER_SCANNED)
    broker = connect(server)
    broker.send(b"x")
    broker.register()
    wait_until(lambda: all(map(server._state.leases.has_expired, server._state.leases.all().values())))
    assert payloads(broker.fetch()) == [b"x"]


# --- fetch


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": ""}, 400),
        ({"groupName": ""}, 400),
        ({"topicName": ""}, 400),
        ({"topicName": "nosuch"}, 403),
        ({"groupName": "stranger"}, 411),
        ({"partitionId": 1}, 411),
        ({"clientId": "stranger"}, 412),
    ],
)
def test_what_fetch_refuses(five, fields, code):
    five.register()
    answer = five.fetch(**fields)
    assert (answer.success, answer.errCode) == (False, code)
    assert (answer.currOffset, answer.currDataDlt, answer.minLimitTime, answer.escFlowCtrl) == (
        -1,
        -1,
        0,
        False,
    )


def test_an_empty_store_has_its_own_404(broker):
    broker.register()
    answer = broker.fetch()
    assert (answer.errCode, answer.errMsg) == (404, "Request offset reached cache maxOffset")


def test_the_first_fetch_is_a_smaller_one(start, connect):
    broker = connect(start(settings=EmbeddedSettings(first_transfer_bytes=200, transfer_bytes=400)))
    broker.send(*(b"x" * 48 for _ in range(20)))
    broker.register()
    sizes = [len(broker.fetch(lastPackConsumed=True).messages) for _ in range(3)]
    assert sizes == [2, 4, 4]
    broker.register()
    assert len(broker.fetch().messages) == 2, "first after a register again"


def test_data_lag_is_what_is_left_in_the_store(start, connect):
    broker = connect(start(settings=EmbeddedSettings(max_entries=2)))
    broker.send(*(b"x" * 48 for _ in range(5)))
    broker.register()
    assert [broker.fetch(lastPackConsumed=True).currDataDlt for _ in range(3)] == [300, 100, 0]


def test_a_message_above_the_limit_comes_alone(start, connect):
    broker = connect(start(settings=EmbeddedSettings(first_transfer_bytes=10, transfer_bytes=10)))
    broker.send(b"x" * 50_000, b"y" * 50_000)
    broker.register()
    assert payloads(broker.fetch(lastPackConsumed=True)) == [b"x" * 50_000]
    assert payloads(broker.fetch(lastPackConsumed=True)) == [b"y" * 50_000]


def test_a_consumer_has_at_most_500_types(broker):
    assert broker.register(filterCondStr=[str(number) for number in range(500)]).success
    answer = broker.register(filterCondStr=[str(number) for number in range(501)])
    assert (answer.errCode, answer.errMsg) == (
        400,
        "filterCondStr's item count over max allowed count (500)!",
    )


def test_filters_match_the_hash_of_the_trimmed_type(broker):
    for number, message_type in enumerate(["fA", " fA ", "fB", None, "Aa"]):
        broker.send(b"%d" % number, **({} if message_type is None else {"msgType": message_type}))
    broker.register(filterCondStr=[" fA", "", " "])
    assert broker.drain() == [b"0", b"1"]
    broker.register(currOffset=0, filterCondStr=["BB"])
    assert broker.drain() == [b"4"], "same hash as Aa: clients filter again"
    broker.register(currOffset=0, filterCondStr=[" "])
    assert broker.drain() == [b"0", b"1", b"2", b"3", b"4"], "no filter"


def test_a_filtered_fetch_that_finds_nothing_moves_on(five):
    five.register(filterCondStr=["kind"])
    answer = five.fetch()
    assert (answer.errCode, payloads(answer)) == (200, [])
    assert five.fetch().errCode == 404


def test_half_of_the_entries_with_the_quirk(start, connect):
    broker = connect(start(settings=EmbeddedSettings(halving_quirk=True)))
    broker.send(*numbered(10))
    broker.register()
    sizes = []
    while (answer := broker.fetch(lastPackConsumed=True)).success:
        sizes.append(len(answer.messages))
    assert sizes == [5, 3, 1, 1]


def test_404_that_moves_with_the_quirk(start, connect):
    broker = connect(start(topics={"demo": (1, 2)}, settings=EmbeddedSettings(moving_404=True)))
    broker.send(*numbered(4), partition_id=1)
    broker.register(0)
    answer = broker.fetch(0)
    assert (answer.success, answer.errCode, answer.currOffset) == (False, 404, -1)
    assert answer.errMsg != "The request offset reached maxOffset!"
    assert broker.commit(0).currOffset == 112
    broker.send(b"mine", partition_id=0)
    assert payloads(broker.fetch(0)) == [b"mine"]


# --- what a consumer may see

SLOW_TO_FLUSH = TopicSpec(flush_messages=1_000_000, flush_interval_ms=1_000_000)


@pytest.mark.parametrize(
    ("priority", "filtered", "sees"),
    [
        (None, False, True),
        (None, True, True),
        (-2, False, True),
        (301, False, True),
        (301, True, False),
        (303, True, True),
        (103, False, False),
        (103, True, True),
        (202, False, True),
    ],
)
def test_the_priority_says_who_sees_what_is_not_flushed(start, connect, priority, filtered, sees):
    server = start(topics={"demo": SLOW_TO_FLUSH})
    broker = connect(server)
    broker.send(b"x", msgType="kind")
    fields = {"filterCondStr": ["kind"] if filtered else []}
    if priority is not None:
        fields["qryPriorityId"] = priority
    assert broker.register(**fields).maxOffset == 28, "register tells the end in memory"
    answer = broker.fetch()
    assert answer.success is sees
    if not sees:
        assert (answer.errCode, answer.errMsg) == (404, "current offset is exceed max file offset")
        server._state.stores.all()["demo", 0].flush()
        answer = broker.fetch()
    assert (payloads(answer), answer.maxOffset) == ([b"x"], 28)


def test_a_flushed_reader_is_told_the_flushed_end(start, connect):
    server = start(topics={"demo": SLOW_TO_FLUSH})
    broker = connect(server)
    broker.send(b"1")
    server._state.stores.all()["demo", 0].flush()
    broker.send(b"2")
    broker.register(qryPriorityId=101)
    answer = broker.fetch(lastPackConsumed=True)
    assert (payloads(answer), answer.maxOffset) == ([b"1"], 28)
    assert answer.currDataDlt == 53
    assert broker.fetch(lastPackConsumed=True).errCode == 404
    assert broker.commit().maxOffset == 56


def test_the_priority_1_alone_has_registers_and_commits_tell_the_end_on_the_disk(start, connect):
    broker = connect(start(topics={"demo": SLOW_TO_FLUSH}))
    broker.send(b"x")

    for priority, told in ((1, 0), (101, 28)):
        assert broker.register(qryPriorityId=priority, readStatus=0, currOffset=0).maxOffset == told
        assert broker.commit().maxOffset == told


def test_a_heartbeat_changes_the_priority(start, connect):
    broker = connect(start(topics={"demo": SLOW_TO_FLUSH}))
    broker.send(b"x")
    broker.register(qryPriorityId=101)
    assert broker.fetch().errCode == 404
    broker.heartbeat("1:h:1#demo:0", qryPriorityId=303)
    assert payloads(broker.fetch()) == [b"x"]
    broker.heartbeat("1:h:1#demo:0")
    assert payloads(broker.fetch()) == [b"x"], "none: the broker's own"


def test_the_brokers_own_priority_can_be_tubemqs(start, connect):
    broker = connect(start(topics={"demo": SLOW_TO_FLUSH}, settings=EmbeddedSettings(query_priority=301)))
    broker.send(b"x", msgType="kind")
    broker.register(filterCondStr=["kind"])
    assert broker.fetch().errCode == 404


# --- outside the store


SMALL_FILES = EmbeddedSettings(data_segment_bytes=1, index_segment_bytes=1)


def test_a_stored_offset_below_the_start_is_told_and_moved_at_the_fetch(start, connect):
    server = start(settings=SMALL_FILES)
    broker = connect(server)
    broker.register()
    for payload in numbered(5):
        broker.send(payload)
    server.apply_retention("demo", older_than_ms=0)
    broker.send(b"new")
    assert broker.register().currOffset == 0, "register tells what is stored, also below the start"
    answer = broker.fetch()
    assert (answer.currOffset, payloads(answer)) == (140, [b"new"])
    assert broker.register(currOffset=28).currOffset == 140, "a wish is clamped"


def test_a_fetch_of_a_fully_expired_log_is_at_its_end(start, connect):
    server = start()
    broker = connect(server)
    broker.send(*numbered(5))
    broker.register()
    server.apply_retention("demo", older_than_ms=0)
    answer = broker.fetch()
    assert (answer.errCode, answer.errMsg) == (404, "The request offset reached maxOffset!")
    assert broker.commit().currOffset == 140


def test_a_race_with_expiry_is_301(start, connect, monkeypatch):
    server = start(settings=SMALL_FILES)
    broker = connect(server)
    broker.send(b"x")
    broker.register()
    store = server._state.stores.all()["demo", 0]
    read = store.read

    def expired_meanwhile(*arguments):
        store.expire(0, roll=True)
        return read(*arguments)

    monkeypatch.setattr(store, "read", expired_meanwhile)
    answer = broker.fetch()
    assert (answer.success, answer.errCode, answer.currOffset) == (False, 301, -1)


# --- commit


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"clientId": ""}, 400),
        ({"groupName": ""}, 400),
        ({"topicName": ""}, 400),
        ({"topicName": "nosuch"}, 403),
        ({"partitionId": 1}, 403),
        ({"partitionId": 10_000}, 403),
        ({"groupName": "stranger"}, 401),
        ({"clientId": "stranger"}, 401),
    ],
)
def test_what_commit_refuses(five, fields, code):
    five.register()
    answer = five.commit(**fields)
    assert (answer.success, answer.errCode, answer.currOffset) == (False, code, -1)


def test_commit_after_unregister_is_401(five):
    five.register()
    five.unregister()
    answer = five.commit()
    assert (answer.errCode, answer.errMsg) == (401, "The partition not registered by consumers")


# --- closed topics, stopping, broken disks


def test_a_closed_topic_can_be_read_and_not_written_or_committed(tubemq, five):
    five.register()
    tubemq._state.set_topic(
        "demo", TopicSpec(accept_publish=False, accept_subscribe=False, status=TopicStatus.SOFT_DELETED)
    )
    assert payloads(five.fetch()) == numbered(5)
    assert five.commit().errCode == 403
    assert five.try_send().errCode == 403


def test_a_removed_topic_is_gone_with_its_data_and_positions(tubemq, five):
    five.register()
    five.fetch()
    tubemq._state.set_topic("demo", TopicSpec(status=TopicStatus.REMOVED))
    assert five.fetch().errCode == 403
    assert list((tubemq.data / "stores").iterdir()) == []
    assert (tubemq._state.offsets.all(), tubemq._state.leases.all()) == ({}, {})
    tubemq.add_topic("demo")
    assert five.register().maxOffset == 0


def test_a_broker_that_stops_refuses_with_503(tubemq, five):
    five.register()
    tubemq._state.stopping.set()
    answers = [five.try_send(), five.register(), five.heartbeat(), five.fetch(), five.commit()]
    assert [answer.errCode for answer in answers] == [503] * 5
    assert [answer.errMsg for answer in answers] == [
        "Write StoreService temporary unavailable!",
        "StoreService temporary unavailable!",
        "StoreService temporary unavailable!",
        "Read StoreService temporary unavailable!",
        "StoreService temporary unavailable!",
    ]


def test_a_broken_disk_gives_500(tubemq, five, monkeypatch):
    five.register()
    store = tubemq._state.stores.all()["demo", 0]

    def broken(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read", broken)
        answer = five.fetch()
    assert (answer.errCode, answer.errMsg) == (
        500,
        "Get message failure, errMsg=[Errno 5] Input/output error",
    )
    assert payloads(five.fetch()) == numbered(5)


def test_a_store_that_cannot_be_opened_gives_500(start, connect, closing, tmp_path):
    server = start(tmp_path, topics={"demo": (1, 1)})
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "demo-0").write_text("a file in the way")
    broker = connect(server)
    assert broker.try_send().errCode == 500
    answer = broker.register()
    assert answer.errCode == 500
    assert answer.errMsg.startswith("Register broker failure!, exception is ")


def test_two_connections_of_one_client_share_its_lease(tubemq, five):
    five.register()
    with BrokerClient(tubemq.broker) as second:
        assert payloads(second.fetch()) == numbered(5)
        assert second.commit().currOffset == 140


# --- details that only TubeMQ's own texts and numbers show


def test_a_wrong_unregister_is_refused_with_its_reason(tubemq, five, connect):
    other = connect(tubemq, client="consumer-2")
    assert other.unregister().errMsg == "UnRegistered Consumer consumer-2, you have to register firstly!"
    five.register()
    assert other.unregister().errMsg == (
        "[Duplicated Request]Partition group:demo:0 has been consumed by consumer-1;"
        "Current consumer consumer-2, broker=127.0.0.1"
    )


def test_a_partition_that_is_not_there_is_held_all_the_same(tubemq, five):
    assert five.register(7).errCode == 500
    answer = five.fetch(7)
    assert (answer.errCode, answer.errMsg) == (500, "Get the store of topic demo in partition 7 failure!")
    assert not five.heartbeat("1:h:1#demo:7").hasPartFailure
    assert five.commit(7).errCode == 403
    assert five.unregister(7).success


def test_a_heartbeat_names_partitions_in_full(broker):
    answer = broker.heartbeat("1:h:08123#demo:00")
    assert list(answer.failureInfo) == ["411:1:h:8123#demo:0"]


def test_the_minimum_wait_of_a_404_is_what_java_leaves_there(start, connect):
    broker = connect(start(topics={"demo": SLOW_TO_FLUSH}))
    broker.register()
    assert broker.fetch().minLimitTime == 0, "the data end of an empty store"
    broker.send(b"x" * 48)
    broker.register(qryPriorityId=101)
    assert broker.fetch().minLimitTime == 100
    broker.register(qryPriorityId=303, currOffset=28)
    assert broker.fetch().minLimitTime == -1


def test_a_group_whose_offsets_were_removed_begins_at_0(tubemq, five):
    five.register(currOffset=112)
    tubemq._state.offsets.forget([next(iter(tubemq._state.offsets.all()))])
    assert payloads(five.fetch()) == numbered(5)


def test_beyond_the_end_one_may_be_told_to_stay(start, connect):
    server = start(settings=EmbeddedSettings(update_consumer_offsets=False))
    broker = connect(server)
    broker.send(*numbered(5))
    broker.register(currOffset=140)
    server.faults.lose_messages("demo", 2)
    broker.register()
    assert broker.fetch().errCode == 404
    assert broker.commit().currOffset == 140


def test_filtered_consumers_near_the_end_should_ask_less_often(start, connect):
    server = start()
    broker = connect(server)
    broker.send(b"x", msgType="kind")
    broker.register(filterCondStr=["kind"])
    assert not broker.fetch().requireSlow, "not from what is on the disk"
    server._state.stores.all()["demo", 0].flush()
    assert broker.fetch().requireSlow
    broker.register()
    assert not broker.fetch().requireSlow


def test_the_clusters_priority_holds_for_those_that_name_none(start, connect):
    server = start(topics={"demo": SLOW_TO_FLUSH})
    broker = connect(server)
    broker.send(b"x")
    broker.register()
    controls = server._state.controls
    controls.set_cluster(dataclasses.replace(controls.cluster, query_priority=101), "me")
    assert broker.fetch().errCode == 404
    broker.register(qryPriorityId=303)
    assert payloads(broker.fetch()) == [b"x"]


@pytest.mark.parametrize(("own", "errors"), [(-2, 200), (0, 200), (1, 404)])
def test_a_priority_that_is_not_above_zero_is_none(start, connect, own, errors):
    broker = connect(start(topics={"demo": SLOW_TO_FLUSH}))
    broker.send(b"x")
    broker.register(qryPriorityId=own)
    assert broker.fetch().errCode == errors


def test_a_topic_that_was_changed_is_flushed_as_it_says_now(start, connect):
    server = start(topics={"demo": SLOW_TO_FLUSH})
    broker = connect(server)
    broker.send(b"x")
    (store,) = (store for (topic, _), store in server._state.stores.all().items() if topic == "demo")
    store.flush_if_due()
    assert store.bounds.flushed == 0
    server._state.set_topic("demo", dataclasses.replace(SLOW_TO_FLUSH, flush_messages=1))
    store.flush_if_due()
    assert store.bounds.flushed == store.bounds.latest > 0


def test_idle_groups_are_forgotten_unless_they_have_consumers(start, connect):
    server = start(
        settings=EmbeddedSettings(group_expiry_ms=50, group_expiry_check_ms=10, offsets_save_ms=10)
    )
    broker, idle = connect(server), connect(server, group="idle")
    broker.register()
    idle.register()
    idle.unregister()
    wait_until(lambda: {partition.group for partition in server._state.offsets.all()} == {"group"})


# --- flow control


def set_rules(server, *rules, on=True):
    controls = server._state.controls
    text = json.dumps([{"type": 0, "rule": list(rules)}])
    controls.set_cluster(dataclasses.replace(controls.cluster, flow_control=on, flow_rules=text), "me")


RULE = {"start": "00:00", "end": "24:00", "dltInM": 1024, "limitInM": 1, "freqInMs": 700}


@pytest.fixture
def limited(start, connect):
    """A consumer that lags, after its first read, which is free."""
    server = start(settings=EmbeddedSettings(max_entries=3))
    set_rules(server, RULE)
    broker = connect(server)
    broker.server = server
    broker.send(*(b"%05d" % number * 10_000 for number in range(12)))
    broker.register()
    assert len(broker.fetch(lastPackConsumed=True).messages) == 3
    return broker


def test_a_consumer_that_used_up_its_allowance_waits(limited):
    assert len(limited.fetch(lastPackConsumed=True).messages) == 2, "a twelfth of a MiB"
    answer = limited.fetch(lastPackConsumed=True)
    assert (answer.success, answer.errCode, answer.errMsg) == (False, 452, "RpcServer consume speed limit!")
    assert (answer.minLimitTime, answer.currOffset, answer.currDataDlt) == (700, -1, -1)
    assert limited.commit().currOffset == 5 * 28, "it had confirmed all the same"


def test_a_consumer_that_limits_itself_passes(limited):
    limited.fetch(lastPackConsumed=True)
    assert limited.fetch(lastPackConsumed=True).errCode == 452
    assert limited.fetch(lastPackConsumed=True, escFlowCtrl=True).success


def test_a_register_begins_with_a_free_read(limited):
    limited.fetch(lastPackConsumed=True)
    assert limited.fetch(lastPackConsumed=True).errCode == 452
    limited.register()
    assert limited.fetch().success


def test_a_limited_consumer_at_the_end_is_told_of_the_end_first(limited):
    limited.fetch(lastPackConsumed=True)
    limited.register(currOffset=12 * 28)
    assert limited.fetch().errCode == 404


@pytest.mark.parametrize(
    "text", ["[]", "broken", json.dumps([{"type": 0, "rule": [{**RULE, "limitInM": -1}]}])]
)
def test_texts_without_rules_limit_no_consumer(start, connect, text):
    server = start(settings=EmbeddedSettings(max_entries=1))
    controls = server._state.controls
    controls.set_cluster(dataclasses.replace(controls.cluster, flow_control=True, flow_rules=text), "me")
    broker = connect(server)
    broker.send(*(b"x" * 100_000 for _ in range(5)))
    broker.register()
    assert [broker.fetch(lastPackConsumed=True).errCode for _ in range(6)] == [200] * 5 + [404]


def test_rules_that_are_switched_off_limit_no_consumer(limited):
    set_rules(limited.server, RULE, on=False)
    while (answer := limited.fetch(lastPackConsumed=True)).success:
        pass
    assert answer.errCode == 404


def test_refused_registers_leave_nothing_behind(start, connect):
    """Any group name is accepted, so requests for what does not exist could fill the memory."""
    server = start(settings=EmbeddedSettings(lease_timeout_ms=30, scan_period_ms=10))
    broker = connect(server)
    for number in range(1200):
        assert broker.register(7, groupName=f"group{number}").errCode == 500
        assert broker.fetch(7, groupName=f"group{number}").errCode in {411, 500}
    state = server._state
    assert len(state.leases.all()) <= 1000
    assert state.offsets._positions == {}
    wait_until(lambda: not state.leases.all())
    assert state.offsets._positions == {}


def test_of_refused_registers_the_latest_are_remembered(monkeypatch, tubemq, broker):
    """A second consumer is told that another one has already registered, as in TubeMQ."""
    monkeypatch.setattr(groups_module, "_MAX_REFUSED", 3)
    for number in range(5):
        broker.register(7, groupName=f"group{number}")
    assert {partition.group for partition in tubemq._state.leases.all()} == {"group2", "group3", "group4"}
