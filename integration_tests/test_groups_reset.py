"""A group goes on exactly where ``groups reset`` sets it: its consumers, and streams that begin with it."""

import dataclasses
import json

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.messages import Sample, assert_same_rows, client_config, produce
from integration_tests.rig.queries import Collected, read_stream, run as run_query
from tubemq_spark.cli import main as cli
from tubemq_spark.client import ConsumePosition, ConsumerConfig, TubeMQClient

# The first test of a process also starts its servers and its Spark, beside those of others.
pytestmark = pytest.mark.timeout(300)

EARLY, LATE = "202601020304", "202601020305"
ROWS = 300
PATIENCE_SECONDS = 60
FIRST = ConsumerConfig(consume_position=ConsumePosition.FIRST)


@pytest.fixture
def told(server, capfd):
    """Run a command about groups that must succeed; return what it says as JSON."""

    def command(*arguments):
        capfd.readouterr()
        web = server.admin.url.split("/")[2]
        code = cli.main(["groups", *arguments, "--json", "--master", server.master, "--web", web])
        written = capfd.readouterr()
        assert code == 0, written.err
        return json.loads(written.out)

    return command


def consume(server, group, topic, is_enough):
    """Read and confirm as a member of the group until that is enough; return the numbers."""
    config = dataclasses.replace(client_config(server.master, group), heartbeat_period_ms=500)
    numbers = []
    with TubeMQClient(config) as client, client.group_consumer(topic, settings=FIRST) as consumer:

        def more():
            batch = consumer.fetch(500)
            if batch is not None:
                numbers.extend(int(record.value) for record in batch)
                consumer.confirm(batch)
            return is_enough(consumer, numbers, batch)

        wait_until(more, timeout_s=PATIENCE_SECONDS, what="the group's messages", poll_s=0)
    return numbers


def all_there_is(consumer, _, batch):
    """Tell whether a member has all partitions, and nothing comes from them."""
    return len(consumer.connected) == 3 and batch is None


def test_a_group_goes_on_exactly_where_it_is_reset_to(spark, server, told, tmp_path):
    topic, group = server.fresh_topic("3x1"), f"reset_{server.name}"
    produce(server.master, topic, (Sample(b"%d" % number, message_time=EARLY) for number in range(ROWS)))
    late = range(ROWS, ROWS + 60)
    produce(server.master, topic, (Sample(b"%d" % number, message_time=LATE) for number in late))
    with TubeMQClient(client_config(server.master)) as client:
        offsets = {int(record.value): record.offset for record in client.read(topic)}
    assert offsets.keys() == set(range(ROWS + 60))

    def has_read_some(consumer, numbers, _):
        if len(numbers) < 100 or len(consumer.connected) < 3:
            return False
        report = told("describe", group)
        holders = {row["consumer"] for row in report["partitions"]}
        member = {"client": consumer.client_id, "partitions": 3}
        return report["members"] == [member] and holders == {consumer.client_id}

    first = consume(server, group, topic, has_read_some)
    assert len(first) == len(set(first))

    def goes_on_with(expected, name):
        of_group = {"tubemq.group": group, "startingOffsets": "group"}
        sink = Collected()
        run_query(read_stream(spark, server, topic, **of_group), sink, tmp_path / name)
        assert_same_rows(sink.rows, expected)
        assert_same_rows(consume(server, group, topic, all_there_is), expected)
        assert told("describe", group)["lag"] == 0

    def shown():
        return told("reset", group, topic, "--to", "1400")["partitions"]

    wait_until(
        lambda: sum(row["now"] or 0 for row in shown()) == 28 * len(first),
        timeout_s=PATIENCE_SECONDS,
        what="the brokers to tell the group's positions",
    )
    assert {row["then"] for row in shown()} == {1400}
    assert {"group": group, "members": 0, "topics": [topic]} in told("list")["groups"]
    assert told("reset", group, topic, "--to", "1400", "--execute")["executed"]
    beyond = [number for number, offset in offsets.items() if offset >= 1400]
    goes_on_with(beyond, "offset")

    told("reset", group, topic, "--to", "2026-01-02T03:05", "--execute")
    goes_on_with(late, "time")

    new = f"new_{group}"  # which has read nothing before
    told("reset", new, topic, "--to", "1400", "--execute")
    assert_same_rows(consume(server, new, topic, all_there_is), beyond)

    places = {partition: 28 * number for number, partition in enumerate(("1:0", "1:10000", "1:20000"), 1)}
    told("reset", group, "--offsets", json.dumps({topic: places}), "--execute")
    report = told("describe", group)["partitions"]
    assert [row["committed"] for row in report] == [28, 56, 84]
