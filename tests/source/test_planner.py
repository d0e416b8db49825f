"""The driver asks seldom, goes on without brokers that are away, and plans what it is told to."""

import logging
import pickle

import pytest

from tests.source.fake_cluster import BROKER, NO_ANSWER, NO_SUCH_TOPIC, partition
from tubemq_spark.errors import DataLossError, RpcError, TubeMQConnectionError, TubeMQTimeoutError
from tubemq_spark.model import OffsetBounds, OffsetRange, StoreId
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.options import OptionSet
from tubemq_spark.protocol.errcodes import rpc_error
from tubemq_spark.source.loss_ledger import Work
from tubemq_spark.source.planner import Planner
from tubemq_spark.source.readers import partitions_of, work_of

AWAY = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")
NOT_HERE = rpc_error(403, "no such topic here", peer="broker", during="testing")
POSITIONS = {partition(0): 28, partition(10_000): 0}


def store(number):
    return StoreId("demo", 1, number)


def planner_with(**options):
    options = {
        "tubemq.master.servers": "master:8715",
        "subscribe": "demo",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "500",
        **options,
    }
    return Planner(OptionSet.parse(options).for_stream_read())


@pytest.fixture
def planner(cluster, clock):
    return planner_with()


@pytest.fixture
def look(planner, clock):
    """Wait for some seconds; return what a stream sees then."""

    def wait_and_look(seconds=0):
        clock[0] += seconds
        return planner.snapshot(POSITIONS)

    return wait_and_look


def test_an_answer_is_good_for_a_moment(planner, cluster, look):
    """Spark asks several times in a micro-batch."""
    assert planner.last_snapshot is None
    first = look()
    assert look(0.015) is first is planner.last_snapshot
    look(0.01)

    assert cluster.questions == 2
    assert first.bounds == {
        store(number): OffsetBounds(0, 28 * rows) for number, rows in cluster.rows.items()
    }
    assert planner.latest_known == {store(number): 28 * rows for number, rows in cluster.rows.items()}


def test_what_has_fixed_a_position_is_an_answer_for_a_moment_too(planner, cluster, look):
    fixed = planner.complete_snapshot()
    questions = cluster.questions
    assert look(0.015) is fixed
    assert cluster.questions == questions
    look(0.01)
    assert cluster.questions == questions + 1


def test_a_look_that_finds_nothing_new_gives_the_same_snapshot(cluster, look):
    """An answer that is kept for a snapshot need not be worked out again."""
    first = look()
    assert look(1) is first
    cluster.rows[0] += 1
    assert look(1) is not first


def test_an_idle_stream_asks_less_and_less_often(cluster, look):
    look()
    for _ in range(600):
        look(0.1)
    in_the_first_minute = cluster.questions
    for _ in range(600):
        look(0.1)

    assert in_the_first_minute < 80
    assert cluster.questions - in_the_first_minute <= 60 / 1.8 + 1
    cluster.rows[0] += 1
    look(1.9)
    questions = cluster.questions
    look(0.03)
    assert cluster.questions == questions + 1


@pytest.mark.parametrize("interval_ms", [100, 5000])
def test_an_option_sets_how_seldom_an_idle_stream_asks(cluster, clock, interval_ms):
    planner = planner_with(**{"fetchOffset.maxIdleIntervalMs": str(interval_ms)})
    planner.snapshot(POSITIONS)
    clock[0] += 3600
    planner.snapshot(POSITIONS)
    questions = cluster.questions
    clock[0] += interval_ms / 1000 * 0.99
    planner.snapshot(POSITIONS)
    assert cluster.questions == questions
    clock[0] += interval_ms / 1000 * 0.02
    planner.snapshot(POSITIONS)
    assert cluster.questions == questions + 1


def test_hundreds_of_stores_are_asked_less_often(cluster, look):
    cluster.partitions = {partition(number * 10_000) for number in range(400)}
    cluster.rows = dict.fromkeys(range(400), 1)
    look()
    look(0.9)
    assert cluster.questions == 1
    look(0.2)
    assert cluster.questions == 2


def test_new_records_are_planned_with_a_layout_asked_for_after_them(planner, cluster, clock):
    """So a partition that was added, and written to, meanwhile is among those that are planned."""
    planner.snapshot(POSITIONS)
    clock[0] += 1
    cluster.rows[0] += 3
    cluster.before_layout = [lambda: cluster.partitions.add(partition(1))]

    assert partition(1) in planner.snapshot(POSITIONS).layout.partitions


def test_a_store_whose_broker_does_not_answer_stands_still_and_the_others_go_on(
    planner, cluster, clock, caplog
):
    planner.snapshot(POSITIONS)
    clock[0] += 1
    cluster.failing = {1: AWAY}
    cluster.rows[0] += 1

    snapshot = planner.snapshot(POSITIONS)

    assert snapshot.bounds.keys() == {store(0), store(2)}
    assert snapshot.bounds[store(0)].latest == 28 * 6
    assert planner.latest_known[store(1)] == 28 * 7
    assert not planner.outages.beside, "it answers for its other stores, so looks wait for it"


def test_no_broker_at_all_is_no_error_of_a_running_stream(cluster, look):
    look()
    cluster.failing = dict.fromkeys(cluster.rows, AWAY)
    for _ in range(100):
        assert look(60).bounds == {}


def test_an_outage_is_told_twice_with_the_rows_that_waited(cluster, caplog, look):
    caplog.set_level(logging.WARNING)
    look()
    cluster.failing = dict.fromkeys(cluster.rows, AWAY)
    for _ in range(20):
        look(3)
    cluster.failing = {}
    for _ in range(5):
        look(3)

    went, came = [record.getMessage() for record in caplog.records]
    assert "broker 1 (broker:8123) does not answer for 3 of its stores" in went
    assert "TUBEMQ_CONNECT_FAILED" in went
    # 4 of store 0 and 7 of store 1; the stream does not know the third one.
    assert came == "broker 1 answers again after 63 s; 11 rows waited"


def test_a_broker_that_is_away_is_asked_seldom_and_beside_the_look(cluster, look):
    """At first with little patience: where a connection is dead, no answer ever comes."""
    look()
    cluster.failing = dict.fromkeys(cluster.rows, AWAY)
    look(1)
    assert cluster.timeouts_beside == []
    for _ in range(120):
        look(0.5)

    assert cluster.timeouts_beside[:6] == [1000, 2000, 4000, 8000, 16_000, 16_000]
    assert 10 <= len(cluster.timeouts_beside) <= 16


def test_a_look_waits_once_for_a_broker_that_stops_answering(cluster, clock, caplog, look):
    """Its rows wait, those of other stores come; and it is not away before it had all the time there is."""
    caplog.set_level(logging.WARNING)
    frozen = cluster.add_broker()
    look()
    cluster.hanging = {3}
    began = clock[0]
    for _ in range(30):
        clock[0] += 0.3
        cluster.rows[0] += 1
        snapshot = look()
        assert snapshot.bounds[store(0)].latest == 28 * cluster.rows[0]
        assert frozen not in snapshot.bounds
    assert clock[0] - began == pytest.approx(30 * 0.3)
    assert cluster.waited_ms == 1000
    assert caplog.records == []

    cluster.hanging = set()
    assert frozen in look(0.3).bounds, "what came late belongs to this look"
    assert cluster.timeouts_beside == [None], "one question, with all the time there is"
    assert cluster.waited_ms == 1000


def test_a_broker_whose_answers_are_late_is_never_waited_for_and_its_rows_come(cluster, clock, look):
    slow = cluster.add_broker()
    look()
    cluster.hanging = {3}
    look(0.3)
    seen = []
    for _ in range(10):
        cluster.hanging = {3}
        cluster.rows[3] += 1
        look(0.3)
        clock[0] += 1.4
        cluster.hanging = set()
        found = look()
        seen.append(found.bounds[slow].latest // 28)
    assert cluster.waited_ms == 1000
    assert seen == list(range(7, 17))
    cluster.failing = {3: AWAY}
    assert slow not in look(0.3).bounds, "it is away, so what it said does not count"


def test_a_broker_that_comes_back_and_answers_late_is_told_once(cluster, caplog, look):
    caplog.set_level(logging.WARNING)
    slow = cluster.add_broker()
    look()
    cluster.failing = {3: AWAY}
    look(0.3)
    cluster.failing = {}
    for _ in range(3):
        cluster.hanging = {3}
        cluster.rows[0] += 1
        look(1.4)
        cluster.hanging = set()
        cluster.rows[3] += 1
        assert look(1.4).bounds[slow].latest == 28 * cluster.rows[3]

    went, came = caplog.messages
    assert went.startswith("broker 2 (broker:8123) does not answer")
    assert came.startswith("broker 2 answers again")


def test_a_broker_that_answers_neither_in_time_nor_later_is_away(cluster, clock, caplog, look):
    look()
    cluster.hanging = {0, 1, 2}
    look(1)
    cluster.hanging, cluster.failing = set(), dict.fromkeys(cluster.rows, NO_ANSWER)
    clock[0] += 10
    assert caplog.records == []
    look()
    cluster.failing = {}
    look(2)

    went, came = [record.getMessage() for record in caplog.records]
    assert "broker 1 (broker:8123) does not answer for 3 of its stores" in went
    assert came.startswith("broker 1 answers again after 12 s")


def test_a_run_that_ends_at_a_target_waits_for_brokers(planner, cluster, clock):
    planner.snapshot(POSITIONS)
    cluster.hanging = {1}
    clock[0] += 1
    planner.snapshot(POSITIONS, patient=True)
    assert cluster.waited_ms == 10_000


def test_a_look_waits_once_for_masters_that_stop_answering(cluster, clock, look):
    """A layout that is not asked for behind the bounds may lack partitions, and the snapshot says so."""
    assert not look().partial
    cluster.masters_hang = True
    began = clock[0]
    for _ in range(50):
        clock[0] += 0.3
        cluster.rows[0] += 1
        snapshot = look()
        assert snapshot.bounds[store(0)].latest == 28 * cluster.rows[0]
        assert snapshot.partial
    assert clock[0] - began == pytest.approx(50 * 0.3 + 1)

    cluster.masters_hang = False
    cluster.partitions.add(partition(30_000))
    cluster.rows[3] = 4
    first = look(0.3)
    assert partition(30_000) in first.layout.partitions
    cluster.rows[0] += 1
    assert not look(0.3).partial


def test_a_store_that_its_broker_lacks_is_asked_again_with_a_new_layout(planner, cluster, clock):
    """A broker that joins a topic answers 403 until it is configured; so does one whose topic was removed."""
    planner.snapshot(POSITIONS)
    clock[0] += 1
    cluster.failing = {2: NOT_HERE}
    planner.snapshot(POSITIONS)
    layouts = cluster.layouts
    cluster.partitions -= {partition(20_000), partition(20_001)}
    clock[0] += 1.1

    assert partition(20_000) not in planner.snapshot(POSITIONS).layout.partitions
    assert cluster.layouts > layouts


def test_a_store_that_is_gone_does_not_answer_again(cluster, caplog, look):
    """The broker was there all the time, and the loss is told by the policy."""
    caplog.set_level(logging.WARNING)
    look()
    cluster.failing = {2: NOT_HERE}
    look(1)
    cluster.partitions -= {partition(20_000), partition(20_001)}
    for _ in range(5):
        look(1.1)

    (went,) = [record.getMessage() for record in caplog.records]
    assert "does not answer for 1 of its stores" in went


def test_a_topic_that_does_not_exist_is_an_error_where_a_position_is_fixed(planner, cluster):
    cluster.removed = {"demo"}
    with pytest.raises(RpcError) as refused:
        planner.complete_snapshot()
    assert refused.value is NO_SUCH_TOPIC


def test_fixing_a_position_waits_for_every_store_and_says_so_at_once(planner, cluster, clock, caplog):
    cluster.troubles = [AWAY, AWAY]

    assert planner.complete_snapshot().bounds.keys() == {store(0), store(1), store(2)}
    assert cluster.questions == 3
    assert caplog.text.count("asking for offsets failed; trying again: [TUBEMQ_BROKERS_AWAY]") == 1
    cluster.troubles = [AWAY]
    planner.complete_snapshot()
    assert caplog.text.count("asking for offsets failed") == 2, "when one attempt has failed"


def test_fixing_a_position_gives_up_and_names_the_missing_stores(planner, cluster, clock):
    cluster.failing = {1: AWAY}
    with pytest.raises(TubeMQConnectionError) as away:
        planner.complete_snapshot()

    assert away.value.condition == "TUBEMQ_BROKERS_AWAY"
    assert "1 of 3 stores had no answer for 1000 ms" in str(away.value), "as long as it really took"
    assert "demo/1 store 1" in str(away.value)
    assert "TUBEMQ_CONNECT_FAILED" in str(away.value)
    assert cluster.questions == 3


def test_attempts_and_their_time_outs_do_not_multiply(planner, cluster, clock):
    """All attempts together may take as long as one time-out, and the pauses between all of them."""
    cluster.failing = {1: AWAY}

    def time_out():
        clock[0] += 10

    cluster.before_layout = [lambda: None, *[time_out, lambda: None] * 3]
    with pytest.raises(TubeMQConnectionError):
        planner.complete_snapshot()
    assert cluster.questions == 2


def test_fixing_a_position_does_not_wait_for_a_broker_that_refuses_for_good(planner, cluster):
    cluster.failing = {1: rpc_error(415, "who are you", peer="broker", during="testing")}
    with pytest.raises(TubeMQConnectionError, match="who are you"):
        planner.complete_snapshot()
    assert cluster.questions == 1


def test_fixing_a_position_waits_for_stores_that_appear_late(planner, cluster, clock):
    cluster.rows[3] = 4
    cluster.before_layout = [lambda: None, lambda: None, lambda: cluster.partitions.add(partition(30_000))]

    assert store(3) in planner.complete_snapshot().bounds
    assert cluster.questions == 2


def test_masters_that_never_answered_are_not_asked_again(planner, cluster, clock):
    """Their address may be wrong."""
    cluster.away = AWAY

    with pytest.raises(TubeMQConnectionError):
        planner.complete_snapshot()
    assert cluster.layouts == 1


def test_a_restart_waits_for_masters(planner, cluster, clock):
    """With a checkpoint, their address was right once: a failover takes its time."""
    cluster.away = AWAY

    def come_back():
        cluster.away = None

    cluster.before_layout = [lambda: None, lambda: None, come_back]
    planner.snapshot(POSITIONS)
    assert cluster.layouts >= 3


def test_a_restart_waits_for_masters_before_it_repeats_a_micro_batch(planner, cluster, clock):
    cluster.away = AWAY

    def come_back():
        cluster.away = None

    cluster.before_layout = [lambda: None, lambda: None, come_back]
    ranges = [OffsetRange(partition(0), 0, 28)]
    assert len(planner.partitions(ranges, cluster.partitions, fail_on_loss)) == 1


def test_patience_with_masters_ends(planner, cluster, clock):
    cluster.away = AWAY
    with pytest.raises(TubeMQConnectionError):
        planner.snapshot(POSITIONS)
    assert cluster.layouts == 3


def test_a_stream_goes_on_while_no_master_answers(cluster, clock, caplog, look):
    """Brokers serve without one; the masters are asked now and then, and the user is told once."""
    caplog.set_level(logging.WARNING)
    look()
    layouts = cluster.layouts
    cluster.away = AWAY
    for _ in range(50):
        clock[0] += 0.5
        cluster.rows[0] += 1
        assert look().bounds[store(0)].latest == 28 * cluster.rows[0]
    assert cluster.layouts - layouts <= 4
    cluster.away = None
    look(20)

    gone, back = [record.getMessage() for record in caplog.records]
    assert "no master answers" in gone
    assert "a master answers again" in back


def test_masters_that_did_answer_are_asked_again_before_an_old_layout_is_useless(planner, cluster, clock):
    planner.snapshot(POSITIONS)
    layouts = cluster.layouts
    clock[0] += 700
    cluster.away = AWAY

    with pytest.raises(TubeMQConnectionError):
        planner.snapshot(POSITIONS)
    assert cluster.layouts == layouts + 3


def test_a_log_begins_where_its_first_record_can_be_read(planner, cluster):
    """Index and data expire apart; a store that partitions share is left as it is, and so is an empty one."""
    cluster.rows[1] = 0
    cluster.unreadable = {0: 3, 1: 99, 2: 3}
    snapshot = planner.complete_snapshot()

    readable = planner.readable_bounds(snapshot, [store(0), store(1), store(2)], patient=True)

    assert readable == {**snapshot.bounds, store(0): OffsetBounds(84, 140)}
    assert planner.readable_bounds(snapshot, [], patient=True) == snapshot.bounds


def test_planning_does_not_ask_brokers(planner, cluster, clock):
    """Their answer may be old by then, and a range is read whatever it is."""
    planner.snapshot(POSITIONS)
    clock[0] += 1
    questions = cluster.questions

    assert len(planner.partitions([OffsetRange(partition(0), 0, 28)], cluster.partitions, fail_on_loss)) == 1
    assert cluster.questions == questions


def test_a_task_has_all_it_needs_and_travels(planner, cluster):
    ranges = [OffsetRange(partition(0), 28, 56), OffsetRange(partition(20_001), 0, 84)]

    planned = planner.partitions(ranges, cluster.partitions, fail_on_loss)
    [task] = pickle.loads(pickle.dumps(partitions_of(planned)))

    assert [work.range for work in task.requests] == ranges
    assert [(work.route.endpoint, work.route.visit_token) for work in task.requests] == [(BROKER, 1)] * 2
    assert [work.own_store for work in task.requests] == [True, False]
    assert task.value == "demo/1:0 [28, 56) and 1 more"
    assert [work_of(task)] == planned
    assert work_of(None) == Work()


def test_a_long_range_is_cut_for_more_tasks(cluster, clock):
    planner = planner_with(minPartitions="3")
    ranges = [OffsetRange(partition(0), 28, 28 * 10)]

    tasks = planner.partitions(ranges, cluster.partitions, fail_on_loss)

    assert [work.range for task in tasks for work in task.requests] == [
        OffsetRange(partition(0), 28, 28 * 4),
        OffsetRange(partition(0), 28 * 4, 28 * 7),
        OffsetRange(partition(0), 28 * 7, 28 * 10),
    ]
    assert len(tasks) == 3


def test_more_tasks_of_a_partition_than_can_read_it_at_once_are_told_once(cluster, clock, caplog):
    planner = planner_with(minPartitions="5", **{"readerGroups.size": "4"})
    for rows in (4, 5, 6):
        planner.partitions([OffsetRange(partition(0), 0, 28 * rows)], cluster.partitions, fail_on_loss)

    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("demo/1:0 is read by 5 tasks under 4 reader groups")


def test_taken_reader_groups_are_not_told_as_a_broker_that_is_away(cluster, caplog, look):
    look()
    taken = {"count": 16, "groups": "a, b", "partition": "demo/1:0", "waited_ms": 0}
    cluster.failing = {0: TubeMQTimeoutError("TUBEMQ_LEASES_TAKEN", **taken)}
    look(1)

    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("broker 1 (broker:8123) has no free reader group for 1 of its stores")


def test_with_chosen_message_types_no_store_is_counted(cluster, clock):
    """It is unknown how many messages the broker leaves out, so no offset and no gap can be told."""
    planner = planner_with(messageTypes="a,b")
    [task] = planner.partitions([OffsetRange(partition(0), 0, 56)], cluster.partitions, fail_on_loss)
    assert [work.own_store for work in task.requests] == [False]


def test_a_range_that_is_gone_is_reported_once_however_it_would_be_cut(cluster, clock):
    planner = planner_with(maxRecordsPerPartition="1")
    planned = set(cluster.partitions)
    cluster.partitions.discard(partition(10_000))
    recorder = LossRecorder()

    assert planner.partitions([OffsetRange(partition(10_000), 28, 28 * 9)], planned, recorder) == []
    assert len(recorder.records) == 1


def test_a_partition_added_later_does_not_change_a_planned_micro_batch(planner, cluster):
    """Its replay must give the same rows, with the same offsets."""
    planned = set(cluster.partitions)
    cluster.partitions.add(partition(1))

    [task] = planner.partitions([OffsetRange(partition(0), 28, 56)], planned, fail_on_loss)

    assert task.requests[0].own_store


@pytest.mark.parametrize(
    ("left", "loss"),
    [
        ({partition(0), partition(0, "other")}, Loss.PARTITION_REMOVED),
        ({partition(0, "other")}, Loss.TOPIC_REMOVED),
    ],
)
def test_a_partition_that_is_gone_is_a_loss(planner, cluster, left, loss):
    planned, cluster.partitions = cluster.partitions, left
    ranges = [OffsetRange(partition(10_000), 28, 84)]

    with pytest.raises(DataLossError) as lost:
        planner.partitions(ranges, planned, fail_on_loss)
    assert lost.value.condition == loss.condition

    recorder = LossRecorder()
    assert planner.partitions(ranges, planned, recorder) == []
    assert recorder.records == [LossRecord(loss, partition(10_000), 28, 84)]


def test_a_partition_that_is_not_listed_is_gone_when_its_topic_s_removal_would_be_over(
    planner, cluster, clock
):
    planner.snapshot(POSITIONS)
    cluster.partitions.discard(partition(10_000))
    clock[0] += 11

    assert partition(10_000) not in planner.snapshot(POSITIONS).layout.partitions
    assert 10 <= clock[0] - 1011 < 11


def test_a_master_is_asked_four_times_a_second_whether_it_has_removed_a_topic(cluster, clock):
    planner = planner_with(**{"fetchOffset.retryIntervalMs": "1"})
    planner.snapshot(POSITIONS)
    cluster.partitions.discard(partition(10_000))
    clock[0] += 11
    layouts = cluster.layouts
    planner.snapshot(POSITIONS)
    assert 40 <= cluster.layouts - layouts <= 42


def test_a_topic_that_never_held_anything_is_not_taken_for_one_that_is_being_removed(planner, cluster, clock):
    cluster.rows = dict.fromkeys(cluster.rows, 0)
    planner.snapshot(dict.fromkeys(cluster.partitions, 0))
    cluster.rows[0] = 1
    clock[0] += 1

    planner.snapshot(dict.fromkeys(cluster.partitions, 0))
    assert clock[0] == 1001


def test_a_topic_that_loses_its_partitions_one_after_the_other_is_removed(planner, cluster, clock):
    """The master takes them away as its brokers report, and the topic last."""
    planner.snapshot(POSITIONS)
    cluster.partitions.discard(partition(10_000))
    cluster.before_layout = [*[lambda: None] * 3, lambda: cluster.removed.add("demo")]
    clock[0] += 11

    assert not planner.snapshot(POSITIONS).layout.partitions


def test_a_partition_of_a_topic_that_was_removed_is_gone_at_once(planner, cluster, clock):
    cluster.removed = {"demo"}

    assert planner.snapshot(POSITIONS).layout.partitions == {}
    with pytest.raises(DataLossError):
        planner.partitions([OffsetRange(partition(0), 28, 84)], [partition(0)], fail_on_loss)
    assert clock[0] == 1000
