"""Whatever goes wrong under a producer's load, every row that it accepted is there or it says so, once.

On three embedded brokers and on two of the Java TubeMQ; see ``rig.clusters`` for how long things last.
"""

import contextlib
import dataclasses
import logging
import time

import pytest

from integration_tests.conftest import BOTH_SERVERS
from integration_tests.real.artifacts import require_real_tubemq
from integration_tests.rig.clusters import (
    LONG,
    JavaCluster,
    behind_proxies,
    embedded_cluster,
    full_embedded_cluster,
    full_java_cluster,
    partitions,
    records,
)
from integration_tests.rig.runs import form
from integration_tests.rig.write_faults import Asking, Writing, while_writing
from testkit.forwarder import Forwarder, Link, MasterRelay
from tubemq_spark.client import BrokerAdmin, ClientConfig
from tubemq_spark.client.producer.resending import SERVER_ERRORS
from tubemq_spark.embedded.server import EmbeddedSettings
from tubemq_spark.errors import ProduceError
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

pytestmark = [pytest.mark.slow_on_java, pytest.mark.timeout(600)]

AWAY = 2
"""The broker that goes away."""
ROWS = form(short=500, long=1_000)
"""So many are written before something happens, and so many afterwards."""
FULL_OF_JAVA = 400, {"size": 500_000, "partitions": [(1, 0)]}
FULL_OF_EMBEDDED = form(short=4_000, long=20_000), {"size": 1_000}
"""So many rows, of such a size, come faster than a broker writes them to its files; with Java, mostly."""
FULL_AFTER_S = 0.5
"""In that time a producer fills its window, which is larger than the broker's memory."""


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


def by_night(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def config_of(cluster, *masters, **changes):
    """Return a producer's settings for a cluster, which has these other addresses or its own."""
    endpoints = tuple(map(Endpoint.parse, masters or (cluster.master,)))
    return ClientConfig(endpoints, "it_writers", **{**cluster.times.client, **changes}).validate()


def writing_to(cluster, where, config):
    """Write to a fresh topic: rows that name no partition, or all in turn."""
    return Writing(config, cluster.fresh_topic(), partitions=places(cluster, where))


def places(cluster, where):
    """Return the partitions that rows name."""
    return partitions(cluster) if where == "named" else []


def check(writing, cluster, record_property, *topics):
    """Find every row, and record how many were stored more than once."""
    found = writing.check(record.value for record in records(cluster, *(topics or [writing.topic])))
    for name, value in dataclasses.asdict(found).items():
        record_property(name, value)
    record_property("retried", writing.retried)
    return found


def take_away(cluster, how):
    getattr(cluster, how)(AWAY)


def bring_back(cluster, how):
    {"kill": cluster.start, "freeze": cluster.thaw}[how](AWAY)


@pytest.mark.parametrize(
    ("how", "where"),
    [("kill", "named"), ("freeze", "free"), by_night("kill", "free"), by_night("freeze", "named")],
)
def test_a_broker_is_away_for_a_while(cluster, how, where, record_property):
    """Rows that name its partitions wait; the others go on meanwhile."""
    with writing_to(cluster, where, config_of(cluster)) as writing:
        with while_writing(writing, ROWS):
            take_away(cluster, how)
            if where == "free":
                writing.await_rows(ROWS)
            time.sleep(cluster.times.away if how == "kill" else cluster.times.frozen)
            bring_back(cluster, how)
        writing.finish()
    check(writing, cluster, record_property)


@pytest.mark.parametrize("how", [by_night("kill"), "freeze"])
def test_rows_for_any_partition_go_elsewhere_when_a_broker_stays_away(cluster, how, record_property):
    with Writing(config_of(cluster, **cluster.times.for_good), cluster.fresh_topic()) as writing:
        writing.await_rows(ROWS)
        take_away(cluster, how)
        writing.await_rows(10 * ROWS)
        writing.finish()
    check(writing, cluster, record_property)


@pytest.mark.parametrize("how", ["kill", by_night("freeze")])
def test_rows_of_a_broker_that_stays_away_fail_in_time_and_once(cluster, how, caplog, record_property):
    config = config_of(cluster, **cluster.times.for_good)
    with Writing(config, cluster.fresh_topic(), partitions=partitions(cluster)) as writing:
        writing.await_rows(ROWS)
        take_away(cluster, how)
        error = writing.await_error()
    assert isinstance(error, ProduceError)
    assert error.condition.startswith("TUBEMQ_SEND_FAILED")
    writing.assert_failed_once()
    check(writing, cluster, record_property)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in warnings if f"broker {AWAY} is away" in text]) == 1


@pytest.mark.parametrize("how", [by_night("kill"), "freeze"])
def test_each_row_is_told_once_what_became_of_it(cluster, how, record_property):
    """Rows that name a partition of the broker fail, each alone; they and all others are as they are told."""
    topic = cluster.fresh_topic()
    places = [*partitions(cluster), None, None, None]
    with Asking(config_of(cluster, **cluster.times.for_good), topic, places) as asking:
        asking.await_rows(ROWS)
        take_away(cluster, how)
        asking.await_failures(ROWS // 10)
        bring_back(cluster, how)
        asking.await_rows(ROWS)
        asking.finish()
        assert {error.condition.partition(".")[0] for error in asking.failures()} == {"TUBEMQ_SEND_FAILED"}
        found = asking.check(records(cluster, topic))
    for name, value in dataclasses.asdict(found).items():
        record_property(name, value)


@pytest.mark.parametrize("where", ["free", by_night("named")])
def test_connections_are_cut_again_and_again(cluster, where, record_property):
    with (
        behind_proxies(cluster) as (relay, ways),
        writing_to(cluster, where, config_of(cluster, relay.address)) as writing,
    ):
        for _ in range(5):
            with while_writing(writing, ROWS):
                for way in ways.values():
                    way.cut()
        writing.finish()
        check(writing, cluster, record_property)
    assert writing.retried > 0


@pytest.mark.parametrize("where", [by_night("free"), "named"])
def test_a_connection_stalls(cluster, where, record_property):
    """What the network kept arrives in the end, behind what was sent instead."""
    with (
        behind_proxies(cluster) as (relay, ways),
        writing_to(cluster, where, config_of(cluster, relay.address)) as writing,
    ):
        with while_writing(writing, ROWS):
            ways[AWAY].stall()
            time.sleep(cluster.times.frozen)
            ways[AWAY].resume()
        writing.finish()
        check(writing, cluster, record_property)
    assert writing.retried > 0


SLOW_BYTES_PER_S = 400_000


@pytest.mark.nightly
def test_a_slow_link_is_not_taken_for_a_broken_one(cluster, record_property):
    """What is under way takes longer to leave than an answer may take, and nothing is sent twice."""
    # On the embedded server in the short form the link is ten times as fast, and the time-out as short.
    timeout_ms = 10_000 if cluster.times is LONG else 1_000
    bytes_per_s = SLOW_BYTES_PER_S * 10_000 / timeout_ms
    link = Link(bytes_per_s)
    with behind_proxies(cluster, lambda: link) as (relay, _):
        config = config_of(cluster, relay.address, rpc_timeout_ms=timeout_ms, max_in_flight=16_384)
        with Writing(config, cluster.fresh_topic(), size=1_000, pause_s=0) as writing:
            writing.await_rows(int(2.5 * timeout_ms / 1000 * bytes_per_s / 1_000))
            writing.finish()
        found = check(writing, cluster, record_property)
    assert writing.retried == 0
    assert found.extra == 0


@pytest.mark.parametrize("where", ["free", by_night("named")])
def test_another_master_takes_over(cluster, where, record_property):
    """Rows go on meanwhile; the new master is asked for a topic that the producer had not published to."""
    topics = [cluster.fresh_topic(), cluster.fresh_topic()]
    with Forwarder(cluster.master) as first, Forwarder(cluster.master) as second:
        second.close_port()
        config = config_of(cluster, first.address, second.address)
        with Writing(config, topics[0], partitions=places(cluster, where)) as writing:
            with while_writing(writing, ROWS):
                first.close_port()
                cluster.restart_master()
                writing.await_rows(ROWS)
                second.open_port()
                writing.topic = topics[1]
            writing.finish()
        found = check(writing, cluster, record_property, *topics)
    assert cluster.stored(topics[1]) > 0
    assert found.extra == 0


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["free", "named"])
def test_a_topic_has_no_routes_for_a_while(cluster, where, caplog, record_property):
    with MasterRelay(cluster.master, {}) as relay:
        config = config_of(cluster, relay.address, heartbeat_period_ms=200)
        with writing_to(cluster, where, config) as writing:
            with while_writing(writing, ROWS):
                relay.hide_routes()
                time.sleep(cluster.times.without_routes)
                relay.show_routes()
            writing.finish()
        found = check(writing, cluster, record_property)
    assert found.extra == 0
    assert f"topic {writing.topic} is away: the master lists no partition of it" in caplog.text


@pytest.fixture(scope="module")
def full_java():
    require_real_tubemq()
    with full_java_cluster() as running:
        yield running


@pytest.fixture(params=BOTH_SERVERS)
def full_cluster(request):
    if request.param == "real":
        yield request.getfixturevalue("full_java")
    else:
        with full_embedded_cluster() as running:
            yield running


def test_brokers_that_are_full_slow_a_producer_down(full_cluster, caplog, record_property):
    """A broker refuses what its memory has no room for: nothing is stored twice."""
    java = isinstance(full_cluster, JavaCluster)
    rows, load = FULL_OF_JAVA if java else FULL_OF_EMBEDDED
    with Writing(config_of(full_cluster), full_cluster.fresh_topic(), pause_s=0, **load) as writing:
        writing.await_rows(rows)
        while java and "419" not in caplog.text:
            # It writes to its files while it takes more. Rows that wait for a frozen broker come all at once.
            full_cluster.freeze(1)
            time.sleep(FULL_AFTER_S)
            full_cluster.thaw(1)
            writing.await_rows(rows // 10)
        writing.finish()
    found = check(writing, full_cluster, record_property)
    assert writing.retried > 0
    assert found.extra == found.told == 0
    assert "419" in caplog.text


@pytest.mark.parametrize("times", [by_night(1), 50])
def test_rows_that_a_broker_stores_and_answers_with_an_error(times, record_property):
    """Each of these answers may stand for a copy, and the receipts tell of exactly those."""
    with embedded_cluster() as cluster:
        with Writing(config_of(cluster), cluster.fresh_topic()) as writing:
            writing.await_rows(ROWS)
            rule = cluster.server.faults.answer(
                Method.SEND_MESSAGE, ErrCode.INTERNAL_SERVER_ERROR, carried_out=True, times=times
            )
            writing.await_rows(ROWS)
            writing.finish()
        found = check(writing, cluster, record_property)
    assert rule.hits == times
    assert found.extra == found.told == times


@pytest.mark.nightly
def test_a_broker_that_audits_fails_for_each_row_without_message_time(full_java):
    """It stores such a row and answers 500, so a producer sends it a few times and then says what helps."""
    with Writing(config_of(full_java), full_java.fresh_topic(), message_time=None) as writing:
        error = writing.await_error()
    assert error.condition == "TUBEMQ_SEND_FAILED.AMBIGUOUS"
    assert "set one (messageTime=now)" in str(error)
    writing.assert_failed_once()
    # Its rows cannot be read: for those the broker answers 500 as well.
    assert sum(receipt.count for receipt in writing.receipts) == 0
    assert 0 < full_java.stored(writing.topic) <= SERVER_ERRORS * (writing.accepted + 1)


MEASURED_S = 10.0


@pytest.mark.nightly
def test_a_frozen_broker_of_four_leaves_the_others_their_throughput(record_property):
    """Each broker has a link of its own, so that those and not this machine are what is measured."""
    others = [1, 3, 4]
    with contextlib.ExitStack() as closing:
        cluster = closing.enter_context(embedded_cluster(EmbeddedSettings(), brokers=4))
        relay, _ = closing.enter_context(behind_proxies(cluster, lambda: Link(SLOW_BYTES_PER_S)))
        topic = cluster.fresh_topic()
        # With a time-out that is longer than the test, the broker keeps all it can of the window.
        config = config_of(cluster, relay.address, rpc_timeout_ms=60_000)
        writing = closing.enter_context(Writing(config, topic, size=1_000, pause_s=0))

        def stored_by_others():
            return sum(BrokerAdmin(cluster.server.broker_webs[id_]).message_count(topic) for id_ in others)

        rates = []
        for prepare in (lambda: None, lambda: cluster.freeze(AWAY)):
            prepare()
            time.sleep(MEASURED_S / 2)
            before = stored_by_others()
            time.sleep(MEASURED_S)
            rates.append((stored_by_others() - before) / MEASURED_S)
        record_property("rows a second of the others before and after", rates)
        assert rates[1] >= 0.7 * rates[0]
        cluster.thaw(AWAY)
        writing.finish()
        check(writing, cluster, record_property)
