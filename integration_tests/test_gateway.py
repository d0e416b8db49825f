"""Spark through gateways: reads and writes as without, and one gateway after the other may go."""

import contextlib

import pytest

from integration_tests.produce import produce_numbers
from integration_tests.queries import Collected, numbers, read, read_stream, run, write
from integration_tests.truth import assert_same_rows
from tubemq_spark.gateway.background import BackgroundGateway
from tubemq_spark.gateway.loading import load_settings

COUNT = 3_000


class Gateways:
    """Two gateways before a server, which has them in place of its masters."""

    def __init__(self, server):
        self._flags = {"master_servers": server.master, "listen": "127.0.0.1:0"}
        self._running = [self._start(self._flags) for _ in range(2)]
        self.addresses = [one.address for one in self._running]

    def options(self, **more):
        return {"tubemq.gateway.servers": ",".join(self.addresses), "tubemq.group": "it_group", **more}

    def kill(self, number):
        """Cut all that it does, and start it again at its address."""
        self._running[number].stop(0)
        self._running[number] = self._start({**self._flags, "listen": self.addresses[number]})

    def roll(self, number):
        """Restart it as one does for a new release: it drains first."""
        self._running[number].stop(30_000)
        self._running[number] = self._start({**self._flags, "listen": self.addresses[number]})

    def close(self):
        for one in self._running:
            one.stop(0)

    def _start(self, flags):
        made = BackgroundGateway(load_settings(flags=flags))
        made.start()
        return made


@pytest.fixture
def gateways(server):
    with contextlib.closing(Gateways(server)) as running:
        yield running


@pytest.mark.any_server
def test_a_write_and_a_read_go_through_a_gateway_as_without_one(spark, server, gateways):
    topic = server.fresh_topic("3x1")
    text = "cast(id as string)"
    frame = spark.range(COUNT).selectExpr(f"{text} as value", f"map('n', {text}) as attributes")

    write(frame, gateways, topic=topic)

    through = read(spark, gateways, topic, includeAttributes="true").collect()
    direct = read(spark, server, topic, includeAttributes="true").collect()
    assert_same_rows(map(repr, through), map(repr, direct))  # a row with a map has no hash
    assert_same_rows([int(row.value) for row in through], range(COUNT))
    assert all(row.attributes["n"].encode() == bytes(row.value) for row in through)


@pytest.mark.any_server
@pytest.mark.parametrize("how", ["kill", "roll"])
def test_a_stream_through_gateways_that_go_in_turn_loses_and_repeats_nothing(
    spark, server, gateways, tmp_path, how
):
    topic, copy = server.fresh_topic("3x1"), server.fresh_topic("1x1")
    produce_numbers(server.master, topic, range(COUNT))
    stream = read_stream(spark, gateways, topic, maxOffsetsPerTrigger="500")
    collected = Collected()

    def sink(frame, batch):
        getattr(gateways, how)(batch % 2)
        collected(frame, batch)
        write(frame.select("value"), gateways, topic=copy)

    run(stream, sink, tmp_path)

    assert_same_rows(collected.rows, range(COUNT))
    assert set(numbers(read(spark, server, copy))) == set(range(COUNT))
