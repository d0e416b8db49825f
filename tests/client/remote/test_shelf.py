"""What comes for a caller that has left, and what becomes of it: a consumer at gateways in virtual time."""

import asyncio

import pytest

from testkit.virtual_loop import in_virtual_time
from tests.client.remote.scripted_calls import (
    ROW,
    attached,
    batch_of,
    connect,
    context_of,
    core_of,
    member_of,
    place,
    value_of,
)
from tubemq_spark.client.consumer.values import ConsumeStatus, PartitionState
from tubemq_spark.client.remote.attempts import AwayError
from tubemq_spark.errors import ConsumeError, DataLossError, GatewayError, RpcError, TubeMQConnectionError
from tubemq_spark.protocol.errcodes import ErrCode, rpc_error
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, values
from tubemq_spark.protocol.gateway.failures import to_proto

HERE, THERE = place(1), place(2)


def began(core, timeout_ms=-1, *, patient=False):
    return asyncio.create_task(core.fetch(timeout_ms, patient=patient))


async def settle():
    await asyncio.sleep(0.05)


async def left(core, gateways):
    """Begin a fetch that its caller leaves; return its call."""
    fetching = began(core)
    await settle()
    assert not fetching.done()
    call = await gateways.next("Fetch")
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    return call


async def confirmed(core, gateways, batch, offset):
    confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
    (await gateways.next("Commit")).answer(pb.CommitResponse(offset=offset))
    return await confirming


# Who gets what has come.


@in_virtual_time
async def test_a_batch_whose_caller_has_left_is_the_next_ones():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await settle()
        assert core.state.state_of(HERE) is PartitionState.FETCHING
        assert core.consume_status() is ConsumeStatus.READY
        assert value_of(await core.fetch(0)) == 7
        assert core.state.state_of(HERE) is PartitionState.IN_USE
        assert gateways.requests_at(0, "Fetch") == 1, "without anyone who waits no call begins"


@in_virtual_time
async def test_a_call_whose_caller_has_left_serves_the_one_that_comes_before_its_answer():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        call = await left(core, gateways)
        fetching = began(core)
        await settle()
        assert gateways.names() == ["Fetch"]
        call.answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_a_batch_that_has_not_reached_its_user_is_the_next_ones():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        (await left(core, gateways)).answer(batch_of(THERE, 3))
        await settle()
        fetching = began(core)
        batch = await fetching
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await settle()
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        first, second = began(core), began(core)
        await settle()
        gateways.asked[0].answer(batch_of(HERE, 1))
        while not core.state.ready():
            await asyncio.sleep(0)
        first.cancel()
        assert value_of(await second) == 1


@in_virtual_time
async def test_a_batch_that_nobody_has_taken_in_time_comes_again():
    async with core_of(confirm_timeout_ms=60_000) as (core, gateways):
        await connect(core, gateways, HERE)
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await asyncio.sleep(60)
        fetching = began(core)
        await settle()
        assert not fetching.done(), "its gateway has taken it back"
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_an_error_that_nobody_has_waited_for_is_raised_by_the_next():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await core.fetch(0) is None
        assert await core.fetch(500, patient=True) is None
        assert loop.time() - before == pytest.approx(0.5, abs=0.01)
        assert await core.fetch(0, patient=True) is None
        assert loop.time() - before == pytest.approx(0.7, abs=0.01)
        fetching = began(core, 0, patient=True)
        await settle()
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7
        before = loop.time()
        assert await core.fetch(0, patient=True) is None, "its only partition is in use"
        assert loop.time() - before < 0.01


# Gateways that are lost.


@in_virtual_time
async def test_a_fetch_whose_caller_has_left_while_its_gateway_is_lost_is_made_at_the_next_one():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        (await left(core, gateways)).fail(AwayError("it was killed"))
        fetching = began(core)
        (await gateways.next("AttachPartitions")).answer(attached(0))
        call = await gateways.next("Fetch")
        assert call.gateway == 1
        call.answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_what_lay_on_the_shelf_when_its_gateway_was_lost_comes_from_the_next_one():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await settle()
        batch = await core.fetch(0)
        fetches = [began(core), began(core)]
        await settle()
        for fetching in fetches:
            fetching.cancel()
        answered, waits = gateways.asked
        answered.answer(batch_of(THERE, 3))
        await settle()
        assert core.state.ready()
        waits.fail(AwayError("it was killed"))
        await settle()
        assert not core.state.ready()
        with pytest.raises(ConsumeError, match="its gateway was lost, so it comes again"):
            await core.confirm(batch.context, consumed=True)
        assert core.state.state_of(HERE) is PartitionState.IDLE


@in_virtual_time
async def test_a_fetch_waits_while_no_master_answers_the_next_gateway():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        fetching = began(core)
        (await gateways.next("Fetch")).fail(AwayError("killed"))
        no_master = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="registering", tried="m", cause="c")
        (await gateways.next("AttachPartitions")).fail(no_master)
        again = await gateways.next("AttachPartitions")
        assert not fetching.done()
        again.answer(attached(0))
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


@in_virtual_time
async def test_the_next_gateway_gets_partitions_where_they_were_confirmed():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        for where, number in ((HERE, 0), (THERE, 0), (HERE, 1)):
            (await left(core, gateways)).answer(batch_of(where, number))
            await settle()
            batch = await core.fetch(0)
            if where == HERE:
                await confirmed(core, gateways, batch, (number + 1) * ROW)
        (await left(core, gateways)).fail(AwayError("it was killed"))
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
        assert core.membership.stay == 2


@in_virtual_time
async def test_what_cannot_be_attached_now_is_attached_with_a_later_heartbeat():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        (await left(core, gateways)).fail(AwayError("it was killed"))
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        (await left(core, gateways)).answer(batch_of(HERE, 0))
        await settle()
        batch = await core.fetch(0)
        fetching = began(core)
        (await gateways.next("Fetch")).answer(pb.FetchResponse(draining=True))
        gateways.is_draining = True
        await asyncio.sleep(0.5)
        assert gateways.names() == []
        await confirmed(core, gateways, batch, ROW)
        gateways.is_draining = False
        (await gateways.next("AttachPartitions")).answer(attached(ROW, 0))
        call = await gateways.next("Fetch")
        assert call.gateway == 1
        call.answer(batch_of(THERE, 3))
        assert value_of(await fetching) == 3


@in_virtual_time
async def test_a_gateway_that_does_not_know_the_session_gets_it_again():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        fetching = began(core)
        (await gateways.next("Fetch")).fail(
            GatewayError("TUBEMQ_SESSION_UNKNOWN", gateway="gateway1", session="etl_1")
        )
        joining = await gateways.next("AttachPartitions")
        assert joining.gateway == 0
        joining.answer(attached(0))
        (await gateways.next("Fetch")).answer(batch_of(HERE, 7))
        assert value_of(await fetching) == 7


# Ending batches, and moves.


@in_virtual_time
async def test_what_the_gateway_says_of_a_confirmation_is_the_answer():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        for error in (
            ConsumeError("TUBEMQ_CONFIRM_LATE", code=400, partition=HERE, what="it was not in time"),
            TubeMQConnectionError("TUBEMQ_CLIENT_CLOSED"),
        ):
            (await left(core, gateways)).answer(batch_of(HERE, 0))
            await settle()
            batch = await core.fetch(0)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        (await left(core, gateways)).answer(batch_of(HERE, 0))
        await settle()
        batch = await core.fetch(0)
        confirming = asyncio.create_task(core.confirm(batch.context, consumed=True))
        (await gateways.next("Commit")).fail(AwayError("it was killed"))
        with pytest.raises(TubeMQConnectionError, match="which comes again unless that was done"):
            await confirming


@in_virtual_time
async def test_what_was_asked_for_before_a_move_goes_back():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
        fetching = began(core)
        call = await gateways.next("Fetch")
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        (await gateways.next("AttachPartitions")).answer(attached(20 * ROW))
        assert (await moving).offset == 20 * ROW
        call.answer(batch_of(HERE, 7))
        back = await gateways.next("Commit")
        assert back.request == pb.CommitRequest(batch=context_of(HERE, 7), roll_back=True)
        back.answer(pb.CommitResponse())
        (await gateways.next("Fetch")).answer(batch_of(HERE, 20))
        assert value_of(await fetching) == 20


@in_virtual_time
async def test_moves_of_one_partition_follow_each_other():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, offset=3 * ROW)
        (await left(core, gateways)).answer(batch_of(HERE, 3))
        await settle()
        batch = await core.fetch(0)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, offset=3 * ROW)
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        busy = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="gateway1", what="it is", retry_after_ms=100)
        (await gateways.next("AttachPartitions")).fail(AwayError(busy))
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
        assert core.membership.stay == 1


@in_virtual_time
async def test_what_was_asked_for_before_a_disconnection_goes_back_when_its_partition_is_connected_again():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        fetching = began(core)
        call = await gateways.next("Fetch")
        disconnecting = asyncio.create_task(core.disconnect(HERE))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        assert await disconnecting
        await connect(core, gateways, HERE, offset=20 * ROW)
        call.answer(batch_of(HERE, 7))
        back = await gateways.next("Commit")
        assert back.request == pb.CommitRequest(batch=context_of(HERE, 7), roll_back=True)
        back.answer(pb.CommitResponse())
        (await gateways.next("Fetch")).answer(batch_of(HERE, 20))
        assert value_of(await fetching) == 20


@in_virtual_time
async def test_a_partition_that_is_lost_while_its_batch_is_waited_for_is_disconnected_at_once():
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        (await left(core, gateways)).answer(batch_of(HERE, 7))
        await settle()
        await core.fetch(0)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE)
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
    async with core_of() as (core, gateways):
        await connect(core, gateways, HERE, THERE)
        moving = asyncio.create_task(core.seek(HERE, 20 * ROW))
        (await gateways.next("DetachPartitions")).answer(pb.DetachPartitionsResponse())
        no_master = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="registering", tried="m", cause="c")
        (await gateways.next("AttachPartitions")).fail(no_master)
        with pytest.raises(TubeMQConnectionError):
            await moving
        (await gateways.next("AttachPartitions")).fail(no_master)
        await settle()
        fetching = began(core)
        await settle()
        assert gateways.names() == ["Fetch"]
        gateways.asked[0].answer(batch_of(THERE, 3))
        assert value_of(await fetching) == 3


@in_virtual_time
async def test_a_gateway_that_was_left_counts_no_missed_heartbeats():
    async with core_of() as (core, gateways):
        gateways.usual = lambda *_: None
        beating = await gateways.next("Heartbeat")
        busy = GatewayError("TUBEMQ_GATEWAY_BUSY", gateway="gateway1", what="it is", retry_after_ms=100)
        beating.fail(AwayError(busy))
        beating = await gateways.next("Heartbeat")
        assert core.missed_heartbeats() == {gateways.endpoint(0): 1}
        beating.fail(AwayError("it was killed"))
        (await gateways.next("AttachPartitions")).answer(attached())
        (await gateways.next("Heartbeat")).fail(AwayError(busy))
        await settle()
        assert core.missed_heartbeats() == {gateways.endpoint(1): 1}
