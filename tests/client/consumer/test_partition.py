"""One partition of a consumer, against a broker that keeps offsets as the Java broker does."""

import asyncio
import contextlib
import dataclasses

import pytest

from tests.client import model_broker as model
from tests.client.model_broker import BROKER_ID, TOKEN, Limits, ModelBroker, Store
from tubemq_spark.client.broker.session import Fetched
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FlowControl
from tubemq_spark.client.consumer.life import Life
from tubemq_spark.client.consumer.partition import ConsumerPartition, GroupPartition, Reader, Standing
from tubemq_spark.client.consumer.state import ConsumerState
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.errors import ConsumeError, DataLossError, RpcError
from tubemq_spark.model import INDEX_ENTRY_BYTES as ROW, StoreId, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import Loss, LossRecord, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge
from tubemq_spark.protocol.constants import Method, ReadStatus

PARTITION = TopicPartition("demo", BROKER_ID, 0)
HELD = ("etl", "demo", 0)
STEP, COUNT = 5, 20
FETCH, COMMIT, REGISTER = Method.GET_MESSAGE, Method.COMMIT_OFFSET, Method.PARTITION_REGISTER
EARLIEST = ReadStatus.STORED_OR_EARLIEST
KINDS = {"assigned": ConsumerPartition, "group": GroupPartition}

both = pytest.mark.parametrize("kind", KINDS)


@dataclasses.dataclass
class Session:
    """What a partition needs of a session with a master."""

    client_id: str = "etl_me-1-2-3"
    visit_token: int = TOKEN
    authorized_token: str = ""


class Losses:
    """An ``on_loss`` that takes its time the first time, or raises."""

    def __init__(self, *, fails=False):
        self.fails = fails
        self.records = []
        self.asked, self.decided = asyncio.Event(), asyncio.Event()
        self.decided.set()

    async def __call__(self, loss):
        self.records.append(loss)
        self.asked.set()
        await self.decided.wait()
        if self.fails:
            fail_on_loss(loss)


class World:
    """A partition at a broker."""

    def __init__(self, broker, connections, kind, losses):
        config = ClientConfig((broker.endpoint,), "etl", rpc_timeout_ms=60_000)
        self.broker, self.losses, self.session = broker, losses, Session()
        self.reader = Reader(
            config, connections, self.session, FlowControl(), losses, lambda _: broker.endpoint
        )
        self.log = broker.stores[StoreId("demo", BROKER_ID, 0)]
        own_store = kind == "assigned"
        self.partition = KINDS[kind](
            self.reader, PARTITION, broker.endpoint, frozenset(), own_store=own_store
        )

    async def seek(self, target, seconds=None):
        async with asyncio.timeout(seconds) as limit:
            return await self.partition.seek(target, limit)

    async def fetch(self, *, confirms=False):
        """Return the rows of the next batch."""
        answer = await self.partition.fetch(confirms=confirms, own_limits=False)
        assert isinstance(answer, Fetched)
        columns = answer.columns
        return [int(columns.identity(row)[1].split()[-1]) for row in range(len(columns))]

    async def cancel(self, what, fault, method):
        """Cancel something when the broker has its request, and does not answer."""
        came = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(broker, exchange):
            loop.call_soon_threadsafe(came.set)
            return fault(broker, exchange)

        self.broker.fault_of_method[method].append(heard)
        task = asyncio.ensure_future(what)
        await came.wait()
        await cancelled(task)
        self.partition.unplace()

    def expire(self, rows):
        self.log.first = self.log.flushed = rows


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def interrupted_by(at, what):
    """Cancel something while ``on_loss`` decides, which fails from then on."""
    at.losses.asked.clear()
    at.losses.decided.clear()
    task = asyncio.ensure_future(what)
    await at.losses.asked.wait()
    await cancelled(task)
    at.partition.unplace()
    at.losses.fails = True
    at.losses.decided.set()


@contextlib.asynccontextmanager
async def world(kind="assigned", **losses):
    store = Store()
    store.append(0, [b"value %d" % number for number in range(COUNT)])
    limits = Limits(memory_entries=STEP, file_entries=STEP, halving=False)
    connections = Connections()
    with ModelBroker({StoreId("demo", BROKER_ID, 0): store}, limits=limits) as broker:
        yield World(broker, connections, kind, Losses(**losses))
        await connections.close()


def rows(start):
    return list(range(start, start + STEP))


@both
async def test_batches_are_confirmed_by_the_next_fetch_or_by_a_commit(kind):
    async with world(kind) as at:
        assert (await at.partition.connect(None, EARLIEST)).current == 0
        assert await at.fetch() == rows(0)
        assert await at.fetch(confirms=True) == rows(5)
        step = await at.partition.confirm()
        assert (step.start, step.next, at.partition.position) == (5 * ROW, 10 * ROW, 10 * ROW)
        assert await at.fetch() == rows(10)
        await at.partition.roll_back()
        assert await at.fetch() == rows(10)
        assert at.broker.holdings[HELD].committed == 10 * ROW


@both
@pytest.mark.parametrize("fault", [model.swallow, model.swallow_answer])
async def test_a_cancelled_fetch_loses_nothing(kind, fault):
    async with world(kind) as at:
        await at.partition.connect(None, EARLIEST)
        assert await at.fetch() == rows(0)
        await at.partition.confirm()

        await at.cancel(at.fetch(), fault, FETCH)

        assert at.partition.standing is Standing.UNPLACED
        await at.cancel(at.fetch(), fault, REGISTER)
        assert await at.fetch() == rows(5)


@pytest.mark.parametrize("fault", [model.swallow, model.swallow_answer])
@pytest.mark.parametrize("by", ["fetch", "commit"])
async def test_after_a_cancelled_confirmation_the_batch_comes_again(by, fault):
    async with world() as at:
        await at.partition.connect(0, EARLIEST)
        assert await at.fetch() == rows(0)
        if by == "fetch":
            await at.cancel(at.fetch(confirms=True), fault, FETCH)
        else:
            await at.cancel(at.partition.confirm(), fault, COMMIT)
        assert at.partition.position == 0
        assert await at.fetch() == rows(0)
        assert at.broker.holdings[HELD].committed == 0


async def test_a_member_goes_on_where_the_group_stands_after_a_cancelled_confirmation():
    async with world("group") as at:
        await at.partition.connect(None, EARLIEST)
        assert await at.fetch() == rows(0)
        await at.cancel(at.partition.confirm(), model.swallow_answer, COMMIT)
        assert await at.fetch() == rows(5)
        assert at.losses.records == []


@both
async def test_a_loss_that_was_not_decided_on_is_asked_about_again(kind):
    async with world(kind) as at:
        await at.partition.connect(None, EARLIEST)
        assert await at.fetch() == rows(0)
        at.expire(10)
        at.partition.unplace()
        await interrupted_by(at, at.fetch())
        with pytest.raises(DataLossError, match="EXPIRED"):
            await at.fetch()

        at.losses.fails = False
        at.partition.unplace()
        assert await at.fetch() == rows(10)
        assert at.losses.records == [LossRecord(Loss.EXPIRED, PARTITION, 0, 10 * ROW)] * 2


async def test_a_move_leaves_behind_what_was_not_decided_on():
    async with world() as at:
        await at.partition.connect(0, EARLIEST)
        at.expire(5)
        at.partition.unplace()
        await interrupted_by(at, at.fetch())
        assert (await at.seek(15 * ROW)).current == 15 * ROW
        assert await at.fetch() == rows(15)
        assert len(at.losses.records) == 1


@pytest.mark.parametrize("target", [0, 15 * ROW])
async def test_a_move_that_fails_does_not(target):
    async with world() as at:
        await at.partition.connect(0, EARLIEST)
        at.expire(5)
        at.partition.unplace()
        await interrupted_by(at, at.fetch())
        if target:
            at.broker.fault_of_method[REGISTER].append(model.refuse(500))
        with pytest.raises((DataLossError, RpcError)):
            await at.seek(target)
        with pytest.raises(DataLossError):
            await at.fetch()


async def test_what_is_lost_where_a_cancelled_move_went_is_of_no_account():
    async with world() as at:
        at.expire(10)
        await at.partition.connect(15 * ROW, EARLIEST)
        await interrupted_by(at, at.seek(5 * ROW))
        assert await at.fetch() == rows(15)


@pytest.mark.parametrize("fault", [model.swallow, model.swallow_answer])
async def test_a_cancelled_move_goes_on_where_it_stood(fault):
    async with world() as at:
        await at.partition.connect(0, EARLIEST)
        assert await at.fetch(confirms=True) == rows(0)
        await at.partition.confirm()
        await at.cancel(at.seek(Edge.LATEST), fault, REGISTER)
        await at.cancel(at.seek(15 * ROW), fault, REGISTER)
        assert at.partition.position == 5 * ROW
        assert await at.fetch() == rows(5)


async def test_a_move_to_what_is_gone_stays_where_it_was_at_once():
    async with world(fails=True) as at:
        at.expire(10)
        await at.partition.connect(15 * ROW, EARLIEST)
        with pytest.raises(DataLossError, match="EXPIRED"):
            await at.seek(5 * ROW)
        assert at.partition.standing is Standing.PLACED
        assert at.broker.holdings[HELD].committed == 15 * ROW
        assert await at.fetch() == rows(15)


async def test_on_loss_may_take_longer_than_a_move():
    async with world() as at:
        at.expire(10)
        await at.partition.connect(15 * ROW, EARLIEST)
        at.losses.decided.clear()
        limit = asyncio.timeout(60)

        async def move():
            async with limit:
                return await at.partition.seek(5 * ROW, limit)

        moving = asyncio.ensure_future(move())
        await at.losses.asked.wait()
        assert limit.when() is None
        at.losses.decided.set()
        assert (await moving).current == 10 * ROW
        assert await at.fetch() == rows(10)


async def test_what_on_loss_raises_of_a_bound_start_the_next_fetch_raises():
    async with world("group", fails=True) as at:
        at.expire(10)
        assert (await at.partition.connect(0, EARLIEST)).current == 10 * ROW
        with pytest.raises(DataLossError, match="EXPIRED"):
            await at.fetch()


async def test_connecting_that_is_cancelled_is_no_verdict():
    async with world("group") as at:
        at.expire(10)
        at.losses.decided.clear()
        connecting = asyncio.ensure_future(at.partition.connect(0, EARLIEST))
        await at.losses.asked.wait()
        await cancelled(connecting)


async def test_an_administrator_s_reset_counts_once():
    async with world() as at:
        await at.partition.connect(0, EARLIEST)
        at.partition.reset()
        await at.cancel(at.partition.fetch(confirms=False, own_limits=False), model.swallow, REGISTER)
        assert not isinstance(await at.partition.fetch(confirms=False, own_limits=False), Fetched)
        at.log.append(0, [b"value 20"])
        assert await at.fetch() == [20]


def state_of(at):
    """Return the state of an open consumer that holds nothing."""
    state = ConsumerState(at.reader.config, Subscription.of("demo"), FlowControl())
    state.life = Life.OPEN
    return state


@both
@pytest.mark.parametrize("fault", [model.swallow, model.swallow_answer])
async def test_the_broker_is_told_of_a_registration_that_is_cancelled(kind, fault):
    async with world(kind) as at:
        state = state_of(at)
        await at.cancel(state.register(at.partition, 0, EARLIEST), fault, REGISTER)
        assert at.broker.counts() == {REGISTER: 2}
        assert at.broker.holdings[HELD].owner is None
        assert state.connected == {}


async def test_closing_does_not_wait_for_the_pause_before_a_second_registration():
    async with world() as at:
        state = state_of(at)
        at.broker.fault_of_method[REGISTER].append(model.refuse(503))
        registering = asyncio.ensure_future(state.register(at.partition, 0, EARLIEST))
        while not (state.changes._waiting or registering.done()):
            await asyncio.sleep(0)
        state.end()
        with pytest.raises(ConsumeError):
            await registering
        assert at.broker.counts() == {REGISTER: 2}, "one refused, and one that gives it back"


async def test_the_broker_is_told_also_when_giving_up_is_cancelled():
    async with world() as at:
        state = state_of(at)
        await state.register(at.partition, 0, EARLIEST)
        giving_up = asyncio.ensure_future(state.release(at.partition))
        while not (state.releases or giving_up.done()):
            await asyncio.sleep(0)
        await cancelled(giving_up)
        assert at.partition.standing is Standing.RELEASED
        await state.releases.ended()
        assert at.broker.holdings[HELD].owner is None
