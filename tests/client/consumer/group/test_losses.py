"""Records that are gone before a member of a group has read them: ``on_loss`` is asked, as everywhere."""

import asyncio
import contextlib

import pytest

from tests.client.aio.consuming import member as aio_member, take
from tests.client.assigned import ROW, TOPIC, numbered, partition, produce
from tests.client.members import member
from tests.waiting import wait_until
from tubemq_spark.client import BoundStart
from tubemq_spark.embedded.broker.groups import OffsetKey
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, TubeMQTimeoutError
from tubemq_spark.model import TopicPartition
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

STEP, COUNT, NEW = 10, 100, 20
EXPIRED = LossRecord(Loss.EXPIRED, partition(), STEP * ROW, COUNT * ROW, None)
"""What retention takes of a log of which a member has confirmed one batch."""


def running(partitions=1):
    settings = EmbeddedSettings(balance_period_ms=50, max_entries=STEP)
    return EmbeddedTubeMQ(topics={TOPIC: (partitions, 1)}, settings=settings)


@pytest.fixture
def server():
    with running() as made:
        produce(made, numbered(COUNT))
        yield made


def confirm_one(consumer):
    batch = consumer.fetch()
    consumer.confirm(batch)
    return [record.value for record in batch]


def expire(server):
    server.faults.apply_retention(TOPIC)
    produce(server, numbered(NEW, COUNT))


def move_group(server, offset):
    """Do what an administrator may do at a broker."""
    position = server.faults._nodes.get(1).broker.state.offsets.find(OffsetKey("etl", TOPIC, 0))
    with position.lock:
        position.reset(offset)


def read(consumer, count):
    values = []
    while len(values) < count:
        values += confirm_one(consumer)
    return values


def test_records_that_expire_are_an_error_of_fetch_told_once(server):
    with member(server) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        expire(server)
        with pytest.raises(DataLossError, match=f"EXPIRED.*{STEP * ROW}"):
            consumer.fetch()
        assert read(consumer, NEW) == numbered(NEW, COUNT)


def test_records_that_expire_are_told_to_on_loss_and_reading_goes_on(server, caplog):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        expire(server)
        assert read(consumer, NEW) == numbered(NEW, COUNT)
    assert losses.records == [EXPIRED]
    assert "cannot be read" not in caplog.text


def test_records_that_expired_while_no_member_was_there(server):
    with member(server) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
    expire(server)
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert read(consumer, NEW) == numbered(NEW, COUNT)
    assert losses.records == [EXPIRED]


def test_a_log_of_which_nothing_is_left(server):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        server.faults.apply_retention(TOPIC)
        assert consumer.fetch(300) is None
        produce(server, numbered(NEW, COUNT))
        assert read(consumer, NEW) == numbered(NEW, COUNT)
    assert losses.records == [EXPIRED]


def test_a_log_that_went_back(server):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert read(consumer, COUNT) == numbered(COUNT)
        server.faults.lose_messages(TOPIC, STEP)
        assert consumer.fetch(500) is None
        produce(server, numbered(NEW, COUNT))
        assert read(consumer, NEW) == numbered(NEW, COUNT)
    left = COUNT - STEP
    assert losses.records == [LossRecord(Loss.MOVED_BACK, partition(), left * ROW, COUNT * ROW, None)]


@pytest.mark.parametrize("to", [0, 50])
def test_an_administrator_who_moves_the_group_takes_no_records(server, caplog, to):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        move_group(server, to * ROW)
        assert confirm_one(consumer) == numbered(STEP, to)
    assert losses.records == []
    assert f"was moved from offset {STEP * ROW} to {to * ROW}" in caplog.text


def test_records_that_expire_are_told_also_when_the_answer_that_shows_it_is_lost(server):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        lost = server.faults.drop_connection(Method.GET_MESSAGE, carried_out=True, times=1)
        expire(server)
        assert read(consumer, NEW) == numbered(NEW, COUNT)
        assert lost.hits == 1
    assert losses.records == [EXPIRED]


def test_what_another_member_has_read_is_no_loss(server):
    """It is read and expires while this one has lost its lease and does not know it."""
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        consumer.pause(consumer.connected)
        server.faults.forget_leases()
        server.faults.apply_retention(TOPIC)
        produce(server, numbered(NEW, COUNT))
        move_group(server, (COUNT + STEP) * ROW)
        consumer.resume()
        assert read(consumer, NEW - STEP) == numbered(NEW - STEP, COUNT + STEP)
    assert losses.records == []


def test_a_broker_that_does_not_say_what_it_holds_is_asked_again(server):
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        expire(server)
        lost = server.faults.drop_connection(Method.PARTITION_REGISTER, times=2)
        assert read(consumer, NEW) == numbered(NEW, COUNT)
        assert lost.hits == 2
    assert losses.records == [EXPIRED]


def test_a_broker_that_refuses_to_say_what_it_holds_has_lost_it(server):
    """A cluster that knows no reader groups; the group's own registrations are carried out."""
    losses = LossRecorder()
    with member(server, on_loss=losses) as consumer:
        assert confirm_one(consumer) == numbered(STEP)
        expire(server)
        refused = server.faults.answer(Method.PARTITION_REGISTER, ErrCode.CONSUME_GROUP_FORBIDDEN, times=1)
        assert read(consumer, NEW) == numbered(NEW, COUNT)
        assert refused.hits == 1
    assert losses.records == [EXPIRED]


@contextlib.contextmanager
def bound_with_a_gap(count):
    """Run a server that has lost where the first of some partitions should begin."""
    places = [TopicPartition(TOPIC, 1, store * 10_000) for store in range(count)]
    with running(count) as server:
        for place in places:
            produce(server, numbered(COUNT), where=place)
        server.faults.apply_retention(TOPIC)
        for place in places:
            produce(server, numbered(NEW, COUNT), where=place)
        yield server, BoundStart("run", 1, dict.fromkeys(places, COUNT * ROW) | {places[0]: 0})


def errors_beside_all_that_is_left(consumer, count, error_type):
    """Read what is left in so many partitions; return the errors that fetches raise."""
    errors, values = [], []
    while len(values) < count * NEW:
        try:
            values += confirm_one(consumer)
        except error_type as error:
            errors.append(error)
    assert sorted(values) == sorted(count * numbered(NEW, COUNT))
    return errors


def test_a_bound_group_gets_its_other_partitions_when_one_offset_is_gone():
    """Its user is told of that one by ``fetch``; then it is read from the first message that is left."""
    with bound_with_a_gap(4) as (server, start), member(server, start=start) as consumer:
        wait_until(lambda: len(consumer.connected) >= 3)
        errors = errors_beside_all_that_is_left(consumer, 4, DataLossError)
    assert [error.condition for error in errors] == ["TUBEMQ_DATA_LOSS.EXPIRED"]


class Outcome(BaseException):
    """What test frameworks raise, for one."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the database is away"),
        TubeMQTimeoutError(
            "TUBEMQ_TIMEOUT", endpoint="another", timeout_ms=1, during="writing the loss down"
        ),
        SystemExit("the database is away"),
        Outcome("the database is away"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_on_loss_raises_about_an_offset_that_is_gone_is_raised_by_fetch(error):
    """In a bound group: its other partitions are read, also those of the same broker."""

    def fail(_):
        raise error

    with bound_with_a_gap(2) as (server, start), member(server, start=start, on_loss=fail) as consumer:
        wait_until(lambda: len(consumer.connected) == 2, 20)
        errors = errors_beside_all_that_is_left(consumer, 2, type(error))
    assert errors == ([] if isinstance(error, TubeMQTimeoutError) else [error])  # it may pass, and has


async def test_an_awaited_fetch_raises_what_on_loss_raises_and_goes_on(server):
    def fail(_):
        raise Outcome

    async with aio_member(server, on_loss=fail) as consumer:
        assert await take(consumer, STEP) == numbered(STEP)
        await asyncio.to_thread(expire, server)
        with pytest.raises(Outcome):
            await consumer.fetch(20_000)
        assert await take(consumer, NEW) == numbered(NEW, COUNT)
