"""What comes for a caller that has left, and who gets it: a consumer at gateways in virtual time."""

import asyncio

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import (
    HERE,
    ROW,
    THERE,
    batch_of,
    began,
    buffered,
    confirmed,
    connect,
    connected,
    core_of,
    left,
    member_of,
    settle,
    value_of,
)
from tubemq_spark.client.consumer.values import ConsumeStatus, PartitionState
from tubemq_spark.errors import DataLossError, RpcError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values

# Who gets what has come.


@in_virtual_time
async def test_a_batch_whose_caller_has_left_is_the_next_ones():
    async with connected(HERE) as (core, gateways):
        await buffered(core, gateways, HERE, 7)
        assert core.state.state_of(HERE) is PartitionState.FETCHING
        assert core.consume_status() is ConsumeStatus.READY
        assert value_of(await core.fetch(0)) == 7
        assert core.state.state_of(HERE) is PartitionState.IN_USE
        assert gateways.requests_at(0, "Fetch") == 1, "without anyone who waits no call begins"


@in_virtual_time
async def test_a_call_whose_caller_has_left_serves_the_one_that_comes_before_its_answer():
    async with connected(HERE) as (core, gateways):
        call = await left(core, gateways)
        fetching = began(core)
        await settle()
        assert gateways.names() == ["Fetch"]
        call.answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_a_batch_that_has_not_reached_its_user_is_the_next_ones():
    async with connected(HERE, THERE) as (core, gateways):
        await buffered(core, gateways, THERE, 3)
        fetching = began(core)
        batch = await fetching
        await buffered(core, gateways, HERE, 7)
        core.put_back(batch)
        core.put_back(batch)
        assert await core.fetch(0) == batch, "before what has come later"
        assert value_of(await core.fetch(0)) == 7
        await confirmed(core, gateways, batch, 4 * ROW)
        core.put_back(batch)
        assert await core.fetch(0) is None
        assert gateways.requests_at(0, "Commit") == 1


@in_virtual_time
async def test_who_has_waited_longest_is_served_first():
    async with connected(HERE, THERE) as (core, gateways):
        first, second = began(core), began(core)
        await settle()
        assert gateways.names() == ["Fetch", "Fetch"]
        gateways.asked[1].answer(batch_of(THERE, 1))
        third = began(core)
        assert value_of(await first) == 1
        await settle()
        assert not second.done()
        assert not third.done()
        (await gateways.next("Fetch")).answer(batch_of(HERE, 2))
        assert value_of(await second) == 2
        third.cancel()


@in_virtual_time
async def test_one_that_leaves_as_its_batch_comes_leaves_it_to_the_next():
    async with connected(HERE) as (core, gateways):
        first, second = began(core), began(core)
        await settle()
        gateways.asked[0].answer(batch_of(HERE, 1))
        while not core.state.ready():
            await asyncio.sleep(0)
        first.cancel()
        assert value_of(await second) == 1


@in_virtual_time
async def test_a_batch_that_no_caller_has_taken_in_time_comes_again():
    async with connected(HERE, confirm_timeout_ms=60_000) as (core, gateways):
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await asyncio.sleep(60)
        fetching = began(core)
        await settle()
        assert not fetching.done(), "its gateway has taken it back"
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_an_error_that_no_caller_has_waited_for_is_raised_by_the_next():
    async with connected(HERE, THERE) as (core, gateways):
        error = DataLossError("TUBEMQ_DATA_LOSS.EXPIRED", partition=str(HERE), start=0, end=28)
        (await left(core, gateways)).fail(error)
        await settle()
        assert core.state.held() == (THERE,)
        with pytest.raises(DataLossError):
            await core.fetch(0)
        assert await core.fetch(0) is None


@in_virtual_time
async def test_a_member_that_has_nothing_waits_for_messages_and_hears_that_it_is_refused():
    async with member_of() as (core, gateways):
        fetching = began(core)
        call = await gateways.next("Fetch")
        call.fail(rpc_error(ErrCode.CONSUME_GROUP_FORBIDDEN, "no", peer="master", during="registering"))
        with pytest.raises(RpcError, match="450"):
            await fetching


@in_virtual_time
async def test_what_comes_before_the_news_of_its_partition_waits_for_them():
    async with member_of() as (core, gateways):
        fetching = began(core)
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        await asyncio.sleep(0)
        changed = pb.SessionEvent.PartitionsChanged(partitions=values.offsets_to_proto({HERE: 7 * ROW}))
        gateways.events = [pb.SessionEvent(number=1, partitions_changed=changed)]
        assert value_of(await fetching) == 7


# What is not wanted.


@in_virtual_time
async def test_the_batch_of_a_paused_partition_waits_until_that_is_resumed():
    async with connected(HERE, THERE) as (core, gateways):
        fetching = began(core)
        call = await gateways.next("Fetch")
        core.pause(HERE)
        call.answer(batch_of(HERE, 7))
        call = await gateways.next("Fetch")
        assert call.request.paused == [values.partition_to_proto(HERE)]
        call.answer(batch_of(THERE, 3))
        assert value_of(await fetching) == 3
        assert await core.fetch(0) is None
        core.resume()
        assert value_of(await core.fetch(0)) == 7


@in_virtual_time
async def test_a_gateway_that_knows_a_partition_as_paused_is_called_once_more_when_that_is_resumed():
    async with connected(HERE, THERE) as (core, gateways):
        core.pause(HERE)
        fetching = began(core)
        await gateways.next("Fetch")
        core.resume()
        core.pause(THERE)
        await settle()
        assert [len(call.request.paused) for call in gateways.asked] == [1, 1]
        assert gateways.asked[1].request.paused == [values.partition_to_proto(THERE)]
        core.resume()
        await settle()
        assert [len(call.request.paused) for call in gateways.asked] == [1, 1, 0]
        gateways.asked[2].answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_nothing_is_asked_for_while_nothing_is_wanted():
    async with core_of() as (core, gateways):
        fetching = began(core)
        await settle()
        assert gateways.names() == []
        core.pause(HERE)
        await connect(core, gateways, HERE)
        await settle()
        assert gateways.names() == []
        assert core.consume_status() is ConsumeStatus.ALL_PAUSED
        core.resume(HERE)
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7
        assert core.consume_status() is ConsumeStatus.ALL_IN_USE


@in_virtual_time
async def test_a_patient_fetch_waits_a_moment_for_what_the_gateway_looks_for_and_no_other_does():
    async with connected(HERE) as (core, gateways):
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await core.fetch(0) is None
        assert await core.fetch(500, patient=True) is None
        assert loop.time() - before == pytest.approx(0.5, abs=0.01)
        assert await core.fetch(0, patient=True) is None
        assert loop.time() - before == pytest.approx(0.7, abs=0.01)
        assert await core.fetch(150, patient=True) is None
        assert loop.time() - before == pytest.approx(0.9, abs=0.01), "a moment from its beginning"
        fetching = began(core, 0, patient=True)
        await settle()
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7
        before = loop.time()
        assert await core.fetch(0, patient=True) is None, "its only partition is in use"
        assert loop.time() - before < 0.01
