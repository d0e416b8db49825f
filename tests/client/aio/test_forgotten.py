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


@pytest.mark.process
def test_a_program_ends_while_a_broker_is_silent():
    """The fetch that is under way holds its partition, and no event loop will carry on with it."""
    for run, leaves in RUNS.items():
        with EmbeddedTubeMQ(topics={TOPIC: (1, 1)}, brokers=2) as server:
            produce(server, numbered(5), where=partition(1))
            held = server.faults.hold(Method.GET_MESSAGE)
            left = server.faults.delay(Method.CONSUMER_CLOSE, 0)
            program = textwrap.dedent(PROGRAM).format(master=server.master, topic=TOPIC, run=run)
            ended = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
            )
            assert (ended.returncode, ended.stdout) == (0, "False\n"), ended.stderr
            assert held.hits == 1
            assert left.hits == leaves
