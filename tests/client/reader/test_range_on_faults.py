"""Reading a range from a whole server where things go wrong: the same records, or an error with the cause."""

import operator
from concurrent.futures import ThreadPoolExecutor

import pytest

from testkit.connections import opened_connections
from testkit.message_sender import MessageSender
from tests.client.ranges import ROW, TOPIC, config_of, partition, values, values_of
from tests.embedded.web import close_topic, remove_topic
from tubemq_spark.client.reader.range_reader import read_range
from tubemq_spark.client.reader.topic_reader import read_in_thread
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, RpcError, TubeMQTimeoutError
from tubemq_spark.model import Endpoint, OffsetRange, RangeRequest, Route
from tubemq_spark.offsets.loss import Loss, LossRecorder, fail_on_loss
from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.errcodes import ErrCode

pytestmark = [pytest.mark.sampled, pytest.mark.usefixtures("quick_retries")]

COUNT = 24
STEP = 4
"""A fetch looks at so many records, so that there is something between the first and the last."""


@pytest.fixture(params=[(1, 1), (1, 2)], ids=["dense", "shared store"])
def server(request):
    settings = EmbeddedSettings(max_entries=STEP)
    with EmbeddedTubeMQ(topics={TOPIC: request.param}, settings=settings) as running:
        partitions = request.param[1]
        write(running, range(COUNT), partitions)
        yield running


@pytest.fixture
def dense():
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=EmbeddedSettings(max_entries=STEP)) as running:
        write(running, range(COUNT))
        yield running


def write(server, numbers, partitions=1):
    with opened_connections() as connections, MessageSender(config_of(server), connections) as producer:
        for number in numbers:
            producer.send(TOPIC, b"value %d" % number, partition=(1, number % partitions))


def batches(server, start=0, end=COUNT * ROW, on_loss=fail_on_loss, token=0, **changes):
    work = RangeRequest(
        OffsetRange(partition(), start, end), Route(Endpoint.parse(server.broker), token), own_store=False
    )
    with opened_connections() as connections:
        reader = read_range(config_of(server, **changes), connections, work)
        yield from read_in_thread(reader, work.range, on_loss)


def read(server, *bounds, **more):
    return [value for batch in batches(server, *bounds, **more) for value in values_of(batch)]


def truth(server):
    return values(0, COUNT)[:: server.topics()[TOPIC].partitions]


fault = operator.methodcaller
GET, COMMIT, REGISTER = Method.GET_MESSAGE, Method.COMMIT_OFFSET, Method.PARTITION_REGISTER
FAULTS = {
    "503 three times": fault("answer", GET, 503, times=3),
    "503 three times in the middle": fault("answer", GET, 503, skip=2, times=3),
    "503 to a commit": fault("answer", COMMIT, 503, skip=1, times=2),
    "503 to a register": fault("answer", REGISTER, 503, times=3),
    "a lost connection in the middle": fault("drop_connection", GET, skip=2, times=1),
    "a lost answer to a fetch": fault("drop_connection", GET, skip=2, times=1, carried_out=True),
    "a lost commit": fault("drop_connection", COMMIT, skip=2, times=1),
    "a lost answer to a commit": fault("drop_connection", COMMIT, skip=2, times=1, carried_out=True),
    "a truncated frame": fault("truncate", GET, skip=2, times=2),
    "a corrupt frame": fault("corrupt", GET, skip=2, times=2),
    "a corrupt answer": fault("corrupt", COMMIT, 20, skip=2, times=1),
    "a corrupt chunk length": fault("corrupt", GET, 12, skip=1, times=1),
    "411 in the middle": fault("answer", GET, ErrCode.HB_NO_NODE, skip=2, times=2),
    "412 in the middle": fault("answer", GET, ErrCode.DUPLICATE_PARTITION, skip=2, times=2),
    "401 to a commit": fault("answer", COMMIT, ErrCode.UNAUTHORIZED, skip=1, times=2),
    "410 to a register": fault("answer", REGISTER, ErrCode.PARTITION_OCCUPIED, times=20),
    "moments without messages": fault("answer", GET, 404, skip=1, times=2),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cut", [0, 1, 5])
def test_a_trouble_that_passes_changes_no_record(server, fault, cut):
    rule = FAULTS[fault](server.faults)
    partitions = server.topics()[TOPIC].partitions
    first = cut * partitions

    assert read(server, first * ROW) == truth(server)[cut:]
    assert rule.hits > 0


def test_an_answer_later_than_the_time_out_is_asked_for_again(server):
    rule = server.faults.delay(Method.GET_MESSAGE, 60_000, skip=2, times=1)
    assert read(server, rpc_timeout_ms=150) == truth(server)
    assert rule.hits == 1


def test_a_commit_carried_out_after_the_time_out_moves_no_reader(server):
    """The late commit comes from a client name that is not used any more."""
    with server.faults.hold(Method.COMMIT_OFFSET, skip=1, times=1) as held:
        reading = batches(server, rpc_timeout_ms=150)
        found = [value for _ in range(2) for value in values_of(next(reading))]
        assert held.wait_for_hits()
        held.release()
        found += [value for batch in reading for value in values_of(batch)]
    assert found == truth(server)


@pytest.mark.parametrize("trouble", ["forget_leases", "give_leases_away"])
def test_a_lease_that_is_lost_is_taken_again(server, trouble):
    reading = batches(server)
    found = values_of(next(reading))
    getattr(server.faults, trouble)()
    found += [value for batch in reading for value in values_of(batch)]
    assert found == truth(server)


def test_a_closed_topic_is_read_and_a_removed_one_is_a_loss(server):
    close_topic(server, TOPIC)
    assert read(server) == truth(server)
    remove_topic(server, TOPIC)
    with pytest.raises(DataLossError) as caught:
        read(server)
    assert caught.value.condition == "TUBEMQ_DATA_LOSS.TOPIC_REMOVED"


def test_a_topic_removed_in_the_middle_is_a_loss_of_the_rest(dense):
    recorder = LossRecorder()
    reading = batches(dense, on_loss=recorder)
    found = values_of(next(reading))
    close_topic(dense, TOPIC)
    remove_topic(dense, TOPIC)
    found += [value for batch in reading for value in values_of(batch)]

    (record,) = recorder.records
    assert record.loss is Loss.TOPIC_REMOVED
    assert found == values(0, record.start // ROW)
    assert record.end == COUNT * ROW


def test_a_cluster_that_shows_only_what_is_on_disk_is_read_to_the_end_all_the_same():
    """The end of a range is that of the memory, whatever priority the cluster gives its readers."""
    settings = EmbeddedSettings(max_entries=STEP, query_priority=101)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=settings) as server:
        write(server, range(COUNT))
        assert read(server, fetch_timeout_ms=500) == values(0, COUNT)


def test_a_trouble_that_stays_is_an_error_with_the_last_cause(dense):
    dense.faults.answer(Method.GET_MESSAGE, 503, "on holiday", skip=1)
    with pytest.raises(TubeMQTimeoutError, match=r"(?s)TUBEMQ_NO_PROGRESS.*on holiday"):
        read(dense, fetch_timeout_ms=100)


def test_a_refusal_for_good_is_an_error_at_once(dense):
    rule = dense.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST, "never")
    with pytest.raises(RpcError, match="never"):
        read(dense)
    assert rule.hits == 1


def test_a_reader_gives_its_lease_back_after_an_error(dense):
    dense.faults.answer(Method.GET_MESSAGE, ErrCode.BAD_REQUEST)
    with pytest.raises(RpcError):
        read(dense)
    assert dense.faults.forget_leases() == 0


def test_a_reader_that_cannot_give_its_lease_back_has_read_all_the_same(dense):
    rule = dense.faults.answer(
        Method.PARTITION_REGISTER, 503, only=lambda asked: asked.opType == OpType.UNREGISTER
    )
    assert read(dense) == values(0, COUNT)
    assert rule.hits == 1


def test_a_maximum_that_moves_back_is_a_loss(dense):
    recorder = LossRecorder()
    reading = batches(dense, on_loss=recorder)
    found = values_of(next(reading))
    dense.faults.lose_messages(TOPIC, 10)
    # The fetch that was under way ahead may have brought some of what is lost now.
    found += [value for batch in reading for value in values_of(batch)]

    (record,) = recorder.records
    assert record.loss is Loss.TRUNCATED
    assert (record.start, record.end) == (14 * ROW, COUNT * ROW)
    assert found == values(0, 14)

    with pytest.raises(DataLossError, match="its log now ends at 392") as caught:
        read(dense)
    assert caught.value.condition == "TUBEMQ_DATA_LOSS.TRUNCATED"


def test_retention_in_the_middle_is_a_loss(dense):
    recorder = LossRecorder()
    reading = batches(dense, on_loss=recorder)
    assert values_of(next(reading)) == values(0, STEP)
    dense.faults.apply_retention(TOPIC)
    write(dense, range(COUNT, COUNT + 2))
    rest = [value for batch in reading for value in values_of(batch)]

    (record,) = recorder.records
    assert record.loss is Loss.EXPIRED
    assert values(0, STEP) + rest == values(0, record.start // ROW)
    assert record.end == COUNT * ROW


def test_a_message_damaged_on_its_way_is_a_loss_of_this_message(dense):
    dense.faults.corrupt(Method.GET_MESSAGE, b"value 6")
    recorder = LossRecorder()

    assert read(dense, on_loss=recorder) == values(0, 6) + values(7, COUNT)
    (record,) = recorder.records
    assert (record.loss, record.start, record.end) == (Loss.CORRUPT, 6 * ROW, 7 * ROW)
    with pytest.raises(DataLossError) as caught:
        read(dense)
    assert caught.value.condition == "TUBEMQ_DATA_LOSS.CORRUPT"


def test_an_expired_visit_token_is_renewed_at_the_next_lease():
    settings = EmbeddedSettings(max_entries=STEP, check_visit_tokens=True)
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, settings=settings) as server:
        write(server, range(COUNT))
        server.faults.expire_visit_tokens()
        assert read(server, token=1) == values(0, COUNT)


def test_readers_of_other_connections_go_on_while_one_is_held(dense):
    rows = []
    with dense.faults.hold(Method.GET_MESSAGE, times=1) as held, ThreadPoolExecutor(1) as thread:
        reading = batches(dense, rpc_timeout_ms=5_000)
        stuck = thread.submit(lambda: rows.extend(value for batch in reading for value in values_of(batch)))
        assert held.wait_for_hits()
        assert read(dense) == values(0, COUNT)
        assert rows == []
        held.release()
        stuck.result()
    assert rows == values(0, COUNT)
