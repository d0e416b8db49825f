"""What the embedded server shows while it serves."""

import io

from rich.console import Console

from tubemq_spark.cli.embedded_screen import Meter, line, live, table
from tubemq_spark.embedded.log.records import Traffic
from tubemq_spark.embedded.nodes import BrokerCondition
from tubemq_spark.embedded.server import Overview
from tubemq_spark.model import OffsetBounds, StoreId


def overview(messages_in=0, messages_out=0, stores=1, brokers=("running",)):
    return Overview(
        Traffic(messages_in, messages_in * 1000, messages_out, messages_out * 1000),
        connections=4,
        producers=1,
        consumers=2,
        leases=3,
        stores={
            StoreId("clicks", broker, number): OffsetBounds(28, 28 * 1001)
            for broker in range(1, len(brokers) + 1)
            for number in range(stores)
        },
        brokers={number: BrokerCondition(state) for number, state in enumerate(brokers, 1)},
    )


def meter():
    ticks = iter(range(0, 1000, 2))
    return Meter(clock=lambda: next(ticks))


def test_speeds_are_those_since_the_last_look():
    counter = meter()
    counter.flows(overview())
    incoming, outgoing = counter.flows(overview(3000, 500))
    assert str(incoming) == "1,500 messages/s, 1.5 MB/s (3,000 messages, 3.0 MB in total)"
    assert str(outgoing) == "250 messages/s, 0.2 MB/s (500 messages, 0.5 MB in total)"
    incoming, _ = counter.flows(overview(3000, 500))
    assert (incoming.messages_per_second, incoming.messages) == (0, 3000)


def test_two_looks_at_the_same_moment():
    counter = Meter(clock=lambda: 7.0)
    counter.flows(overview())
    counter.flows(overview(1))


def test_a_line_has_traffic_and_clients():
    seen = overview(20, 10)
    text = line(seen, meter().flows(seen))
    assert text == (
        "in 10 messages/s, 0.0 MB/s (20 messages, 0.0 MB in total); "
        "out 5 messages/s, 0.0 MB/s (10 messages, 0.0 MB in total); "
        "4 connections, 1 producer, 2 consumers, 3 partitions being read"
    )


def test_brokers_are_shown_with_their_state_where_there_are_several():
    seen = overview(brokers=("running", "frozen", "stopped"))
    assert line(seen, meter().flows(seen)).endswith("; brokers: 1 running, 2 frozen, 3 stopped")
    screen = shown(seen)
    assert "brokers: 1 running, 2 frozen, 3 stopped" in screen
    assert "1/0: 28-28028  2/0: 28-28028  3/0: 28-28028" in screen
    assert "brokers" not in shown(overview())


def shown(seen):
    file = io.StringIO()
    with live(Console(file=file, width=120, force_terminal=True)) as show:
        show(table(seen, meter().flows(seen)))
    return file.getvalue()


def test_a_table_has_the_offsets_of_every_topic():
    text = shown(overview(stores=2))
    assert "4 connections" in text
    assert "2,000" in text
    assert "0: 28-28028  1: 28-28028" in text


def test_a_topic_of_many_stores_is_cut_short():
    text = shown(overview(stores=9))
    assert "3: 28-28028  and 5 more" in text
    assert "4: 28" not in text
