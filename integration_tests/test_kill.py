"""A stream whose process is killed, between micro-batches and within one, loses and repeats nothing."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from integration_tests.rig.jobs import kill_and_finish, rows_written
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.runs import form

KILLS_PER_JOB = form(short=3, long=5)


def options_of(server, topic, rows_per_trigger):
    return server.options(
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(rows_per_trigger),
        **{"tubemq.group": "it_kill"},
    )


def job(server, topic, folder, count):
    """Kill a job and let it finish; return how often a micro-batch was under way."""
    folder.mkdir()
    return kill_and_finish(folder, options_of(server, topic, count // 40), KILLS_PER_JOB)


@pytest.mark.spark
@pytest.mark.slow_on_java
@pytest.mark.timeout(900)
def test_kills_lose_and_repeat_nothing(server, tmp_path):
    """Jobs run side by side: what takes long is the start of their JVMs."""
    shapes = form(short=("2x3",), long=("3x1", "2x3"))
    topics = {shape: server.fresh_topic(shape) for shape in shapes}
    count = server.pick(embedded=8_000, real=20_000)
    for topic in topics.values():
        produce_numbers(server.master, topic, range(count))

    with ThreadPoolExecutor(len(topics)) as jobs:
        within = list(jobs.map(lambda shape: job(server, topics[shape], tmp_path / shape, count), topics))

    for shape in topics:
        assert_same_rows(rows_written(tmp_path / shape), range(count))
    assert KILLS_PER_JOB * len(topics) // 3 <= sum(within) < KILLS_PER_JOB * len(topics)
