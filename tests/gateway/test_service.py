"""The service as any gRPC client sees it: each call is answered, and a refusal says why."""

import asyncio
import contextlib
import itertools
import logging
import resource
import socket
import threading
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from testkit.certificates import Authority
from testkit.connections import opened_connections
from tests.cases import in_one_test
from tests.gateway.fleet import Fleet, attach, batch_to, fleet_of, place, upstream
from tests.gateway.running import (
    BUSY,
    DRAINING,
    NO_SESSION,
    SERVICE,
    PlainClient,
    Stream,
    gateway,
    refused,
    settings,
    tubemq,
)
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.metadata.topics import topics_layout
from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.gateway.upstream import Upstream
from tubemq_spark.model import Endpoint
from tubemq_spark.net.loop import run
from tubemq_spark.net.tls import ServerTls
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.gateway import gateway_pb2 as pb, sends
from tubemq_spark.protocol.gateway.service import METHODS, SESSION_KEY
from tubemq_spark.protocol.send_batch import SendBatch

TOPICS = {"demo": (1, 1), "shared": (1, 3)}


@pytest.fixture
def server():
    with tubemq(**TOPICS) as running:
        yield running


@pytest.fixture
def served(server):
    with gateway(server, access_log_every=1, metrics=Endpoint("127.0.0.1", 0)) as running:
        yield running


@pytest.fixture
def fleet(server, served):
    with contextlib.closing(Fleet(server, served)) as fleet:
        yield fleet


@pytest.fixture
def client(served):
    """A client without a session."""
    with PlainClient(served.address) as made:
        yield made


def publish(client, *values):
    return client("PublishStream", batch=sends.to_proto(SendBatch.of("demo", list(values))))


def test_a_client_with_the_proto_alone_publishes_and_reads(client):
    """By the words of the .proto file: no conversion of ours on the way back."""
    answer = client.open(checksums=True)
    assert set(answer.capabilities) == METHODS.keys()
    values = [b"value %d" % number for number in range(30)]
    receipts = publish(client, *values).receipts
    assert sum(one.count for one in receipts) == 30
    assert sum(one.checksum for one in receipts) == sum(map(zlib.crc32, values))

    route = client("QueryRoute", topics=["demo"])
    found = []
    for one in route.partitions:
        partition = one.partition
        store = pb.Store(topic="demo", broker_id=partition.broker_id, store=partition.partition_id // 10_000)
        bounds = client("QueryBounds", stores=[store]).answers[0].bounds
        for event in client("ReadRange", partition=partition, start=bounds.earliest, end=bounds.latest):
            if event.HasField("batch"):
                borders = np.frombuffer(event.batch.borders, "<i4")[: event.batch.count + 1]
                found += [event.batch.data[a:b] for a, b in itertools.pairwise(borders)]
    assert sorted(found) == sorted(values)


@in_one_test("name", sorted(METHODS.keys() - {"OpenSession", "PublishStream", "Consume"}))
def test_every_call_without_a_session_is_refused_but_those_of_operators(client, name):
    if name in {"DescribeGateway", "ListSessions", "CloseSession"}:
        # What is not known has ended.
        client(name)
        return
    assert refused(client, name).end == NO_SESSION


def test_a_call_whose_metadata_name_no_session_is_told_so(client):
    call = client.channel.unary_unary(METHODS["Heartbeat"].path)
    with pytest.raises(grpc.RpcError) as ended:
        call(b"", timeout=10)
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"its metadata have no {SESSION_KEY}" in ended.value.details()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"partition": place("demo", 9), "end": 28}, "NOT_FOUND"),
        ({"partition": place("demo"), "start": 1, "end": 28}, "INVALID_ARGUMENT"),
        ({"partition": place("demo"), "start": 56, "end": 28}, "INVALID_ARGUMENT"),
    ],
    ids=str,
)
def test_a_range_that_makes_no_sense_is_refused(fleet, fields, status):
    assert refused(fleet.client(), "ReadRange", **fields).status == status


def test_a_gateway_connects_to_no_address_that_a_client_names(fleet):
    """There is no field for one: targets are named by topic and ids, which the master knows."""
    client = fleet.client()
    assert refused(client, "QueryGroupPositions", partitions=[place("demo", 77)]).status == "NOT_FOUND"
    answers = client("QueryBounds", stores=[pb.Store(topic="demo", broker_id=77, store=0)]).answers
    assert answers[0].error.condition == "TUBEMQ_PARTITION_NOT_LISTED"


def test_a_message_that_is_too_long_is_refused_by_grpc(server):
    with fleet_of(server, max_message_bytes=64 << 10) as fleet:
        assert refused(fleet.publish, "demo", b"x" * (100 << 10)).status == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "commands",
    [
        [pb.PublishStreamRequest(batch=batch_to("demo", b"a"), number=1)],
        [pb.PublishStreamRequest()],
    ],
    ids=str,
)
def test_a_publish_stream_begins_with_its_session(fleet, commands):
    assert refused(fleet.client().commands, *commands).status in {"INVALID_ARGUMENT", "FAILED_PRECONDITION"}


def test_health_says_whether_a_gateway_serves_and_reflection_what(served, client):
    health = health_pb2_grpc.HealthStub(client.channel)
    answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING

    reflection = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    (listed,) = reflection.ServerReflectionInfo(asked, timeout=5)
    assert SERVICE in {one.name for one in listed.list_services_response.service}


def test_operators_see_the_gateway_and_its_sessions_page_by_page(served, fleet, client):
    for name in ("a", "b", "c"):
        fleet.client("others", client_id=name)
    described = client("DescribeGateway")
    assert (described.sessions, described.advertised, described.draining) == (3, served.address, False)
    first = client("ListSessions", page_size=2)
    assert [one.client_id for one in first.sessions] == ["a", "b"]
    assert first.next_page_token == "b"
    rest = client("ListSessions", page_size=2, page_token="b")
    assert [(one.client_id, one.group) for one in rest.sessions] == [("c", "others")]
    assert not rest.next_page_token


def test_clients_are_told_the_names_of_a_gateway_and_another_address_than_the_one_it_listens_at(server):
    named = {"advertise": "gateway.example.com:443", "node_name": "g7", "cluster_name": "blue"}
    with gateway(server, **named) as running, PlainClient(running.address) as client:
        told = client("DescribeGateway")
        assert (told.advertised, told.name, told.cluster) == ("gateway.example.com:443", "g7", "blue")
        assert running.address.startswith("127.0.0.1:")


def test_operators_see_what_program_a_session_belongs_to_and_where_it_runs(client, served, monkeypatch):
    """And when it was seen last."""
    now = 1_000.0
    monkeypatch.setattr(served.server._sessions, "clock", lambda: now)
    who = {"client_id": "plain", "epoch": 1, "secret": client.session.secret}
    client("OpenSession", settings={"group": "tea"}, language="Tea 7", version="3.2", **who)
    now += 5
    client("Heartbeat")
    now += 2
    (seen,) = client("ListSessions").sessions
    assert (seen.client_id, seen.language, seen.version) == ("plain", "Tea 7", "3.2")
    assert seen.peer.startswith("ipv4:127.0.0.1:")
    assert (seen.age_ms, seen.silent_ms, seen.calls) == (7_000, 2_000, 1)


def test_two_clients_with_equal_call_ids_see_only_their_own_messages(fleet):
    """Each begins to count at the same number; the gateway shares one connection to each broker."""
    for broker in (1, 2, 3):
        fleet.publish("demo", *[b"%d" % broker] * 50, broker_id=broker)

    def read(broker):
        client, asked = fleet.client(), {"start": 0, "end": 50 * 28, "own_store": True}
        events = [client("ReadRange", partition=place("demo", broker), **asked) for _ in range(5)]
        return b"".join(event.batch.data for event in itertools.chain(*events))

    brokers = (1, 2, 3, 1, 2, 3)
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(read, brokers)) == [b"%d" % broker * 250 for broker in brokers]


def test_calls_are_logged_and_counted_without_a_line_per_message(fleet, served, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    client = fleet.client(client_id="plain")
    publish(client, *[b"x"] * 100)
    refused(client, "ReadRange", partition=place("demo", 9), end=28)

    def logged():
        return [one.getMessage() for one in caplog.records if one.name == "tubemq_spark.gateway.access"]

    wait_until(lambda: len(logged()) == 3)
    lines = logged()
    assert any(line.startswith("PublishStream OK by plain") and "100 rows" in line for line in lines)
    assert any("ReadRange NOT_FOUND" in line and "TUBEMQ_PARTITION_NOT_LISTED" in line for line in lines)
    address = served.server.metrics_address
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert 'tubemq_gateway_calls_total{method="PublishStream",status="OK"} 1.0' in text
    assert 'tubemq_gateway_call_seconds_count{method="PublishStream"} 1.0' in text
    assert 'tubemq_gateway_rows_total{direction="published"} 100.0' in text
    assert "tubemq_gateway_sessions 1.0" in text


def test_failures_are_logged_also_when_calls_are_not(server, caplog):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway.access")
    with fleet_of(server, access_log_every=0) as fleet:
        refused(fleet.client(), "CheckTopic", topic="nowhere")
    entries = [one for one in caplog.records if one.name == "tubemq_spark.gateway.access"]
    assert [one.getMessage().split()[0] for one in entries] == ["CheckTopic"]
    # The log counts failures of a condition.
    assert [one.kind for one in entries] == [
        one.getMessage().partition("[")[2].partition("]")[0] for one in entries
    ]


def test_sockets_upstream_do_not_grow_with_clients(server, fleet):
    """One connection to each of three brokers and one to the master, however many read."""
    publish(fleet.client(), *[b"x"] * 60)
    counted = []
    for number in range(20):
        # Those of one group would share more than connections.
        client = fleet.client(f"readers{number % 4}")
        for broker in (1, 2, 3):
            client("ReadRange", partition=place("demo", broker), start=0, end=28)
        counted.append(upstream(server))
    # Those of the producer are kept for the next one, and belong to it alone.
    producers = 3
    assert counted[0] <= 3 + 1 + producers
    assert set(counted) == {counted[0]}


def test_a_master_that_is_away_is_an_error_with_a_status_and_not_silence(server):
    with fleet_of(server) as fleet:
        client = fleet.client(register_attempts=1, rpc_timeout_ms=500, connect_timeout_ms=200)
        server.close()
        refusal = refused(client, "QueryRoute", topics=["demo"])
        assert refusal.status == "UNAVAILABLE"
        assert isinstance(refusal.error, TubeMQConnectionError)


def test_a_port_that_is_taken_is_refused(server, served):
    port = int(served.address.rpartition(":")[2])
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_LISTEN_FAILED"):
        BackgroundGateway(settings(server, listen=Endpoint("127.0.0.1", port))).start()


def test_no_connection_upstream_is_left_by_a_gateway_that_stops_or_cannot_start(server, served, monkeypatch):
    contact, connections = Upstream.contact, []

    async def contacting(upstream):
        failure = await contact(upstream)
        connections.extend(upstream._connections.shared())
        return failure

    monkeypatch.setattr(Upstream, "contact", contacting)
    with pytest.raises(TubeMQConnectionError, match="TUBEMQ_LISTEN_FAILED"):
        BackgroundGateway(settings(server, listen=Endpoint.parse(served.address))).start()
    assert [connection.closed for connection in connections] == [True]
    with fleet_of(server) as fleet:
        fleet.reader("demo")
        of_both = fleet.gateway._upstream._connections.shared()
    assert len(connections) == 2
    assert len(of_both) == 2, "to a master and a broker"
    assert all(connection.closed for connection in [*connections, *of_both])


def test_a_gateway_whose_metrics_port_is_taken_leaves_its_own_port(server):
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        metrics, listen = (Endpoint("127.0.0.1", each.getsockname()[1]) for each in (taken, free))
        free.close()
        with pytest.raises(TubeMQConnectionError, match=f"TUBEMQ_LISTEN_FAILED.*{metrics.port}"):
            BackgroundGateway(settings(server, listen=listen, metrics=metrics)).start()
        socket.create_server((listen.host, listen.port)).close()


def test_a_master_can_be_required():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        made = GatewaySettings(
            master_servers=(Endpoint.parse(address),), listen=Endpoint("127.0.0.1", 0), require_master=True
        )
        with pytest.raises(TubeMQConnectionError, match="TUBEMQ_CONNECT_FAILED"):
            BackgroundGateway(made.validate()).start()


def test_a_gateway_that_drains_refuses_new_calls_and_says_so(server):
    with fleet_of(server, drain_ms=5_000) as fleet:
        client = fleet.client()
        held = server.faults.hold(Method.SEND_MESSAGE)
        stream = Stream(client, "PublishStream")
        begin = pb.PublishStreamRequest(begin=pb.PublishStreamRequest.Begin())
        assert not stream.ask(begin).draining
        stream.send(pb.PublishStreamRequest(batch=batch_to("demo", b"x"), number=1))
        wait_until(lambda: held.hits)
        with fleet.draining():
            health = health_pb2_grpc.HealthStub(client.channel)
            asked = health_pb2.HealthCheckRequest(service=SERVICE)
            serving = health_pb2.HealthCheckResponse.SERVING
            wait_until(lambda: health.Check(asked, timeout=5).status != serving)
            assert refused(client, "ListTopics").end == DRAINING
            assert client("Heartbeat").draining
            held.release()
            server.faults.clear()
            answer = next(stream.call)
            assert (answer.draining, answer.number, len(answer.receipts)) == (True, 1, 1)
            assert stream.end() == DRAINING


def test_a_call_that_waits_for_tubemq_does_not_hold_up_the_end(server, caplog):
    """The topic never opens, and the client would wait for two minutes."""
    server.close_topic("demo")
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    with fleet_of(server) as fleet:
        client = fleet.client(register_attempts=1)
        waiting = client.begin("CheckTopic", topic="demo", publishable=True, timeout=60)
        wait_until(lambda: len(fleet.gateway._calls._running) == 1)
        fleet.served.stop(0)
        assert waiting.exception(10) is not None
    assert "has stopped" in caplog.text
    assert "still wait" not in caplog.text


def test_a_gateway_that_stops_leaves_no_member_at_the_master(server):
    """One that could not leave would keep its group from asking for other topics for 30 s."""
    with fleet_of(server, route_refresh_ms=50) as fleet:
        assert fleet.client("plain")("QueryRoute", topics=["demo"]).partitions
        with server.faults.delay(Method.BALANCE_PARTITION_META, 300) as slow:
            assert slow.wait_for_hits()
            fleet.served.stop(0)
    masters = (Endpoint.parse(server.master),)
    config = ClientConfig(masters, group="plain", lease_wait_ms=0)
    with opened_connections() as connections:
        assert run(topics_layout(config, connections, ["shared"])).partitions


def test_a_gateway_that_stops_gives_the_partitions_of_its_sessions_up(server):
    """While it has connections: the next reader does not wait for a lease to end."""
    for _ in range(2):
        with fleet_of(server) as fleet:
            (taken,) = attach(fleet.client("readers"), "demo", 1)
            assert taken.WhichOneof("result") == "offset", taken.error.text
            fleet.served.stop(0)


def test_heartbeats_are_answered_while_other_calls_use_up_their_places(server, monkeypatch):
    """So are ranges; and a question that comes too late is told when to try again."""
    gate, asked = threading.Event(), threading.Semaphore(0)

    async def hang(*_):
        asked.release()
        while not gate.is_set():
            await asyncio.sleep(0.01)
        return {}

    limits = {"publishes": 1, "reads": 1, "queue_ms": 50, "waiting_calls": 1}
    with fleet_of(server, **limits) as fleet:
        client = fleet.client()
        (session,) = fleet.gateway._sessions
        monkeypatch.setattr(type(session.access.transport), "group_positions", hang)
        # A client leaves the last eighth to others.
        places = fleet.gateway._admission.questions.quota.limit - 1
        calls = [client.begin("QueryGroupPositions", partitions=[place("demo")]) for _ in range(places)]
        assert all(asked.acquire(timeout=10) for _ in calls)
        refusal = refused(client, "QueryRoute", topics=["demo"])
        assert refusal.end == BUSY
        assert refusal.error.parameters["retry_after_ms"] > 0
        assert client("Heartbeat").lease_ms == 30_000
        assert client("ReadRange", partition=place("demo"), start=0, end=28, own_store=True)
        gate.set()
        assert [call.result(10).offsets for call in calls] == [[]] * places


def test_looking_for_silent_sessions_goes_on_after_a_mistake(server, monkeypatch, caplog):
    with fleet_of(server, lease_ms=200, heartbeat_ms=100, housekeeping_ms=20) as fleet:
        sessions, usual = fleet.gateway._sessions, fleet.gateway._sessions.expire
        mistakes = iter([ZeroDivisionError, ZeroDivisionError])

        def expire():
            if (mistake := next(mistakes, None)) is not None:
                raise mistake
            return usual()

        monkeypatch.setattr(sessions, "expire", expire)
        client = fleet.client()
        wait_until(lambda: client("DescribeGateway").sessions == 0)
    assert sum("looking for silent sessions failed" in one.getMessage() for one in caplog.records) == 2


def test_a_mistake_of_the_gateway_is_an_answer_and_in_its_log(fleet, monkeypatch, caplog):
    """A time-out inside is one too, and not the end of the call's time."""

    def raising(mistake):
        async def topics(_):
            raise mistake

        return topics

    client = fleet.client()
    (session,) = fleet.gateway._sessions
    for mistake in (ZeroDivisionError(), TimeoutError()):
        monkeypatch.setattr(type(session.access.transport), "topics", raising(mistake))
        assert refused(client, "ListTopics").end == ("INTERNAL", "TUBEMQ_GATEWAY_FAILED")
        assert any(one.exc_info and one.exc_info[0] is type(mistake) for one in caplog.records)


def test_a_broker_that_is_away_is_named_beside_the_answers_of_the_others(server, fleet):
    client = fleet.client()
    route = client("QueryRoute", topics=["demo"])
    addresses = [f"{one.host}:{one.port}" for one in route.brokers]
    assert {one.partition.broker_id: addresses[one.broker] for one in route.partitions} == server.brokers
    broker = server.brokers[2]
    server.faults.stop_broker(2)
    stores = [pb.Store(topic="demo", broker_id=broker, store=0) for broker in (1, 2, 3)]
    answers = client("QueryBounds", stores=stores).answers
    assert [one.WhichOneof("answer") for one in answers] == ["bounds", "error", "bounds"]
    assert broker in answers[1].error.text


def test_the_log_begins_with_the_settings_and_the_address(server, caplog, tmp_path):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    pair = Authority(tmp_path).issue("gateway")
    with gateway(server, node_name="g1", tls_cert=str(pair.cert), tls_key=str(pair.key)) as running:
        lines = [one.getMessage() for one in caplog.records if one.name == "tubemq_spark.gateway"]
    assert lines[0].startswith(f"settings: master_servers={server.master}, ")
    assert "gateway g1 (tubemq_spark" in lines[1]
    assert f"serves at {running.address} over TLS for the masters {server.master};" in lines[1]


def test_the_log_tells_that_masters_are_reached_over_tls(caplog, tmp_path):
    caplog.set_level(logging.INFO, "tubemq_spark.gateway")
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = EmbeddedSettings(tls=ServerTls(str(pair.cert), str(pair.key)))
    reached = {"master_tls": True, "master_tls_ca": str(authority.cert)}
    with (
        EmbeddedTubeMQ(topics={}, brokers=1, settings=tls) as secured,
        gateway(secured, **reached) as running,
    ):
        lines = [one.getMessage() for one in caplog.records if one.name == "tubemq_spark.gateway"]
    assert f"serves at {running.address} for the masters {secured.master} over TLS;" in lines[1]


def test_a_limit_of_open_files_below_the_sessions_is_told_of_at_the_start(server, caplog):
    caplog.set_level(logging.WARNING, "tubemq_spark.gateway")
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, most))
    try:
        for sessions in (900, 901):
            with gateway(server, sessions=sessions):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
    told = [text for text in caplog.messages if "open files" in text]
    assert len(told) == 1
    assert "900 open files and 901 sessions" in told[0]
