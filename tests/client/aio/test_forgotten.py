"""Programs that end without closing: nothing hangs, and the group hears of it."""

import subprocess
import sys
import textwrap

import pytest

from tests.client.assigned import TOPIC, numbered, partition, produce
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.protocol.constants import Method

PROGRAM = """
    import asyncio
    from tubemq_spark.client import TopicPartition
    from tubemq_spark.client.aio import AsyncTubeMQClient

    async def forget():
        client = AsyncTubeMQClient.connect("{master}", group="etl")
        consumer = await client.assigned_consumer("{topic}").open()
        await consumer.connect(TopicPartition("{topic}", 1, 0), 0)
        fetch = asyncio.ensure_future(consumer.fetch())
        await asyncio.sleep(0.3)
        print(fetch.done(), flush=True)
        return consumer

    {run}
    """
RUNS = {
    # How a program runs, and how often it leaves the master: in a loop that stands still nothing goes on.
    "kept = asyncio.run(forget())": 1,
    "loop = asyncio.new_event_loop(); kept = loop.run_until_complete(forget())": 0,
}

LAST_LINES = """
    import asyncio
    from tubemq_spark.client.aio import AsyncTubeMQClient

    async def use():
        client = AsyncTubeMQClient.connect("{master}", group="etl")
        consumer = await client.assigned_consumer("{topic}").open()
        {last}

    asyncio.run(use())
    """


def run_program(text, server, **parts):
    program = textwrap.dedent(text).format(master=server.master, topic=TOPIC, **parts)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.process
def test_a_program_ends_while_a_broker_is_silent():
    """The fetch that is under way holds its partition, and no event loop will carry on with it."""
    for run, leaves in RUNS.items():
        with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=2) as server:
            produce(server, numbered(5), where=partition(1))
            held = server.faults.hold(Method.GET_MESSAGE)
            left = server.faults.delay(Method.CONSUMER_CLOSE, 0)
            ended = run_program(PROGRAM, server, run=run)
            assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
            assert held.hits == 1
            assert left.hits == leaves


@pytest.mark.process
@pytest.mark.parametrize("last", ["del consumer", "await consumer.close(timeout=0)"])
def test_a_consumer_leaves_whose_closing_has_hardly_begun_when_its_loop_ends(last):
    with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}) as server:
        left = server.faults.delay(Method.CONSUMER_CLOSE, 0)
        ended = run_program(LAST_LINES, server, last=last)
        assert (ended.returncode, left.hits) == (0, 1), ended.stderr
