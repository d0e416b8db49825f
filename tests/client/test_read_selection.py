"""Reads of some records of a topic: by offsets, by times, the first or the last, of some partitions.

On a server of two brokers, directly and through gateways, by a client for threads and by one for coroutines.
"""

import asyncio
import datetime

import pytest

from tests.client.ways import WAYS, address_of, reached
from tubemq_spark.client import TopicPartition, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import DataLossError, OptionError
from tubemq_spark.offsets.loss import LossRecorder

ROW = 28
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
FIRST, SECOND = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 2, 10_000)
COUNT = 20
EVERYTHING = [(place, number) for place in (FIRST, SECOND) for number in range(COUNT)]


def minute(number):
    return NOON + datetime.timedelta(minutes=number)


@pytest.fixture(scope="module")
def server():
    topics = {"clicks": (2, 1), "shared": (1, 2), "timeless": (1, 1)}
    with EmbeddedTubeMQ(topics=topics, brokers=2, settings=EmbeddedSettings(max_entries=7)) as running:
        with TubeMQClient.connect(running.master) as client, client.producer() as producer:
            for number in range(COUNT):
                for place in (FIRST, SECOND):
                    where = (place.broker_id, place.partition_id)
                    producer.send("clicks", str(number), partition=where, message_time=minute(number))
            for number in range(90):
                # The last messages of the one partition are far apart.
                producer.send("shared", str(number), partition=(1, number % 30 == 0), message_time=None)
            producer.send("timeless", "x", message_time=None)
        yield running


@pytest.fixture(params=WAYS)
def way(request, server):
    with reached(server, request.param):
        yield request.param


@pytest.fixture(params=[TubeMQClient, AsyncTubeMQClient])
def kind(request, way):
    return request.param


def read(kind, server, *topics, **asked):
    """Return the partition and the number of each record."""

    async def awaited():
        async with kind.connect(address_of(server)) as client:
            return [(record.partition, int(record.text())) async for record in client.read(*topics, **asked)]

    if kind is AsyncTubeMQClient:
        return asyncio.run(awaited())
    with kind.connect(address_of(server)) as client:
        return [(record.partition, int(record.text())) for record in client.read(*topics, **asked)]


def numbers(first, second):
    return [*((FIRST, number) for number in first), *((SECOND, number) for number in second)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, EVERYTHING),
        ({"start": "earliest", "end": "latest"}, EVERYTHING),
        ({"limit": 5}, EVERYTHING[:5]),
        ({"limit": COUNT}, EVERYTHING[:COUNT]),
        ({"limit": COUNT + 9}, EVERYTHING[: COUNT + 9]),
        ({"limit": 1_000}, EVERYTHING),
        ({"last": 3}, numbers(range(17, 20), range(17, 20))),
        ({"last": 12, "limit": 14}, numbers(range(8, 20), range(8, 10))),
        ({"last": 1_000}, EVERYTHING),
        ({"last": 3, "end": {"1:0": 10 * ROW}}, numbers(range(7, 10), range(17, 20))),
        ({"partitions": [SECOND]}, EVERYTHING[COUNT:]),
        ({"partitions": ["2:10000"], "last": 1}, [(SECOND, 19)]),
        ({"start": {FIRST: 18 * ROW}}, numbers(range(18, 20), range(20))),
        ({"start": {FIRST: 5 * ROW}, "end": {FIRST: 7 * ROW, SECOND: ROW}}, numbers((5, 6), (0,))),
        ({"end": {FIRST: 0, SECOND: 1_000 * ROW}}, numbers((), range(20))),
        ({"start": {FIRST: COUNT * ROW}, "partitions": [FIRST]}, []),
        ({"start": minute(15)}, numbers(range(15, 20), range(15, 20))),
        ({"start": minute(15), "end": minute(17)}, numbers((15, 16), (15, 16))),
        ({"start": round(minute(19).timestamp() * 1000)}, numbers((19,), (19,))),
        ({"start": minute(1_000)}, []),
        ({"end": minute(2)}, numbers((0, 1), (0, 1))),
        ({"end": minute(2), "last": 1}, numbers((1,), (1,))),
        ({"start": {FIRST: ROW}, "end": minute(2), "limit": 2}, numbers((1,), (0,))),
    ],
)
def test_what_is_selected_is_read(kind, server, asked, expected):
    assert read(kind, server, "clicks", **asked) == expected


def test_the_last_of_a_partition_are_looked_for_behind_those_of_others(kind, server):
    first, second = TopicPartition("shared", 1, 0), TopicPartition("shared", 1, 1)
    expected = [(first, 88), (first, 89), (second, 30), (second, 60)]
    assert read(kind, server, "shared", last=2) == expected


def test_several_topics_are_read_one_after_the_other(kind, server):
    records = read(kind, server, "clicks", "shared", limit=2 * COUNT + 1)
    assert records == [*EVERYTHING, (TopicPartition("shared", 1, 0), 1)]


def test_a_partition_that_does_not_exist_is_an_error(kind, server):
    with pytest.raises(OptionError, match=r"TUBEMQ_PARTITION_NOT_LISTED.*clicks/9:0"):
        read(kind, server, "clicks", partitions=["9:0"])


def test_messages_without_times_are_not_read_by_time(kind, server):
    with pytest.raises(OptionError, match=r"TUBEMQ_NO_MESSAGE_TIME.*'start'"):
        read(kind, server, "timeless", start=NOON)


def test_an_offset_behind_the_end_of_its_log_is_a_loss(kind, server):
    asked = {"start": {FIRST: (COUNT + 2) * ROW}, "partitions": [FIRST]}
    with pytest.raises(DataLossError):
        read(kind, server, "clicks", **asked)
    losses = LossRecorder()
    assert read(kind, server, "clicks", on_loss=losses, **asked) == []
    assert [(loss.start, loss.end) for loss in losses.records] == [(COUNT * ROW, (COUNT + 2) * ROW)]


# Arrow.


def arrow(server, topics, **asked):
    with (
        TubeMQClient.connect(address_of(server)) as client,
        client.read_arrow(topics, columns=["brokerId", "value"], **asked) as reader,
    ):
        rows = reader.read_all().to_pylist()
    return [(FIRST if row["brokerId"] == 1 else SECOND, int(row["value"])) for row in rows]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"start": "earliest", "end": "latest"}, EVERYTHING),
        ({"limit": 5}, EVERYTHING[:5]),
        ({"limit": COUNT + 9}, EVERYTHING[: COUNT + 9]),
        ({"partitions": [SECOND]}, EVERYTHING[COUNT:]),
        ({"partitions": ["2:10000"], "start": {SECOND: 18 * ROW}}, [(SECOND, 18), (SECOND, 19)]),
        ({"start": {FIRST: 5 * ROW}, "end": {FIRST: 7 * ROW, SECOND: ROW}}, numbers((5, 6), (0,))),
        ({"start": minute(15), "end": minute(17)}, numbers((15, 16), (15, 16))),
        ({"start": minute(1_000)}, []),
        ({"start": {FIRST: 0}, "endingTimestamp": minute(1)}, numbers((0,), (0,))),
    ],
)
def test_arrow_reads_the_same(way, server, asked, expected):
    assert arrow(server, "clicks", **asked) == expected


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"last": 3}, "last is given; it must be left out: read takes it"),
        ({"start": NOON, "startingtimestamp": NOON}, "'start' and 'startingtimestamp'"),
        ({"end": {FIRST: ROW}, "endingOffsets": "latest"}, "'end' and 'endingOffsets'"),
        ({"partitions": [FIRST], "assign": {"clicks": ["1:0"]}}, "'partitions' and 'assign'"),
        ({"partitions": [FIRST], "topics": None}, "topics is missing; it must be given with partitions"),
        ({"start": "latest"}, "start is 'latest'"),
        ({"limit": 0}, "limit is 0"),
    ],
)
def test_what_arrow_cannot_read_is_refused_by_name(asked, told):
    with TubeMQClient.connect("127.0.0.1:1") as client, pytest.raises(OptionError, match=told):
        client.read_arrow(**{"topics": "clicks", **asked})


# What a read leaves behind, and what it finds gone.


def test_a_read_that_ends_by_its_limit_gives_its_lease_back(server):
    url = f"tubemq://{server.master}?reader_groups=alone&lease_wait_ms=500"
    with TubeMQClient.from_url(url) as client:
        for _ in range(3):
            assert [record.text() for record in client.read("clicks", limit=1)] == ["0"]


def test_offsets_that_have_expired_are_a_loss():
    with EmbeddedTubeMQ(topics={"clicks": (1, 1)}) as server, TubeMQClient.connect(server.master) as client:
        with client.producer() as producer:
            producer.send("clicks", "0")
        server.faults.apply_retention("clicks")
        with client.producer() as producer:
            producer.send("clicks", "1")
        assert [record.text() for record in client.read("clicks", start="earliest")] == ["1"]
        losses = LossRecorder()
        records = client.read("clicks", start={"1:0": 0}, on_loss=losses)
        assert [record.text() for record in records] == ["1"]
        assert [(loss.start, loss.end) for loss in losses.records] == [(0, ROW)]
        with pytest.raises(DataLossError):
            list(client.read("clicks", start={"1:0": 0}))
        assert [record.text() for record in client.read("clicks", last=5)] == ["1"]
