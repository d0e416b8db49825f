"""Where a consumer's session is, and what keeps it there: heartbeats, and joins, in virtual time."""

import asyncio
import itertools
from concurrent.futures import Future

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import ADDRESSES, core_on, member_of
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.channels import Channels
from tubemq_spark.client.remote.consumers import RemoteGroupCore
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.errors import GatewayError
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


class StillChannel:
    """A channel to a gateway that answers at once, and has nothing to tell."""

    def __init__(self, lease_ms, heartbeat_ms):
        self._opened = pb.OpenSessionResponse(lease_ms=lease_ms, heartbeat_ms=heartbeat_ms)
        self.calls = []
        """Each as its name and when it was made."""

    async def call(self, method, request, answer, metadata, timeout_s):
        self.calls.append((method.name, asyncio.get_running_loop().time()))
        return self._opened if method.name == "OpenSession" else answer()

    def begin(self, method, request, metadata, timeout_s):
        self.calls.append((method.name, asyncio.get_running_loop().time()))
        ended = Future()
        ended.set_result(None)
        return ended

    def close(self):
        pass


class StillChannels(Channels):
    def __init__(self, channel):
        super().__init__()
        self._channel = channel

    def connect(self, gateway, made_from):
        return self._channel


@pytest.mark.parametrize(
    ("lease_ms", "heartbeat_ms", "longest_s"),
    [
        (30_000, 10_000, 10.0),
        (30_000, 5_000, 5.0),
        (15_000, 10_000, 5.0),
        (3_000, 1_000, 1.0),
        (300, 200, 0.1),
        (3_600_000, 1_800_000, 10.0),
    ],
)
def test_heartbeats_come_as_often_as_the_gateway_needs_them(lease_ms, heartbeat_ms, longest_s):
    @in_virtual_time
    async def run():
        clock = asyncio.get_running_loop().time
        channel = StillChannel(lease_ms, heartbeat_ms)

        def make(config):
            return Gateways(ADDRESSES[:1], config, clock=clock, channels=lambda *_: StillChannels(channel))

        async with core_on(make, RemoteGroupCore):
            await asyncio.sleep(120)
            calls = list(channel.calls)
        assert {name for name, _ in calls[2:]} == {"Heartbeat"}, "the session is kept"
        moments = [moment for _, moment in calls]
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert max(pauses) == pytest.approx(longest_s, abs=0.001)

    run()


def unknown():
    return GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway="gateway1", session="etl_1")


@in_virtual_time
async def test_a_gateway_that_may_have_joined_a_member_without_an_answer_has_its_session_closed():
    async with member_of() as (core, gateways):
        gateways.usual = lambda *_: None
        fetching = asyncio.create_task(core.fetch(-1))
        (await gateways.next("Fetch")).fail(AwayError("it was killed"))
        for gateway in (1, 0):
            joining = await gateways.next("Subscribe")
            assert joining.gateway == gateway
            epoch = gateways.session.epoch
            joining.fail(AwayError("it has not answered in time"))
            await asyncio.sleep(0.01)
            assert gateways.requests_at(gateway, "CloseSession") == 2 - gateway
            assert gateways.session.epoch > epoch
        fetching.cancel()


@in_virtual_time
async def test_a_gateway_that_is_busy_keeps_the_session_of_a_member_that_joins():
    async with member_of() as (core, gateways):
        gateways.usual = lambda *_: None
        fetching = asyncio.create_task(core.fetch(-1))
        (await gateways.next("Fetch")).fail(AwayError("it was killed"))
        busy = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="gateway2", what="it is", retry_after_ms=100)
        (await gateways.next("Subscribe")).fail(AwayError(busy))
        (await gateways.next("Subscribe")).answer(pb.SubscribeResponse())
        await gateways.next("Fetch")
        assert gateways.requests_at(1, "CloseSession") == 0
        fetching.cancel()


@in_virtual_time
async def test_gateways_that_know_no_session_are_not_asked_without_pause():
    async with member_of() as (core, gateways):
        gateways.usual = lambda *_: None
        fetching = asyncio.create_task(core.fetch(-1))
        (await gateways.next("Fetch")).fail(unknown())
        began = asyncio.get_running_loop().time()
        for _ in range(10):
            (await gateways.next("Subscribe")).fail(unknown())
        assert asyncio.get_running_loop().time() - began > 2.0
        fetching.cancel()
