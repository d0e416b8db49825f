"""Times, texts and JSON of records, as a producer sent them and as every kind of reader gets them."""

import asyncio
import datetime
import zoneinfo

import pytest

from tests.client.ways import WAYS, address_of, reached
from tubemq_spark.client import TopicPartition, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ

SHANGHAI = zoneinfo.ZoneInfo("Asia/Shanghai")
TIME = datetime.datetime(2026, 1, 31, 12, 5, tzinfo=SHANGHAI)
PLACE = TopicPartition("clicks", 1, 0)


@pytest.fixture(params=WAYS)
def url(request):
    with EmbeddedTubeMQ(topics={"clicks": (1, 1)}) as server, reached(server, request.param):
        with TubeMQClient.connect(server.master) as client, client.producer() as producer:
            producer.send("clicks", '{"page": "k\u00e4se"}', message_time=TIME)
            producer.send("clicks", b"\xe4", message_time=None)
        yield f"{address_of(server)}?message_time_zone=Asia/Shanghai&consume_position=first"


def read(client):
    return list(client.read("clicks"))


def consume(client):
    with client.assigned_consumer("clicks") as consumer:
        consumer.connect(PLACE)
        return list(consumer.messages(limit=2))


async def read_awaited(client):
    return [record async for record in client.read("clicks")]


async def consume_awaited(client):
    async with client.assigned_consumer("clicks") as consumer:
        await consumer.connect(PLACE)
        return [record async for record in consumer.messages(limit=2)]


@pytest.mark.parametrize("take", [read, consume, read_awaited, consume_awaited])
def test_records_tell_their_time_their_text_and_their_json(url, take):
    async def awaited():
        async with AsyncTubeMQClient.from_url(url) as client:
            return await take(client)

    if asyncio.iscoroutinefunction(take):
        first, second = asyncio.run(awaited())
    else:
        with TubeMQClient.from_url(url) as client:
            first, second = take(client)
    assert (first.timestamp, first.timestamp.tzinfo, first.message_time) == (TIME, SHANGHAI, "202601311205")
    assert first.text() == '{"page": "k\u00e4se"}'
    assert first.json() == {"page": "k\u00e4se"}
    assert (second.timestamp, second.message_time) == (None, None)
    assert second.text("latin-1") == "\u00e4"
    with pytest.raises(UnicodeDecodeError):
        second.text()
    with pytest.raises(ValueError, match=r"utf-8|Expecting"):
        second.json()
