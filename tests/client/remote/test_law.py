"""Whatever users and gateways do: messages come in order, none is lost, and none confirmed comes again.

The gateways are a model of one: it gives one batch of a partition at a time, takes it back when it was not
confirmed in time or its session is over, and may be lost before or behind a call. Time is virtual.
"""

import asyncio
import collections
import contextlib
import random

import pytest

from testkit.examples import examples
from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import (
    ROW,
    ScriptedGateways,
    batch_of,
    core_on,
    opened,
    place,
    value_of,
)
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.consumers import RemoteAssignedCore, RemoteGroupCore
from tubemq_spark.errors import ConsumeError, GatewayError, TubeMQError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values

PLACES = [place(broker) for broker in (1, 2, 3)]
COUNT = 25
CONFIRM_S = 2.0


class ModelGateways(ScriptedGateways):
    """Two gateways before brokers that have ``COUNT`` messages in each partition, one in a batch."""

    def __init__(self, config, chance):
        super().__init__(config)
        self._chance = chance
        self.stands = dict.fromkeys(PLACES, 0)
        """How many messages the group has confirmed."""
        self.trouble = 0.05
        """How probably a call is lost with its gateway."""
        self._session = None
        self._attached = {}
        self._out = {}
        self._paused = set()
        self._changed = asyncio.Event()

    async def opening(self, gateway):
        if self._session != (gateway, self.session.epoch):
            self._session = gateway, self.session.epoch
            self._attached, self._out = {}, {}
        return opened()

    def begin_epoch(self):
        super().begin_epoch()
        self._session = None

    async def ask_at(self, gateway, name, request, answer, timeout_s):
        self._lose_some(gateway)
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        if self._session != (gateway, self.session.epoch):
            raise GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway=gateway, session="etl_1")
        result = await getattr(self, f"_{name.lower()}")(request)
        self._lose_some(gateway)
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        return result

    def _lose_some(self, gateway):
        if self._chance.random() < self.trouble:
            self._session = None
            raise AwayError("it was killed")

    async def _heartbeat(self, _):
        return pb.HeartbeatResponse(draining=self._chance.random() < self.trouble)

    async def _subscribe(self, _):
        self._attached = dict(self.stands)
        offsets = {where: number * ROW for where, number in self._attached.items()}
        return pb.SubscribeResponse(partitions=values.offsets_to_proto(offsets))

    async def _attachpartitions(self, request):
        response = pb.AttachPartitionsResponse()
        for attached in request.partitions:
            where = values.partition_from_proto(attached.partition)
            if attached.HasField("offset"):
                self.stands[where] = attached.offset // ROW
            self._attached[where] = self.stands[where]
            response.partitions.add(offset=self.stands[where] * ROW)
        return response

    async def _fetch(self, request):
        self._paused = set(map(values.partition_from_proto, request.paused))
        session, loop = self._session, asyncio.get_running_loop()
        until = loop.time() + request.wait_ms / 1000
        while session == self._session and loop.time() < until:
            for where in self._chance.sample(PLACES, len(PLACES)):
                if self._may_be_fetched(where):
                    self._out[where] = (
                        (fetched := batch_of(where, self.stands[where])),
                        loop.time() + CONFIRM_S,
                    )
                    fetched.batch += f"{self._chance.randrange(10**6)}"
                    return fetched
            await asyncio.sleep(0.02)
        return pb.FetchResponse(reason=pb.FetchResponse.REASON_AT_ENDS)

    def _may_be_fetched(self, where):
        if where in self._out and self._out[where][1] < asyncio.get_running_loop().time():
            del self._out[where]
        is_free = where in self._attached and where not in self._paused and where not in self._out
        return is_free and self.stands[where] < COUNT

    async def _commit(self, request):
        for where, (fetched, until) in list(self._out.items()):
            if fetched.batch == request.batch and asyncio.get_running_loop().time() < until:
                del self._out[where]
                self.stands[where] += not request.roll_back
                return pb.CommitResponse(offset=self.stands[where] * ROW)
        raise ConsumeError("TUBEMQ_CONFIRM_LATE", code=400, partition="demo", what="it was not in time")


class User:
    """Coroutines that read with one consumer, and are cancelled at any moment."""

    def __init__(self, core, gateways, chance):
        self._core, self._gateways, self._chance = core, gateways, chance
        self.confirmed = collections.defaultdict(list)

    @property
    def is_done(self):
        return all(self._gateways.stands[where] == COUNT for where in PLACES)

    async def read(self):
        while not self.is_done:
            timeout_ms = self._chance.choice([0, 50, 300, 2_000])
            batch = await self._cancelled_perhaps(self._core.fetch(timeout_ms, patient=timeout_ms == 300))
            if batch is not None and self._chance.random() < 0.2:
                self._core.put_back(batch)
            elif batch is not None:
                await self._use(batch)

    async def _use(self, batch):
        number = value_of(batch)
        assert number not in self.confirmed[batch.partition], "it was confirmed"
        assert number <= self._gateways.stands[batch.partition], "those before were confirmed"
        await asyncio.sleep(self._chance.choice([0, 0.01, 0.1, 2 * CONFIRM_S]))
        consumed = self._chance.random() < 0.8
        with contextlib.suppress(TubeMQError):
            confirmed = await self._core.confirm(batch.context, consumed=consumed)
            if consumed:
                assert confirmed.offset == (number + 1) * ROW
                self.confirmed[batch.partition].append(number)

    async def _cancelled_perhaps(self, fetch):
        task = asyncio.create_task(fetch)
        if self._chance.random() < 0.4:
            await asyncio.wait([task], timeout=self._chance.uniform(0, 0.2))
            task.cancel()
        await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    async def pause(self):
        while not self.is_done:
            self._core.pause(self._chance.sample(PLACES, self._chance.randrange(3)))
            await asyncio.sleep(self._chance.uniform(0, 1))
            self._core.resume()
            await asyncio.sleep(self._chance.uniform(0, 1))


@pytest.mark.parametrize("kind", [RemoteAssignedCore, RemoteGroupCore])
def test_the_law(kind):
    @in_virtual_time
    async def run(seed):
        chance = random.Random(seed)
        async with core_on(lambda config: ModelGateways(config, chance), kind) as (core, gateways):
            if kind is RemoteAssignedCore:
                for where in PLACES:
                    await core.connect(where, 0)
            user = User(core, gateways, chance)
            async with asyncio.timeout(3_600), asyncio.TaskGroup() as tasks:
                for work in (user.read, user.read, user.read, user.pause):
                    tasks.create_task(work())
            for numbers in user.confirmed.values():
                assert len(numbers) == len(set(numbers)), "once"
            gateways.trouble = 0.0

    for seed in range(examples(10, by_night=1_000)):
        try:
            run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
