"""The driver asks seldom, asks again when a broker is away, and plans what it is told to."""

import pickle

import pytest

from tests.source.fake_cluster import BROKER, partition
from tubemq_spark.errors import DataLossError, RpcError, TubeMQConnectionError
from tubemq_spark.model import OffsetRange, StoreId
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss
from tubemq_spark.options import OptionSet
from tubemq_spark.source.partition import work_of
from tubemq_spark.source.planner import Planner

AWAY = TubeMQConnectionError("TUBEMQ_CONNECT_FAILED", endpoint="broker:8123", cause="test")


@pytest.fixture
def planner(cluster, clock):
    options = {
        "tubemq.master.servers": "master:8715",
        "subscribe": "demo",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "500",
    }
    return Planner(OptionSet.parse(options).for_stream_read())


def test_an_answer_is_good_for_a_moment(planner, cluster, clock):
    """A stream that is idle asks 65 times a second; brokers hear of it four times."""
    assert planner.last is None
    first = planner.look()
    assert planner.look() is first is planner.last
    clock[0] += 0.26
    assert planner.look() is not first

    assert (cluster.questions, cluster.layouts) == (2, 1)
    assert first.latest() == {StoreId("demo", 1, store): 28 * rows for store, rows in cluster.rows.items()}


def test_the_layout_is_asked_again_later(planner, cluster, clock):
    planner.look()
    clock[0] += 10.1
    planner.look()

    assert cluster.layouts == 2


def test_a_fresh_look_asks_for_all(planner, cluster, clock):
    planner.look()
    planner.look(fresh=True)

    assert (cluster.questions, cluster.layouts) == (2, 2)


def test_a_broker_that_goes_away_is_asked_again_with_a_new_layout(planner, cluster, clock):
    planner.look()
    clock[0] += 1
    cluster.troubles = [AWAY, AWAY]
    planner.look()

    assert cluster.questions == 4
    assert cluster.layouts == 3


def test_patience_ends(planner, cluster, clock):
    planner.look()
    clock[0] += 1
    cluster.troubles = [AWAY, AWAY, AWAY]

    with pytest.raises(TubeMQConnectionError):
        planner.look()


def test_masters_that_never_answered_are_not_asked_again(planner, cluster, clock):
    cluster.away = AWAY

    with pytest.raises(TubeMQConnectionError):
        planner.look()
    assert cluster.layouts == 1


def test_a_stream_goes_on_while_no_master_answers(planner, cluster, clock):
    """Brokers serve without one; the masters are asked again as seldom as before."""
    planner.look()
    cluster.away = AWAY
    for _ in range(4):
        clock[0] += 6
        planner.look()

    assert cluster.questions == 5
    assert cluster.layouts == 1 + 2


def test_masters_that_did_answer_are_asked_again_before_an_old_layout_is_useless(planner, cluster, clock):
    planner.look()
    clock[0] += 700
    cluster.away = AWAY

    with pytest.raises(TubeMQConnectionError):
        planner.look()
    assert cluster.layouts == 1 + 3
    assert clock == [1000 + 700 + 2 * 0.5]


def test_planning_does_not_ask_brokers(planner, cluster, clock):
    """Their answer may be old by then, and a range is read whatever it is."""
    planner.look()
    clock[0] += 1
    cluster.troubles = [AWAY]

    assert len(planner.partitions([OffsetRange(partition(0), 0, 28)], fail_on_loss)) == 1


def test_a_broker_that_is_away_at_first_is_asked_again(planner, cluster):
    """Else a batch read, and a stream that starts, would fail where one that runs goes on."""
    cluster.troubles = [AWAY, AWAY]

    assert planner.look() is planner.last
    assert (cluster.questions, cluster.layouts) == (3, 3)


def test_a_refusal_is_not_asked_again(planner, cluster, clock):
    planner.look()
    clock[0] += 1
    refusal = RpcError(
        "TUBEMQ_RPC", peer="broker", code=403, name="FORBIDDEN", during="testing", text="no", hint="do not"
    )
    cluster.troubles = [refusal]

    with pytest.raises(RpcError):
        planner.look()
    assert cluster.questions == 2


def test_a_task_has_all_it_needs_and_travels(planner):
    ranges = [OffsetRange(partition(0), 28, 56), OffsetRange(partition(20_001), 0, 84)]

    tasks = pickle.loads(pickle.dumps(planner.partitions(ranges, fail_on_loss)))

    assert [task.request.range for task in tasks] == ranges
    assert [(task.request.endpoint, task.request.visit_token) for task in tasks] == [(BROKER, 1)] * 2
    assert [task.request.own_store for task in tasks] == [True, False]
    assert [task.value for task in tasks] == ["demo/1:0 [28, 56)", "demo/1:20001 [0, 84)"]
    assert work_of(tasks[0]) is tasks[0].request
    assert work_of(None) is None


def test_a_partition_that_is_gone_is_a_loss(planner, cluster):
    cluster.partitions.discard(partition(10_000))
    ranges = [OffsetRange(partition(0), 0, 28), OffsetRange(partition(10_000), 28, 84)]

    with pytest.raises(DataLossError) as lost:
        planner.partitions(ranges, fail_on_loss)
    assert lost.value.condition == "TUBEMQ_DATA_LOSS.PARTITION_REMOVED"

    recorder = LossRecorder()
    assert [task.request.range for task in planner.partitions(ranges, recorder)] == ranges[:1]
    assert recorder.records == [LossRecord(Loss.PARTITION_REMOVED, partition(10_000), 28, 84)]
