"""Batches that are ended, partitions that are moved or given up: a consumer at gateways in virtual time."""

import asyncio

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import (
    HERE,
    ROW,
    THERE,
    attached,
    batch_of,
    began,
    busy,
    connect,
    connected,
    context_of,
    fetched,
    killed,
    member_of,
    no_master,
    settle,
    value_of,
)
from tubemq_spark.errors import ConsumeError, RpcError, TubeMQConnectionError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values


async def goes_back(gateways, call):
    """Answer a call that was made before its partition was moved, and take back what it has brought."""
    call.answer(batch_of(HERE, 7))
    back = await gateways.next("Commit")
    assert back.request == pb.CommitRequest(batch=context_of(HERE, 7), roll_back=True)
    back.answer(pb.CommitResponse())


@in_virtual_time
async def test_what_the_gateway_says_of_a_confirmation_is_the_answer():
    async with connected(HERE) as (core, gateways):
        for error in (
            ConsumeError("TUBEMQ_CONFIRM_LATE", code=400, partition=HERE, what="it was not in time"),
            TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"),
        ):
            batch = await fetched(core, gateways, HERE, 0)
            confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
            (await gateways.next("Commit")).fail(error)
            with pytest.raises(type(error)) as raised:
                await confirming
            assert raised.value is error
            with pytest.raises(ConsumeError, match="it was confirmed before, or not in time"):
                await core.confirm(batch.context, consumed=True)
        with pytest.raises(ConsumeError, match="is not connected any more"):
            await core.confirm(context_of(THERE, 0), consumed=True)


@in_virtual_time
async def test_a_confirmation_whose_gateway_is_lost_may_have_been_carried_out():
    async with connected(HERE) as (core, gateways):
        batch = await fetched(core, gateways, HERE, 0)
        confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
        (await gateways.next("Commit")).fail(killed())
        with pytest.raises(TubeMQConnectionError, match="which comes again unless that was done"):
            await confirming


@in_virtual_time
async def test_what_was_asked_for_before_a_move_goes_back():
    async with connected(HERE) as (core, gateways):
        fetching = began(core)
        call = await gateways.next("Fetch")
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        (await gateways.next("AttachPartitions")).answer(attached(20 * ROW))
        assert (await moving).offset == 20 * ROW
        await goes_back(gateways, call)
        (await gateways.next("Fetch")).answer(batch_of(HERE, 20))
        assert value_of(await fetching) == 20


@in_virtual_time
async def test_moves_of_one_partition_follow_each_other():
    async with connected(HERE) as (core, gateways):
        moves = [asyncio.create_task(core.seek(HERE, number * ROW)) for number in (5, 6)]
        for number in (5, 6):
            await settle()
            assert gateways.names() == ["DetachPartitions"]
            gateways.asked[0].answer(pb.DetachPartitionsResponse())
            await settle()
            (joining,) = gateways.asked
            joining.answer(attached(joining.request.partitions[0].offset))
            assert joining.request.partitions[0].offset == number * ROW
        assert [(await move).offset for move in moves] == [5 * ROW, 6 * ROW]
        assert core.committed() == {HERE: 6 * ROW}


@in_virtual_time
async def test_a_move_that_was_refused_is_mended_by_the_next_heartbeat():
    async with connected(HERE, offset=3 * ROW) as (core, gateways):
        batch = await fetched(core, gateways, HERE, 3)
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        refusal = rpc_error(ErrCode.SERVICE_UNAVAILABLE, "no", peer="broker", during="registering")
        (await gateways.next("AttachPartitions")).fail(refusal)
        with pytest.raises(RpcError):
            await moving
        with pytest.raises(ConsumeError, match="TUBEMQ_CONFIRM_SOUGHT"):
            await core.confirm(batch.context, consumed=True)
        again = await gateways.next("AttachPartitions")
        assert again.request.partitions[0].offset == 3 * ROW
        again.answer(attached(3 * ROW))
        await settle()
        assert core.committed() == {HERE: 3 * ROW}


@in_virtual_time
async def test_a_move_that_a_busy_gateway_has_half_done_is_mended_by_the_next_heartbeat():
    async with connected(HERE, offset=3 * ROW) as (core, gateways):
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        (await gateways.next("AttachPartitions")).fail(busy())
        with pytest.raises(TubeMQConnectionError, match="is busy"):
            await moving
        again = await gateways.next("AttachPartitions")
        assert (again.gateway, again.request.partitions[0].offset) == (0, 3 * ROW)
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        await settle()
        assert gateways.names() == ["AttachPartitions"]
        again.answer(attached(3 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        assert await disconnecting
        assert core.membership.generation == 1


@in_virtual_time
async def test_what_was_asked_for_before_a_disconnection_goes_back_when_its_partition_is_connected_again():
    async with connected(HERE, THERE) as (core, gateways):
        fetching = began(core)
        call = await gateways.next("Fetch")
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        assert await disconnecting
        await connect(core, gateways, HERE, offset=20 * ROW)
        await goes_back(gateways, call)
        (await gateways.next("Fetch")).answer(batch_of(HERE, 20))
        assert value_of(await fetching) == 20


@in_virtual_time
async def test_a_partition_that_is_lost_while_its_batch_is_waited_for_is_disconnected_at_once():
    async with connected(HERE, THERE) as (core, gateways):
        await fetched(core, gateways, HERE, 7)
        before = asyncio.get_running_loop().time()
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        await settle()
        core.state.remove(HERE)
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        assert not await disconnecting
        assert asyncio.get_running_loop().time() - before < 0.5
        assert gateways.requests_at(0, "Commit") == 0


@in_virtual_time
async def test_a_disconnection_waits_for_a_move_that_is_half_done():
    async with connected(HERE) as (core, gateways):
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        joining = await gateways.next("AttachPartitions")
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        late = asyncio.create_task(core.seek(HERE, 0))
        await settle()
        assert gateways.names() == ["AttachPartitions"]
        joining.answer(attached(20 * ROW))
        assert (await moving).offset == 20 * ROW
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        assert await disconnecting
        with pytest.raises(ConsumeError, match="TUBEMQ_NOT_HELD"):
            await late
        await settle()
        assert gateways.names() == []


@in_virtual_time
async def test_a_connection_waits_for_a_disconnection_that_is_half_done():
    async with connected(HERE) as (core, gateways):
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        detaching = await gateways.next("DetachPartitions")
        connecting = asyncio.create_task(core.connect(HERE, 0))
        await settle()
        assert gateways.names() == ["DetachPartitions"]
        detaching.answer(pb.DetachPartitionsResponse())
        assert await disconnecting
        (await gateways.next("AttachPartitions")).answer(attached(0))
        await connecting
        assert core.state.held() == (HERE,)


@in_virtual_time
async def test_what_cannot_be_attached_holds_up_no_fetch_of_others():
    async with connected(HERE, THERE) as (core, gateways):
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        (await gateways.next("AttachPartitions")).fail(no_master())
        with pytest.raises(TubeMQConnectionError):
            await moving
        (await gateways.next("AttachPartitions")).fail(no_master())
        await settle()
        fetching = began(core)
        await settle()
        assert gateways.names() == ["Fetch"]
        gateways.asked[0].answer(batch_of(THERE, 3))
        assert value_of(await fetching) == 3


# Partitions whose losses were refused.


def refuse(loss):
    raise ValueError(loss)


def corrected(number, partition):
    """Return the event of a loss that the gateway has passed over."""
    loss = pb.Loss(kind="CORRUPT", start=0, end=ROW)
    told = pb.SessionEvent.OffsetCorrected(partition=values.partition_to_proto(partition), loss=loss)
    return pb.SessionEvent(number=number, offset_corrected=told)


def changed(number, *partitions):
    positions = values.offsets_to_proto(dict.fromkeys(partitions, 0))
    return pb.SessionEvent(number=number, partitions_changed={"partitions": positions})


@in_virtual_time
async def test_a_busy_gateway_is_asked_again_to_give_up_what_a_member_has_refused():
    async with member_of(on_loss=refuse) as (core, gateways):
        # The gateway has told of the other partition before it hears of the refusal.
        gateways.events = [changed(1, HERE), corrected(2, HERE), changed(3, HERE, THERE)]
        (await gateways.next("DetachPartitions")).fail(busy())
        assert core.state.held() == (THERE,)
        with pytest.raises(ValueError, match="CORRUPT"):
            await core.fetch(0)
        gateways.events = [changed(4, HERE, THERE)]
        detaching = await gateways.next("DetachPartitions")
        assert detaching.request.partitions == [values.partition_to_proto(HERE)]
        assert core.state.held() == (THERE,)
        detaching.answer(pb.DetachPartitionsResponse())
        gateways.events = [changed(5, THERE), changed(6, HERE, THERE)]
        await asyncio.sleep(20)
        assert core.state.held() == (HERE, THERE)
        assert gateways.requests_at(0, "DetachPartitions") == 2


@in_virtual_time
async def test_a_partition_that_was_refused_is_given_up_before_it_is_connected_again():
    async with connected(HERE, on_loss=refuse) as (core, gateways):
        gateways.events = [corrected(1, HERE)]
        (await gateways.next("DetachPartitions")).fail(busy())
        connecting = asyncio.create_task(core.connect(HERE, 20 * ROW))
        detaching = await gateways.next("DetachPartitions")
        await asyncio.sleep(20)
        assert gateways.names() == ["DetachPartitions"]
        detaching.answer(pb.DetachPartitionsResponse())
        (await gateways.next("AttachPartitions")).answer(attached(20 * ROW))
        assert (await connecting).offset == 20 * ROW
        await asyncio.sleep(20)
        assert gateways.requests_at(0, "DetachPartitions") == 2
