"""A consumer on a host of its own, and its users: they fetch, confirm or not, move partitions, and go."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import simloom

from simulation import chance, hosts
from simulation.cluster import Cluster
from simulation.consumed import GroupLedger
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.assigned.core import AssignedCoreBase
from tubemq_spark.client.consumer.core import ConsumerCore, ConsumerSetup
from tubemq_spark.client.consumer.engine import EngineCore
from tubemq_spark.client.consumer.user_code import UserCode, UserLoop
from tubemq_spark.client.consumer.values import Batch
from tubemq_spark.client.consumer_config import Node, Subscription
from tubemq_spark.client.transport.direct import DirectTransport
from tubemq_spark.errors import ConsumeError, DataLossError, OptionError, TubeMQError
from tubemq_spark.model import INDEX_ENTRY_BYTES, TopicPartition
from tubemq_spark.net.connections import Connections
from tubemq_spark.offsets.loss import LossRecord, fail_on_loss
from tubemq_spark.offsets.offset_spec import Edge

if TYPE_CHECKING:
    from simulation.gateways import Fleet

_LATE_S: Final = 0.2
"""How much later than its time-out a fetch may return, if its caller is patient."""
_AT_ONCE_S: Final = 0.001
_TAKEN_BACK_S: Final = 1.0
"""So long after its time a batch that was not confirmed is taken back at the latest."""
_CLOSE_S: Final = 60.0
"""How long closing takes at most, besides functions of the user."""
SETTLED_S: Final = 150.0
"""After so long a group has forgotten all troubles: leases, sessions and events have had their time."""
_REFUSED: Final = frozenset({"TUBEMQ_CONFIRM_LATE", "TUBEMQ_CONFIRM_SOUGHT", "TUBEMQ_CONSUMER_CLOSED"})
"""Conditions of confirmations that were not carried out."""


class _UserError(Exception):
    """What callbacks raise here."""


class _Threads:
    """Calls functions as threads do, one for losses and one for all else: nothing ends a call."""

    def __init__(self, block_s: Callable[[], float]) -> None:
        self.name = ""
        self._block_s = block_s
        self._call_locks = {True: asyncio.Lock(), False: asyncio.Lock()}
        self._calls: set[asyncio.Task[None]] = set()

    def is_current(self) -> bool:
        """Return False: no function calls the consumer here."""
        return False

    async def call(self, name: str, function: Callable[[], object]) -> None:
        """Call a function, after those before it, and after a while."""
        lock = self._call_locks[name == "on_loss"]
        task = asyncio.create_task(self._make(lock, function), name=f"{name} in a thread")
        self._calls.add(task)
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    async def end(self) -> None:
        """Return at once."""

    async def join(self) -> None:
        """Wait until all calls have ended."""
        while self._calls:
            await asyncio.wait(self._calls)

    async def _make(self, lock: asyncio.Lock, function: Callable[[], object]) -> None:
        async with lock:
            await asyncio.sleep(self._block_s())
            function()

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # who called it may not wait any more


def _fetches(core: ConsumerCore) -> Iterable["asyncio.Future[Any]"]:
    """Return what brings batches to a consumer now."""
    return core.line._fetches if isinstance(core, EngineCore) else core.line._calls  # noqa: SLF001


class Habits:
    """What the members of one group do."""

    def __init__(
        self,
        config: ClientConfig,
        subscription: Subscription,
        ledger: GroupLedger,
        way: "Fleet | None" = None,
    ) -> None:
        self.way = way
        """None: they reach the cluster directly."""
        self.config = config
        self.subscription = subscription
        self.ledger = ledger
        self.calm = False
        """Whether users confirm each batch at once, and do nothing else."""
        self.settled = False
        """Whether nothing is left of troubles either."""
        self.seeks = chance.happens(30)
        self.callbacks = chance.happens(50)
        self.callbacks_fail = chance.happens(30)
        self.tolerates = chance.one_of((100, 100, 70))
        """How often, in percent, losses are tolerated."""
        self.follow_resets = chance.happens(50)
        self.members: int | None = None
        """How many choose their partitions among themselves; None: the master does it."""


class Member:
    """One consumer; it opens at once, and tries again as long as that fails."""

    def __init__(self, cluster: Cluster, habits: Habits, name: str, node: int = 0) -> None:
        self.name = name
        self.habits = habits
        self.host = cluster.add_client(name)
        self.core: ConsumerCore | None = None
        self.node = node
        self.is_gone = False
        self._cluster = cluster
        self._ledger = habits.ledger
        self._leaving = asyncio.Event()
        self.assigned: set[TopicPartition] = set()
        """What its user was told of."""
        self._confirmed: dict[bytes, float] = {}
        self._positions: dict[TopicPartition, tuple[object, int, int, int]] = {}
        """For each partition: what holds it, its offset, how often it may have gone back since before it
        came there, and until that was seen last."""
        self._blocked_s = 0.0
        """How long callbacks have taken."""
        self._out: dict[str, float] = {}
        """Contexts of batches that were handed out and not ended, and until when they may be."""
        self._old: list[str] = []
        """Contexts of batches that have ended."""
        self._threads: _Threads | None = None
        self._began = cluster.world.time
        self.task = self.host.spawn(self._run, name=name)

    @property
    def is_open(self) -> bool:
        """Whether it takes part in its group."""
        return self.core is not None and not self._leaving.is_set() and not self.task.done()

    @property
    def client_id(self) -> str:
        """The name under which servers know it."""
        return "" if self.core is None else self.core.state.client_id

    def has_batches(self) -> bool:
        """Return whether a user may have a batch that is not confirmed, and had not time enough for that."""
        return any(self._now < until for until in self._out.values())

    def leave(self) -> None:
        """Make it close; ``task`` ends then."""
        self._leaving.set()

    def crash(self) -> None:
        """Cut the power of its host for good."""
        self.is_gone = True
        self._cluster.crash_client(self.host)

    # Its life.

    async def _run(self) -> None:
        connections = Connections(look_up=self._cluster.look_up)
        core = await self._open(connections)
        if core is not None:
            self.core = core
            users = 1 + chance.below(3)
            async with asyncio.TaskGroup() as group:
                for _ in range(users):
                    group.create_task(self._use(core), name=f"user of {self.name}")
                if isinstance(core, AssignedCoreBase):
                    group.create_task(self._take_share(core), name=f"share of {self.name}")
                await self._leaving.wait()
                if chance.happens(20):
                    core.stop()
                    await asyncio.sleep(chance.between(0.0, 2.0))
                await self._close(core)
        if self._threads is not None:
            await self._threads.join()
        await connections.close()
        self._cluster.remove_client(self.host)

    async def _open(self, connections: Connections) -> ConsumerCore | None:
        while not self._leaving.is_set():
            core = self._make(connections)
            try:
                # Its user may give up at any time.
                async with asyncio.timeout(chance.one_of((None, None, 0.2))):
                    await core.open()
            except TimeoutError:
                simloom.reached("opening was cancelled")
                await core.close()
            except TubeMQError as error:
                simloom.reached(error.condition)
                await core.close()
            else:
                return core
            if not self._leaving.is_set():
                await asyncio.sleep(chance.between(0.1, 2.0))
        return None

    def _make(self, connections: Connections) -> ConsumerCore:
        habits = self.habits
        way = habits.way or DirectTransport(habits.config, connections)
        setup = ConsumerSetup(habits.config, habits.subscription, self._user_code(), self._on_loss)
        if habits.members is not None:
            node, follow_resets = Node(habits.members, self.node), habits.follow_resets and habits.way is None
            return way.assigned_consumer(dataclasses.replace(setup, node=node, follow_resets=follow_resets))
        if habits.callbacks:
            setup = dataclasses.replace(setup, on_assigned=self._on_assigned, on_revoked=self._on_revoked)
        return way.group_consumer(setup)

    def _user_code(self) -> UserCode:
        self._threads = _Threads(self._block_s) if chance.happens(50) else None
        return self._threads or UserLoop()

    async def _close(self, core: ConsumerCore) -> None:
        began, blocked_s = self._now, self._blocked_s
        if chance.happens(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.between(0.0, 2.0)):
                    await core.close()
            await core.close(chance.between(0.0, 1.0))
        assert await core.close()
        took_s = self._now - began - (self._blocked_s - blocked_s)
        if not hosts.was_frozen(self.host, began):
            assert took_s <= _CLOSE_S, f"{self.name} took {took_s} s to close instead of {_CLOSE_S}"
        left = [task for task in self.host._live_tasks() if not self._is_users(task)]  # noqa: SLF001
        assert not left, f"closing has left {left}"
        assert not core.state.connected, f"{core.state.held()} are left"

    def _is_users(self, task: "asyncio.Task[object]") -> bool:
        """Return whether a task is none of the consumer's: connections may outlive that."""
        is_connecting = "Connections." in getattr(task.get_coro(), "__qualname__", "")
        return is_connecting or task.get_name().endswith((self.name, "in a thread"))

    # Callbacks.

    def _on_loss(self, loss: LossRecord) -> None:
        self._ledger.check_loss(loss)
        if not self.habits.calm and not chance.happens(self.habits.tolerates):
            fail_on_loss(loss)

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> object:
        if self._threads is None:
            return self._take_time(lambda: self.assigned.update(partitions))
        self.assigned.update(partitions)
        self._fail_perhaps()
        return None

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> object:
        self.assigned.difference_update(partitions)
        if self._threads is None:
            return self._take_time(lambda: None)
        self._fail_perhaps()
        return None

    async def _take_time(self, then: Callable[[], object]) -> None:
        began = self._now
        try:
            await asyncio.sleep(self._block_s())
            then()
            self._fail_perhaps()
        finally:
            self._blocked_s += self._now - began

    def _block_s(self) -> float:
        """Return how long a function of the user takes."""
        return 0.0 if self.habits.calm else chance.between(0.0, chance.one_of((0.0, 0.5, 15.0)))

    def _fail_perhaps(self) -> None:
        if self.habits.callbacks_fail and not self.habits.calm and chance.happens(20):
            raise _UserError

    # Users.

    async def _use(self, core: ConsumerCore) -> None:
        while True:
            batch = await self._fetch(core)
            if batch is None:
                if not self.is_open:
                    return
                if not self.habits.calm:
                    await self._do_something(core)
            elif self.habits.calm or not chance.happens(40):
                await self._confirm(core, batch, settled=self.habits.settled)
            else:
                await self._do_otherwise(core, batch)

    async def _fetch(self, core: ConsumerCore) -> Batch | None:
        timeout_ms = chance.one_of((400, 3_000, -1) if self.habits.calm else (0, 0, 20, 400, 3_000, -1))
        patience_s = chance.between(0.0, 0.5) if chance.happens(30) and not self.habits.calm else None
        patient = chance.happens(50)
        began, batch = self._now, None
        try:
            async with asyncio.timeout(patience_s):
                if self.habits.calm or not chance.happens(10):
                    batch = await core.fetch(timeout_ms, patient=patient)
                else:
                    batch = await self._fetch_until_it_comes(core, timeout_ms)
        except TimeoutError:
            simloom.reached("a fetch was cancelled")
        except TubeMQError as error:
            self._check_fetch_error(error)
        if not hosts.was_frozen(self.host, began):
            took_s = self._now - began
            bounds_s = [patience_s] if patience_s is not None else []
            bounds_s += [timeout_ms / 1000 + _LATE_S * patient] if timeout_ms >= 0 else []
            bound_s = min(bounds_s, default=took_s)
            assert took_s <= bound_s + _AT_ONCE_S, f"a fetch took {took_s} s instead of {bound_s}"
        if batch is None:
            if timeout_ms == 0:
                await asyncio.sleep(chance.between(0.01, 0.3))
            return None
        if not self.habits.calm and chance.happens(3):
            core.put_back(batch)
            return None
        self._check_batch(core, batch)
        return batch

    async def _fetch_until_it_comes(self, core: ConsumerCore, timeout_ms: int) -> Batch | None:
        """Fetch, but stop waiting at the moment in which something comes."""
        waiting = asyncio.create_task(core.fetch(timeout_ms), name=f"waiting user of {self.name}")
        try:
            await asyncio.sleep(0)
            for fetch in _fetches(core):
                fetch.add_done_callback(lambda _: waiting.cancel())
            await asyncio.wait([waiting])
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])
        if waiting.cancelled():
            simloom.reached("a fetch was cancelled as something came")
            return None
        return waiting.result()

    def _check_fetch_error(self, error: TubeMQError) -> None:
        simloom.reached(error.condition)
        if error.condition == "TUBEMQ_CONSUMER_CLOSED":
            assert self._leaving.is_set(), "told to be closed, and is not"
            return
        assert not self.habits.settled, f"{error} when all is well"
        is_users = isinstance(error, DataLossError) or error.condition == "TUBEMQ_CALLBACK_FAILED"
        is_gateways = self.habits.way is not None and error.condition == "TUBEMQ_GATEWAY_FORBIDDEN"
        assert is_users or is_gateways or error.condition.startswith("TUBEMQ_RPC"), repr(error)

    def _check_batch(self, core: ConsumerCore, batch: Batch) -> None:
        partition, ledger = batch.partition, self._ledger
        confirm_s = self.habits.config.consumer.confirm_timeout_ms / 1000
        self._out[batch.context] = self._now + confirm_s + _TAKEN_BACK_S
        assert partition in core.state.connected, f"{partition} is not held"
        if self.habits.callbacks and self.habits.members is None:
            assert partition in self.assigned, f"{partition} was handed out before its user was told of it"
        values = ledger.note_batch(batch)
        for value in values:
            confirmed_at = self._confirmed.get(value)
            again_at = ledger.again.get(value, -1.0)
            assert confirmed_at is None or again_at >= confirmed_at, (
                f"{value!r} of {partition} was confirmed at {confirmed_at}, and comes again"
            )
        self._check_positions(core)

    def _check_positions(self, core: ConsumerCore) -> None:
        for partition, position in core.positions().items():
            holder, turns = core.state.connected[partition], self._ledger.turns_back[partition]
            before = self._positions.get(partition)
            since = -1
            if before is not None and before[0] is holder:
                # It may have been told of a turn before it came here.
                since = before[2] if position.offset == before[1] else before[3]
                went_on = position.offset >= before[1] or before[2] != turns
                assert went_on, f"{partition} went back from {before[1]} to {position}"
            self._positions[partition] = holder, position.offset, since, turns

    async def _confirm(
        self,
        core: ConsumerCore,
        batch: Batch,
        *,
        consumed: bool = True,
        patience_s: float | None = None,
        settled: bool = False,
    ) -> bool:
        """Confirm a batch or roll it back, which must not fail if all is well; return whether it was done."""
        ledger, began = self._ledger, self._now
        values = [record.value for record in batch.records]
        turns = ledger.turns_back[batch.partition]
        if consumed:
            ledger.confirmations.update(values)
        try:
            async with asyncio.timeout(patience_s):
                confirmed = await core.confirm(batch.context, consumed=consumed)
        except TimeoutError:
            simloom.reached("a confirmation was cancelled")
            return False
        except TubeMQError as error:
            simloom.reached(error.condition)
            if consumed and error.condition in _REFUSED:
                ledger.confirmations.subtract(values)
            if isinstance(error, DataLossError) and consumed:
                self._old.append(batch.context)
            self._check_confirm_error(error, batch, settled=settled)
            return False
        self._old.append(batch.context)
        self._out.pop(batch.context, None)
        assert confirmed.partition == batch.partition
        if not consumed:
            return True
        if confirmed.offset is not None:
            assert confirmed.offset > batch.offset, (confirmed, batch)
            self._confirmed |= dict.fromkeys(values, began)
        elif turns == ledger.turns_back[batch.partition]:
            simloom.reached("confirmed locally")
        return True

    def _check_confirm_error(self, error: TubeMQError, batch: Batch, *, settled: bool) -> None:
        may_fail = not settled or batch.context in self._old or self._leaving.is_set()
        assert may_fail, f"{error} when all is well"

    async def _do_otherwise(self, core: ConsumerCore, batch: Batch) -> None:
        """Treat a batch as users should not, or seldom do."""
        kind = chance.below(9)
        if kind == 0:
            await self._confirm(core, batch, consumed=False)
        elif kind == 1:
            await self._confirm(core, batch, patience_s=chance.between(0.0, 0.05))
        elif kind < 4:
            await asyncio.sleep(chance.between(0.0, chance.one_of((0.5, 5.0, 25.0))))
            await self._confirm(core, batch)
        elif kind == 4:
            if await self._confirm(core, batch):
                assert not await self._confirm_wrongly(core, batch.context), "confirmed twice"
        elif kind == 5 and self._old:
            assert not await self._confirm_wrongly(core, chance.one_of(self._old)), "confirmed twice"
            await self._confirm(core, batch)
        elif kind == 6:
            place, _, number = batch.context.rpartition("@")
            wrong = chance.one_of((f"{place}@{int(number) + 1}", place, "9:demo:9@1"))
            assert not await self._confirm_wrongly(core, wrong), "confirmed another one"
            await self._confirm(core, batch)
        elif kind == 7:
            both = [
                asyncio.create_task(self._confirm(core, batch, consumed=chance.happens(70))) for _ in range(2)
            ]
            assert sum(await asyncio.gather(*both)) <= 1, "confirmed twice"
        # Otherwise it is forgotten.

    async def _confirm_wrongly(self, core: ConsumerCore, context: str) -> bool:
        try:
            await core.confirm(context, consumed=True)
        except (ConsumeError, OptionError) as error:
            simloom.reached(error.condition)
            return False
        return True

    async def _do_something(self, core: ConsumerCore) -> None:
        kind = chance.below(20)
        partitions = core.state.held()
        if kind == 0:
            with contextlib.suppress(ConsumeError):
                core.pause(_some(self._ledger.partitions()))
        elif kind < 4:
            self.resume()
        elif kind == 4 and self.habits.seeks and partitions:
            await self._seek(core, chance.one_of(partitions))
        elif kind == 5 and partitions and isinstance(core, AssignedCoreBase):
            await self._disconnect(core, chance.one_of(partitions))
        elif kind == 6:
            with contextlib.suppress(TubeMQError):
                await core.lag(None)

    async def _disconnect(self, core: AssignedCoreBase, partition: TopicPartition) -> None:
        try:
            await core.disconnect(partition)
        except TubeMQError as error:
            simloom.reached(error.condition)
            self._check_disconnect_error(error)

    def _check_disconnect_error(self, error: TubeMQError) -> None:
        is_closed = error.condition == "TUBEMQ_CONSUMER_CLOSED" and self._leaving.is_set()
        assert is_closed or self.habits.way is not None, f"a partition could not be given up: {error}"

    async def _seek(self, core: ConsumerCore, partition: TopicPartition) -> None:
        (log,) = (
            store
            for broker in self._cluster.brokers
            for name, store in broker.model.stores.items()
            if name == partition.store_id
        )
        number = log.first + chance.below(1 + len(log.entries) - log.first)
        offset = number * INDEX_ENTRY_BYTES
        target: int | Edge = chance.one_of((Edge.EARLIEST, Edge.LATEST, offset, offset, offset))
        self._ledger.tell(self.client_id, partition)
        try:
            async with asyncio.timeout(chance.one_of((None, None, 0.05))):
                await core.seek(partition, target)
            simloom.reached("moved")
        except TimeoutError:
            simloom.reached("a move was cancelled")
        except TubeMQError as error:
            simloom.reached(error.condition)

    def pause(self) -> None:
        """Fetch nothing of what is held."""
        if (core := self.core) is not None:
            hosts.call(self.host, lambda: core.pause(core.state.held()))

    def resume(self) -> None:
        """Fetch again what was paused."""
        if self.core is not None:
            with contextlib.suppress(ConsumeError):
                hosts.call(self.host, self.core.resume)

    async def _take_share(self, core: AssignedCoreBase) -> None:
        """Connect to what belongs to this node, again and again."""
        while not self._leaving.is_set():
            try:
                await core.partitions()
                for partition in await core.share():
                    if partition not in core.state.connected and not self._leaving.is_set():
                        await core.connect(partition, None)
            except TubeMQError as error:
                simloom.reached(error.condition)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.between(0.1, 5.0)):
                    await self._leaving.wait()

    @property
    def _now(self) -> float:
        return self._cluster.world.time


def _some(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    return [partition for partition in partitions if chance.happens(50)]
