"""What clients ask without being a member of a group; of two brokers, directly and through gateways."""

import asyncio
import datetime
import functools
from unittest import mock

import pytest

from tests.client.ways import WAYS, address_of, reached
from tests.waiting import wait_until
from tubemq_spark.client import OffsetBounds, TopicPartition, TubeMQClient
from tubemq_spark.client.aio import AsyncTubeMQClient
from tubemq_spark.client.metadata.questions import Questions
from tubemq_spark.client.transport.client_base import TopicQuestions
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import AdminError, OptionError, RpcError, TubeMQConnectionError
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint, StoreBounds, StoredOffset, StoredOffsets, TopicsLayout

ROW = 28
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def server():
    topics = {"clicks": (2, 1), "shared": (1, 2), "empty": (1, 1), "timeless": (1, 1)}
    settings = EmbeddedSettings(balance_period_ms=100)
    with EmbeddedTubeMQ(topics=topics, brokers=2, settings=settings) as running:
        with TubeMQClient.connect(running.master) as client, client.producer() as producer:
            for number in range(10):
                time = NOON + datetime.timedelta(minutes=number)
                producer.send("clicks", b"%d" % number, partition=(1, 10_000), message_time=time)
                producer.send("shared", b"%d" % number, partition=(2, number % 2), message_time=time)
                producer.send("timeless", b"%d" % number, partition=(1, 0), message_time=None)
        yield running


@pytest.fixture(params=WAYS)
def way(request, server, monkeypatch):
    web = [Endpoint.parse(server.master_web)]
    monkeypatch.setattr(GatewaySettings, "web_servers", lambda _settings: web)
    with reached(server, request.param):
        yield request.param


def connected(kind, server, **settings):
    if not hasattr(server, "gateways"):
        settings = {"master_web": server.master_web, **settings}
    return kind.connect(address_of(server), **settings)


class ByCoroutine:
    """A client for coroutines, each call of which is awaited here."""

    def __init__(self, client, runner):
        self.client, self._runner = client, runner

    def __getattr__(self, name):
        return lambda *given, **named: self._runner.run(getattr(self.client, name)(*given, **named))


@pytest.fixture(params=["threads", "coroutines"])
def client(request, server, way):
    if request.param == "threads":
        with connected(TubeMQClient, server, group="asking") as opened:
            yield opened
        return
    with asyncio.Runner() as runner:
        opened = connected(AsyncTubeMQClient, server, group="asking")
        yield ByCoroutine(opened, runner)
        runner.run(opened.close())


def test_the_topics(client):
    topics = client.topics()
    assert topics == tuple(sorted(topics))
    assert {"clicks", "shared", "empty", "timeless"} <= set(topics)


def test_the_partitions_of_a_topic(client):
    places = [(1, 0), (1, 10_000), (2, 0), (2, 10_000)]
    assert client.partitions("clicks") == tuple(TopicPartition("clicks", *place) for place in places)
    assert len(client.partitions("shared")) == 4
    with pytest.raises(RpcError, match="431"):
        client.partitions("nowhere")
    with pytest.raises(OptionError, match="TUBEMQ_BAD_SETTING"):
        client.partitions("no topic")


def test_only_a_direct_client_is_told_which_topic_was_perhaps_meant(client, way):
    """A client of a gateway may not know of the topics that it has no right to."""
    with pytest.raises(RpcError, match="431") as refused:
        client.partitions("clikcs")
    assert ("did you mean 'clicks'?" in str(refused.value)) == (way == "direct")


def test_where_partitions_begin_and_end(client):
    offsets = client.offsets("clicks")
    assert tuple(offsets) == client.partitions("clicks")
    written = TopicPartition("clicks", 1, 10_000)
    assert (offsets[written].earliest, offsets[written].latest) == (0, 10 * ROW)
    assert {bounds for place, bounds in offsets.items() if place != written} == {OffsetBounds(0, 0)}
    shared = {place.broker_id: bounds.latest for place, bounds in client.offsets("shared").items()}
    assert shared == {1: 0, 2: 10 * ROW}


@pytest.mark.parametrize("form", [lambda time: time, lambda time: round(time.timestamp() * 1000)])
def test_where_a_time_begins(client, form):
    written = TopicPartition("clicks", 1, 10_000)
    offsets = client.offsets_at("clicks", form(NOON + datetime.timedelta(minutes=4)))
    assert offsets == {place: 4 * ROW if place == written else 0 for place in client.partitions("clicks")}
    assert client.offsets_at("clicks", form(NOON + datetime.timedelta(days=1)))[written] == 10 * ROW


@pytest.mark.parametrize("time", [NOON.replace(tzinfo=None), "2026-01-31T12:00", True, -1])
def test_what_is_no_time_is_refused(client, time):
    with pytest.raises(OptionError, match=r"TUBEMQ_BAD_SETTING.*a datetime with a time zone"):
        client.offsets_at("clicks", time)


def test_messages_without_a_time_are_not_looked_for_by_time(client):
    with pytest.raises(OptionError, match=r"TUBEMQ_NO_MESSAGE_TIME.*timeless/1:0"):
        client.offsets_at("timeless", NOON)


def test_questions_disturb_no_consumer_of_the_group(server, client):
    """Its members read other topics, which a master does not put up with when the group itself asks."""
    with (
        TubeMQClient.connect(server.master, group="asking") as other,
        other.group_consumer("empty") as consumer,
    ):
        wait_until(lambda: len(consumer.connected) == 2, 30)
        partitions = consumer.connected
        assert len(client.partitions("clicks")) == 4
        assert client.offsets("clicks")[TopicPartition("clicks", 1, 10_000)].latest == 10 * ROW
        assert consumer.connected == partitions


def lag_of(client, *group, **asked):
    """Return the lag of a group, which is nothing as long as no broker tells of it."""
    try:
        return client.lag(*group, **asked)
    except OptionError:
        return {}


def test_what_a_group_has_not_read(server, client, way, request):
    group = f"lagging_{way}_{request.node.callspec.params['client']}"
    written = TopicPartition("clicks", 1, 10_000)
    with TubeMQClient.connect(server.master, group=group) as reader:
        with pytest.raises(OptionError, match=f"TUBEMQ_GROUP_UNKNOWN.*{group}"):
            client.lag(group)
        with reader.assigned_consumer(["clicks", "shared"]) as consumer:
            consumer.connect(written, 3 * ROW)
            consumer.connect(TopicPartition("shared", 2, 1), 10 * ROW)
    unread = {written: 7, TopicPartition("shared", 2, 1): 0}

    told = functools.partial(lag_of, client, group)
    wait_until(lambda: told() == unread, 30)  # brokers tell with a delay
    assert told(topics="clicks") == told(topics=["clicks", "empty"]) == {written: 7}
    assert told(topics=["empty"]) == {}


def test_where_a_broker_does_not_tell_of_a_group_its_lag_is_not_known():
    here, there, elsewhere = (TopicPartition("clicks", broker_id, 0) for broker_id in (1, 2, 3))
    away = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="none")
    layout = TopicsLayout(dict.fromkeys((here, there, elsewhere), Endpoint("127.0.0.1", 9)), 0)
    visitor = mock.create_autospec(Questions, instance=True)
    visitor.stored_offsets.return_value = StoredOffsets(
        (StoredOffset("etl", here, 3 * ROW, 0, 10 * ROW, None),), {2: away}
    )
    visitor.layout.return_value = layout
    bounds = OffsetBounds(0, 10 * ROW)
    visitor.bounds.return_value = StoreBounds({here.store_id: bounds, there.store_id: bounds}, {})
    unread = asyncio.run(TopicQuestions(visitor).lag("etl", ["clicks"]))
    assert unread == {here: 7, there: None}
    assert visitor.bounds.call_args.args == (layout, {here.store_id, there.store_id})


def test_the_lag_of_the_group_of_the_client(server, way):
    group = f"own_{way}"
    written = TopicPartition("clicks", 1, 10_000)
    with (
        TubeMQClient.connect(server.master, group=group) as reader,
        reader.assigned_consumer("clicks") as consumer,
    ):
        consumer.connect(written, 8 * ROW)
    with connected(TubeMQClient, server, group=group) as client:
        wait_until(lambda: lag_of(client) == {written: 2}, 30)


async def test_a_closed_client_for_coroutines_answers_nothing(server):
    client = AsyncTubeMQClient.connect(server.master)
    await client.close()
    for question in client.topics(), client.partitions("clicks"), client.offsets("clicks"), client.lag():
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CLIENT_CLOSED"):
            await question


# The administration.


def test_the_active_master_is_found_by_itself(server):
    with TubeMQClient.connect(server.master, master_web=["127.0.0.1:1", server.master_web]) as client:
        admin = client.admin(token="abc")
        admin.add_topic("made", [1])
        assert "made" in admin.topics()
        assert server.master_web in admin.url
        with pytest.raises(AdminError):
            admin.call("admin_no_such_call")
        assert "made" in admin.topics()


async def test_it_is_found_by_coroutines_too(server):
    async with AsyncTubeMQClient.connect(server.master, master_web=server.master_web) as client:
        assert "clicks" in await client.admin().topics()


def test_a_master_that_is_not_found_is_told_with_what_to_name(server):
    with TubeMQClient.connect(server.master, master_web="127.0.0.1:1") as client:
        admin = client.admin()
        with pytest.raises(
            TubeMQConnectionError, match=r"TUBEMQ_NO_ACTIVE_MASTER.*127\.0\.0\.1:1: .*master_web"
        ):
            admin.topics()
        with pytest.raises(TubeMQConnectionError, match=r"TUBEMQ_TOPICS_NOT_LISTED.*master_web"):
            client.topics()


def test_a_url_says_where_masters_are_administered(server):
    with TubeMQClient.from_url(f"tubemq://{server.master}?master_web={server.master_web}") as client:
        assert "clicks" in client.topics()
        assert "clicks" in client.admin().topics()


def test_through_gateways_an_address_has_to_be_given(server, way):
    if way == "direct":
        return
    with connected(TubeMQClient, server) as client:
        with pytest.raises(OptionError, match=r"web_address is left out; it must be given through gateways"):
            client.admin()
        assert "clicks" in client.admin(server.master_web).topics()
        with pytest.raises(OptionError, match=r"master_web is given; it must be left out through gateways"):
            connected(TubeMQClient, server, master_web=server.master_web)
