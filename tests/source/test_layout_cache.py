"""A layout is asked for seldom, sooner when a broker contradicts it, and kept while no master answers."""

import logging

import pytest

from testkit.readers import Stream
from tests.source.fake_cluster import NO_SUCH_TOPIC, partition
from tests.waiting import wait_until
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.errors import AdminError, OptionError, RemoteProtocolError, RpcError, TubeMQConnectionError
from tubemq_spark.model import Endpoint
from tubemq_spark.offsets.subscription import TopicPattern, Topics
from tubemq_spark.source import layout_cache
from tubemq_spark.source.layout_cache import LayoutCache
from tubemq_spark.source.schema import default_schema

AWAY = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="none")


@pytest.fixture
def layouts(cluster, clock):
    return LayoutCache(cluster, Topics(("demo",)))


def test_a_layout_is_recent_for_ten_seconds(layouts, cluster, clock):
    first = layouts.recent()
    clock[0] += 9.9
    assert layouts.recent() is first is layouts.last
    clock[0] += 0.2
    assert layouts.recent() is not first
    assert cluster.layouts == 2


def test_a_suspect_layout_is_asked_for_again_after_a_second(layouts, cluster, clock):
    layouts.recent()
    layouts.suspect = True
    clock[0] += 0.5
    layouts.recent()
    assert cluster.layouts == 1
    clock[0] += 0.6
    layouts.recent()
    assert cluster.layouts == 2


def test_a_topic_that_is_missing_is_told_by_the_first_layout(layouts, cluster, clock):
    cluster.removed = {"demo"}
    layout, asked_now = layouts.newest()
    assert (layout.missing_topics, asked_now) == ({"demo"}, True)


def test_a_topic_that_is_missing_is_asked_for_seldom(cluster, clock):
    """A master refuses all topics where one is missing, so each question would become several."""
    layouts = LayoutCache(cluster, Topics(("demo", "missing")))
    cluster.removed = {"missing"}
    assert layouts.ask(missing_ok=True).missing_topics == {"missing"}
    cluster.asked_topics.clear()
    for _ in range(90):
        clock[0] += 0.1
        layout, asked_now = layouts.newest()
        assert asked_now
        assert layout.missing_topics == {"missing"}
    assert cluster.asked_topics == [{"demo"}] * 90

    clock[0] += 1.1
    cluster.removed = set()
    cluster.partitions.add(partition(0, "missing"))
    assert partition(0, "missing") in layouts.newest()[0].partitions


def test_topics_are_found_by_a_pattern_each_time(cluster, clock):
    layouts = LayoutCache(cluster, TopicPattern("demo.*"))
    assert {one.topic for one in layouts.ask(missing_ok=False).partitions} == {"demo"}
    cluster.partitions |= {partition(0, "demo2"), partition(0, "other")}
    clock[0] += 11
    assert {one.topic for one in layouts.recent().partitions} == {"demo", "demo2"}


@pytest.mark.parametrize(("pattern", "named"), [("demos_.*", "demo"), ("zzz.*", "demo, other")])
def test_a_pattern_that_matches_nothing_is_told_of_once_with_topics_near_it(pattern, named, cluster, caplog):
    cluster.partitions.add(partition(0, "other"))
    layouts = LayoutCache(cluster, TopicPattern(pattern))
    for _ in range(2):
        assert layouts.ask(missing_ok=False).partitions == {}
    assert cluster.layouts == 0, "nothing is asked for"
    assert caplog.messages == [f"no topic matches subscribePattern='{pattern}' as a whole; there is {named}"]


def test_the_topics_of_the_last_list_are_read_while_no_master_answers(cluster, clock, caplog):
    layouts = LayoutCache(cluster, TopicPattern("demo"))
    layouts.ask(missing_ok=False)
    cluster.topics_fail = AWAY
    for _ in range(3):
        clock[0] += 400
        assert layouts.recent().partitions
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "new topics are not found as long as no master lists them"
    ]


def test_without_a_list_of_topics_there_is_no_layout(cluster, clock):
    cluster.topics_fail = AWAY
    began = clock[0]
    with pytest.raises(TubeMQConnectionError):
        LayoutCache(cluster, TopicPattern("demo")).ask(missing_ok=False)
    assert clock[0] - began == 4


def test_a_query_that_begins_waits_for_a_list_while_a_master_restarts(cluster, clock, monkeypatch):
    cluster.topics_fail = AWAY
    began, list_topics = clock[0], cluster.topics

    def topics():
        if clock[0] >= began + 3:
            cluster.topics_fail = None
        return list_topics()

    monkeypatch.setattr(cluster, "topics", topics)
    assert LayoutCache(cluster, TopicPattern("demo")).ask(missing_ok=False).partitions


def test_a_refusal_to_list_topics_is_told_at_once(cluster, clock):
    refusal = AdminError("TUBEMQ_ADMIN_REFUSED", server="m1:8080", method="a", code=1, reason="no")
    cluster.topics_fail = refusal
    began = clock[0]
    with pytest.raises(AdminError):
        LayoutCache(cluster, TopicPattern("demo")).ask(missing_ok=False)
    assert clock[0] == began


def test_the_last_layout_is_kept_while_no_master_answers(layouts, cluster, clock, caplog):
    first = layouts.ask(missing_ok=True)
    cluster.away = AWAY
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock[0] += 11
            assert layouts.ask(missing_ok=True) is first
        cluster.away = None
        clock[0] += 11
        assert layouts.ask(missing_ok=True) is not first

    gone, back = [record.getMessage() for record in caplog.records]
    assert gone.startswith("no master answers; continuing with the last layout")
    assert back == "a master answers again; the last layout was 44 s old"


def test_masters_that_are_away_are_not_asked_by_every_question(layouts, cluster, clock):
    layouts.ask(missing_ok=True)
    cluster.away = AWAY
    layouts.ask(missing_ok=True)
    asked = cluster.layouts
    clock[0] += 9
    layouts.ask(missing_ok=True)
    assert cluster.layouts == asked


def test_what_was_asked_before_a_newer_layout_came_is_not_taken(layouts, cluster, clock):
    layouts.ask(missing_ok=True)
    cluster.masters_hang = True
    assert layouts.newest() == (layouts.last, False)
    newer = layouts.ask(missing_ok=True)
    cluster.masters_hang = False
    assert layouts.recent() is newer


def test_a_layout_that_came_late_is_taken_and_the_next_one_is_asked_for(layouts, cluster, clock):
    layouts.ask(missing_ok=True)
    cluster.masters_hang = True
    layouts.newest()
    cluster.masters_hang = False
    layout, asked_now = layouts.newest()
    assert asked_now
    assert layout.visit_token == cluster.layouts


def test_a_layout_is_kept_for_ten_minutes_only(layouts, cluster, clock):
    layouts.ask(missing_ok=True)
    cluster.away = AWAY
    clock[0] += 601
    with pytest.raises(TubeMQConnectionError) as away:
        layouts.ask(missing_ok=True)
    assert away.value is AWAY


@pytest.mark.parametrize(
    "nonsense",
    [
        OptionError("TUBEMQ_NOT_A_MASTER", endpoint="m:1", what="an HTTP server"),
        OptionError("TUBEMQ_TLS_EXPECTED", endpoint="m:1"),
        RemoteProtocolError("TUBEMQ_PROTOCOL_VIOLATION", what="a list contradicts the other"),
    ],
    ids=lambda error: error.condition,
)
def test_nonsense_in_the_place_of_a_master_is_no_answer_while_there_is_a_layout(
    cluster, clock, caplog, nonsense
):
    layouts = LayoutCache(cluster, Topics(("demo",)))
    cluster.away = nonsense
    with pytest.raises(type(nonsense)):
        layouts.ask(missing_ok=True)
    cluster.away = None
    last = layouts.ask(missing_ok=True)
    cluster.away = nonsense
    clock[0] += 11
    assert layouts.newest() == (last, False)
    assert f"no master answers; continuing with the last layout: {nonsense}" in caplog.text
    clock[0] += 600
    with pytest.raises(type(nonsense)):
        layouts.newest()


def test_brokers_of_which_none_is_where_it_was_are_told_of_once(layouts, cluster, clock, caplog):
    cluster.add_broker()
    layouts.ask(missing_ok=True)
    for number in range(2):
        cluster.addresses = {broker: Endpoint("elsewhere", 9000 + number) for broker in (1, 2)}
        layouts.ask(missing_ok=True)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == (
        "the masters list each broker at another address than before, for example broker 1 at "
        "elsewhere:9000, not at broker:8123; if that is another cluster, the query goes on there at "
        "offsets of the first one: name the masters of one cluster only"
    )


@pytest.mark.parametrize("moved", [(1,), (2,)])
def test_a_broker_that_moves_alone_is_not_told_of(layouts, cluster, clock, caplog, moved):
    cluster.add_broker()
    layouts.ask(missing_ok=True)
    cluster.addresses = dict.fromkeys(moved, Endpoint("elsewhere", 9000))
    layouts.ask(missing_ok=True)
    cluster.partitions.clear()
    layouts.ask(missing_ok=True)
    assert caplog.records == []


def test_the_masters_of_another_cluster_are_told_of(monkeypatch, caplog):
    monkeypatch.setattr(layout_cache, "_MAX_AGE_SECONDS", 0)
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}) as first, EmbeddedTubeMQ(topics={"demo": (1, 1)}) as second:
        masters = f"{first.master},{second.master}"
        options = {"tubemq.master.servers": masters, "subscribe": "demo", "startingOffsets": "earliest"}
        options["failOnDataLoss"] = "false"  # what the log of the other one is told of too
        for server in (first, second):
            with TubeMQClient.connect(server.master, group="etl") as client, client.producer() as producer:
                producer.send("demo", b"a message")
        stream = Stream(options, default_schema(include_attributes=False))
        assert stream.plan()
        first.faults.become_standby()

        def is_told_of():
            stream.plan()
            return "the masters list each broker at another address than before" in caplog.text

        wait_until(is_told_of)


def test_a_refusal_is_an_error_though_there_is_a_layout(layouts, cluster, clock):
    layouts.ask(missing_ok=True)
    cluster.removed = {"demo"}
    with pytest.raises(RpcError) as refused:
        layouts.ask(missing_ok=False)
    assert refused.value is NO_SUCH_TOPIC
