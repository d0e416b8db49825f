"""Reads of what is on the broker's disk only."""

import json

import pytest

from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.queries import Collected, numbers, read, read_stream, refusal, run
from integration_tests.rig.servers import UNFLUSHED_TOPIC

pytestmark = pytest.mark.timeout(300)

FLUSHED = {"visibility": "flushed"}
TOPIC = UNFLUSHED_TOPIC


@pytest.mark.nightly
def test_what_a_crash_can_take_is_not_read(spark, server, tmp_path):
    """Nor lost, nor read twice: not even by a query that has read it from memory before."""
    produce_numbers(server.master, TOPIC, range(100))
    server.restart_broker()  # which writes everything to the disk
    assert_same_rows(numbers(read(spark, server, TOPIC, **FLUSHED)), range(100))
    produce_numbers(server.master, TOPIC, range(100, 150))
    assert_same_rows(numbers(read(spark, server, TOPIC)), range(150))
    if server.name == "real":
        # The embedded one writes to its disk when it likes to.
        assert_same_rows(numbers(read(spark, server, TOPIC, **FLUSHED)), range(100))
        end = json.dumps({TOPIC: {"1:0": 28 * 150}})
        condition, _ = refusal(lambda: numbers(read(spark, server, TOPIC, **FLUSHED, endingOffsets=end)))
        assert condition == "TUBEMQ_OFFSET_NOT_FLUSHED"

    from_memory, from_disk = Collected(), Collected()
    run(read_stream(spark, server, TOPIC), from_memory, tmp_path / "memory")
    assert_same_rows(from_memory.rows, range(150))
    run(read_stream(spark, server, TOPIC, **FLUSHED), from_disk, tmp_path / "disk")
    produce_numbers(server.master, TOPIC, range(150, 160))
    run(read_stream(spark, server, TOPIC, **FLUSHED), from_memory, tmp_path / "memory")
    if server.name == "real":
        assert_same_rows(from_disk.rows, range(100))
        assert_same_rows(from_memory.rows, range(150))

    server.restart_broker()
    run(read_stream(spark, server, TOPIC, **FLUSHED), from_memory, tmp_path / "memory")
    run(read_stream(spark, server, TOPIC, **FLUSHED), from_disk, tmp_path / "disk")
    assert_same_rows(from_memory.rows, range(160))
    assert_same_rows(from_disk.rows, range(160))
