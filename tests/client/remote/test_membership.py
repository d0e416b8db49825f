"""Where a consumer's session is, and what keeps it there: heartbeats, and joins, in virtual time."""

import asyncio
import itertools

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import (
    ADDRESSES,
    HERE,
    ROW,
    THERE,
    StillChannels,
    attached,
    batch_of,
    began,
    busy,
    confirmed,
    connected,
    core_of,
    core_on,
    fetched,
    killed,
    left,
    member_of,
    no_master,
    settle,
    unknown,
    value_of,
)
from tubemq_spark.client.consumer.values import PartitionState
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.client.remote.consumers import RemoteGroupCore
from tubemq_spark.client.remote.gateways import Gateways
from tubemq_spark.errors import ConsumeError, TubeMQConnectionError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import to_proto


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
        channels = StillChannels(lease_ms, heartbeat_ms)

        def make(config):
            return Gateways(ADDRESSES[:1], config, clock=clock, channels=lambda *_: channels)

        async with core_on(make, RemoteGroupCore):
            await asyncio.sleep(120)
            calls = list(channels.calls)
        assert {name for name, _ in calls[2:]} == {"Heartbeat"}, "the session is kept"
        moments = [moment for _, moment in calls]
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert max(pauses) == pytest.approx(longest_s, abs=0.001)

    run()


@in_virtual_time
async def test_a_gateway_that_may_have_joined_a_member_without_an_answer_has_its_session_closed():
    async with member_of() as (core, gateways):
        gateways.usual = lambda *_: None
        fetching = asyncio.create_task(core.fetch(-1))
        (await gateways.next("Fetch")).fail(killed())
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
        (await gateways.next("Fetch")).fail(killed())
        (await gateways.next("Subscribe")).fail(busy())
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


# Gateways that are lost.


@pytest.mark.parametrize(
    ("error", "gateway"), [(killed(), 1), (unknown(), 0)], ids=["a lost gateway", "a lost session"]
)
def test_a_fetch_whose_caller_has_left_is_made_where_the_consumer_is_next(error, gateway):
    @in_virtual_time
    async def run():
        async with connected(HERE) as (core, gateways):
            (await left(core, gateways)).fail(error)
            fetching = began(core)
            for name, answer in (("AttachPartitions", attached(0)), ("Fetch", batch_of(HERE, 7))):
                call = await gateways.next(name)
                assert call.gateway == gateway
                call.answer(answer)
            assert value_of(await fetching) == 7

    run()


@in_virtual_time
async def test_what_was_buffered_when_its_gateway_was_lost_comes_from_the_next_one():
    async with connected(HERE, THERE) as (core, gateways):
        batch = await fetched(core, gateways, HERE, 7)
        fetches = [began(core), began(core)]
        await settle()
        for fetching in fetches:
            fetching.cancel()
        answered, waits = gateways.asked
        answered.answer(batch_of(THERE, 3))
        await settle()
        assert core.state.ready()
        waits.fail(killed())
        await settle()
        assert not core.state.ready()
        with pytest.raises(ConsumeError, match="its gateway was lost, so it comes again"):
            await core.confirm(batch.context, consumed=True)
        assert core.state.state_of(HERE) is PartitionState.IDLE


@in_virtual_time
async def test_a_fetch_waits_while_no_master_answers_the_next_gateway():
    async with connected(HERE) as (core, gateways):
        fetching = began(core)
        (await gateways.next("Fetch")).fail(killed())
        (await gateways.next("AttachPartitions")).fail(no_master())
        again = await gateways.next("AttachPartitions")
        assert not fetching.done()
        again.answer(attached(0))
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_the_next_gateway_gets_partitions_where_they_were_confirmed():
    async with connected(HERE, THERE) as (core, gateways):
        for where, number in ((HERE, 0), (THERE, 0), (HERE, 1)):
            batch = await fetched(core, gateways, where, number)
            if where == HERE:
                await confirmed(core, gateways, batch, (number + 1) * ROW)
        (await left(core, gateways)).fail(killed())
        joining = await gateways.next("AttachPartitions")
        assert joining.gateway == 1
        assert [
            (values.partition_from_proto(one.partition), one.offset) for one in joining.request.partitions
        ] == [
            (HERE, 2 * ROW),
            (THERE, 0),
        ]
        joining.answer(attached(2 * ROW, 0))
        await settle()
        assert core.state.held() == (HERE, THERE)
        assert core.membership.generation == 2


@in_virtual_time
async def test_what_cannot_be_attached_now_is_attached_with_a_later_heartbeat():
    async with connected(HERE, THERE) as (core, gateways):
        (await left(core, gateways)).fail(killed())
        refused = rpc_error(int(ErrCode.BAD_REQUEST), "no", peer="broker", during="registering")
        away = rpc_error(int(ErrCode.SERVICE_UNAVAILABLE), "no", peer="broker", during="registering")
        answer = pb.AttachPartitionsResponse()
        answer.partitions.add(error=to_proto(away))
        answer.partitions.add(error=to_proto(refused))
        (await gateways.next("AttachPartitions")).answer(answer)
        await settle()
        assert core.state.held() == (HERE,)
        assert core.state.troubles[HERE].code == ErrCode.SERVICE_UNAVAILABLE
        again = await gateways.next("AttachPartitions")
        again.fail(TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"))
        again = await gateways.next("AttachPartitions")
        assert [values.partition_from_proto(one.partition) for one in again.request.partitions] == [HERE]
        again.answer(attached(0))


@in_virtual_time
async def test_a_gateway_that_drains_is_asked_for_nothing_and_left_when_what_is_out_was_confirmed():
    async with connected(HERE, THERE) as (core, gateways):
        batch = await fetched(core, gateways, HERE, 0)
        fetching = began(core)
        (await gateways.next("Fetch")).answer(pb.FetchResponse(draining=True))
        gateways.is_draining = True
        await asyncio.sleep(0.5)
        assert gateways.names() == []
        confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
        committing = await gateways.next("Commit")
        core.membership.hasten()
        await asyncio.sleep(0.1)
        assert gateways.names() == ["Commit"], "it is not left before the answer"
        committing.answer(pb.CommitResponse(offset=ROW))
        await confirming
        gateways.is_draining = False
        (await gateways.next("AttachPartitions")).answer(attached(ROW, 0))
        call = await gateways.next("Fetch")
        assert call.gateway == 1
        call.answer(batch_of(THERE, 3))
        assert value_of(await fetching) == 3


@in_virtual_time
async def test_a_gateway_that_was_left_counts_no_missed_heartbeats():
    async with core_of() as (core, gateways):
        gateways.usual = lambda *_: None
        beating = await gateways.next("Heartbeat")
        beating.fail(busy())
        beating = await gateways.next("Heartbeat")
        assert core.missed_heartbeats() == {gateways.addresses[0]: 1}
        beating.fail(killed())
        (await gateways.next("AttachPartitions")).answer(attached())
        (await gateways.next("Heartbeat")).fail(busy())
        await settle()
        assert core.missed_heartbeats() == {gateways.addresses[1]: 1}
