"""Who holds what: clients share what is scarce, wait their turn, and nothing that ends is refused."""

import asyncio
import threading

import pytest

from tests.waiting import until
from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.admission import Admission, WorkLimit
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.net.fair_quota import FairQuota, Owner

ANN, BOB = Owner("ann", "1"), Owner("bob", "1")


# Work.


def run(scenario, *, at_once=2, waiting=1, patience_s=5.0):
    """Run a scenario with a limit, and a gate that threads wait for."""
    gate = threading.Event()

    async def whole():
        limit = WorkLimit("reads", at_once, FairQuota(waiting), patience_s, "g1")
        try:
            await scenario(limit, gate)
        finally:
            gate.set()
            assert await limit.close(5) == 0

    asyncio.run(whole())


async def work(limit, owner, gate=None, patience_s=None):
    """Take a place until a gate opens; None: it is open."""
    async with limit.place(owner, patience_s):
        if gate is not None:
            await gate.wait()
    return "served"


def counts(limit):
    return limit.quota.used, limit.quota.waiting


def test_work_that_finds_no_place_and_none_to_wait_is_refused_at_once():
    async def scenario(limit, _):
        gate = asyncio.Event()
        tasks = [asyncio.create_task(work(limit, ANN, gate)) for _ in range(3)]
        await until(lambda: counts(limit) == (2, 1))
        with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_BUSY") as refused:
            await work(limit, BOB)
        gate.set()
        assert await asyncio.gather(*tasks) == ["served"] * 3
        assert refused.value.parameters["retry_after_ms"] > 0

    run(scenario)


def test_a_call_waits_no_longer_than_its_client():
    async def scenario(limit, _):
        gate = asyncio.Event()
        first = asyncio.create_task(work(limit, ANN, gate))
        await until(lambda: counts(limit) == (1, 0))
        with pytest.raises(GatewayError, match=r"none of its 1 reads was free within 0.01 s"):
            await work(limit, BOB, patience_s=0.01)
        gate.set()
        assert await first
        assert await work(limit, BOB) == "served"

    run(scenario, at_once=1)


def test_the_place_of_a_call_that_is_cancelled_is_free_at_once():
    async def scenario(limit, _):
        cancelled = asyncio.create_task(work(limit, ANN, asyncio.Event()))
        await until(lambda: counts(limit) == (1, 0))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await work(limit, BOB) == "served"

    run(scenario, at_once=1, patience_s=0.01)


def test_a_call_that_is_cancelled_keeps_the_place_of_its_thread_until_that_has_ended():
    async def scenario(limit, gate):
        cancelled = asyncio.create_task(limit.run_in_thread(gate.wait, ANN))
        await until(lambda: counts(limit) == (1, 0))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(GatewayError):
            await limit.run_in_thread(gate.wait, BOB)
        gate.set()
        await until(lambda: counts(limit) == (0, 0))
        assert await limit.run_in_thread(lambda: 1, BOB) == 1

    run(scenario, at_once=1, patience_s=0.01)


def test_a_call_cancelled_while_it_waits_leaves_no_trace():
    async def scenario(limit, _):
        gate = asyncio.Event()
        first = asyncio.create_task(work(limit, ANN, gate))
        for _ in range(3):
            waiting = asyncio.create_task(work(limit, BOB))
            await until(lambda: counts(limit) == (1, 1))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        gate.set()
        assert await first

    run(scenario, at_once=1)


def test_an_error_of_a_thread_is_the_callers_and_frees_its_place():
    async def scenario(limit, _):
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await limit.run_in_thread(lambda: 1 // 0, ANN)
        await until(lambda: counts(limit) == (0, 0))

    run(scenario)


def test_closing_does_not_wait_for_ever_for_a_thread():
    async def whole():
        gate, limit = threading.Event(), WorkLimit("reads", 2, FairQuota(1), 5.0, "g1")
        stuck = asyncio.create_task(limit.run_in_thread(gate.wait, ANN))
        await until(lambda: counts(limit) == (1, 0))
        assert await limit.close(0.01) == 1
        with pytest.raises(asyncio.CancelledError):
            await stuck
        with pytest.raises(GatewayError):
            await work(limit, ANN)
        gate.set()

    asyncio.run(whole())


# A whole gateway.

MIB = 1 << 20


def admitting(scenario, **settings):
    async def whole():
        masters = (Endpoint("m", 8715),)
        admission = Admission(GatewaySettings(master_servers=masters, node_name="g1", **settings))
        try:
            await scenario(admission)
        finally:
            assert await admission.close(5) == 0

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("total", "longest", "of_one", "in_all"), [(64, 1, 4, 16), (64, 4, 1, 4), (8, 1, 1, 2), (1, 4, 1, 1)]
)
def test_a_quarter_of_the_bytes_is_for_what_comes_and_a_quarter_of_that_for_one_session(
    total, longest, of_one, in_all
):
    async def scenario(admission):
        async def come(who):
            try:
                await admission.hold(admission.coming(who), who, admission.longest, 0.0)
            except GatewayError:
                return 0
            return 1

        owners = [Owner(f"client {number}", "1") for number in range(in_all + 1)]
        assert sum([await come(owners[0]) for _ in range(of_one + 1)]) == of_one
        assert sum([await come(who) for who in owners[1:] for _ in range(of_one)]) == in_all - of_one

    admitting(scenario, total_bytes=total * MIB, session_bytes=total * MIB, max_message_bytes=longest * MIB)


def test_bytes_are_waited_for_as_long_as_the_settings_and_the_client_want():
    async def scenario(admission):
        await admission.hold(admission.bytes, ANN, 2 * MIB, None)
        for patience_s in (None, 86_400.0):
            with pytest.raises(GatewayError, match="TUBEMQ_GATEWAY_BUSY"):
                await admission.hold(admission.bytes, ANN, MIB, patience_s)
        admission.bytes.give(ANN, 2 * MIB)
        await admission.hold(admission.bytes, ANN, MIB, None)
        assert admission.bytes.used == MIB

    admitting(scenario, queue_ms=10, total_bytes=2 * MIB, session_bytes=2 * MIB)
