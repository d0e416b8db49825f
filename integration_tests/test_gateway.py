"""Spark through gateways: reads and writes as without, and one gateway after the other may go."""

import hashlib
import itertools
import os
import time

import grpc
import pytest

from integration_tests.real.processes import wait_until
from integration_tests.real.servers import ADMIN_TOKEN
from integration_tests.rig.messages import assert_same_rows, produce_numbers
from integration_tests.rig.processes import two_gateways
from integration_tests.rig.queries import Collected, numbers, read, read_stream, run, start, write
from integration_tests.rig.steady_load import steady_load
from testkit.certificates import Authority
from tubemq_spark.client import TubeMQClient
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb
from tubemq_spark.protocol.gateway.service import METHODS, SESSION_KEY

COUNT = 3_000


@pytest.fixture
def gateways(server):
    with two_gateways(server.master) as running:
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


@pytest.mark.nightly
def test_a_rolling_restart_under_load_is_a_short_pause(spark, server, gateways, tmp_path, record_property):
    """Both are restarted twice, as for a new release; no error reaches the query."""
    topic = server.fresh_topic("3x1")
    collected, moments = Collected(), []

    def sink(frame, batch):
        collected(frame, batch)
        moments.append(time.monotonic())

    with steady_load(server.master, topic) as load:
        query = start(read_stream(spark, gateways, topic), sink, tmp_path, processingTime="0 seconds")
        wait_until(lambda: len(moments) >= 3, timeout_s=60, what="the first micro-batches")
        began = time.monotonic()
        for number in (0, 1, 0, 1):
            gateways.roll(number)
            time.sleep(3)  # as clients need to settle on both again
        ended = time.monotonic()
    query.processAllAvailable()
    assert query.exception() is None
    query.stop()
    query.awaitTermination()

    assert_same_rows(collected.rows, range(load.acknowledged))
    during = [moment for moment in moments if began <= moment <= ended]
    pauses = [later - sooner for sooner, later in itertools.pairwise([began, *during, ended])]
    record_property("longest pause between micro-batches, s", round(max(pauses), 2))
    record_property("median", round(sorted(pauses)[len(pauses) // 2], 2))


@pytest.mark.nightly  # Java's master publishes a new topic half a minute later, when its brokers report
def test_a_topic_is_created_through_a_gateway_and_used(server, tmp_path):
    authority = Authority(tmp_path)
    pair, token = authority.issue("gateway"), "token of the writer"
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f"""[[clients]]
            name = "writer"
            token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"
            write = ["made_*"]
            create = ["made_*"]
        """
    )
    settings = GatewaySettings(
        listen=Endpoint("127.0.0.1", 0),
        master_servers=(Endpoint.parse(server.master),),
        master_web=(Endpoint.parse(server.admin.url.split("/")[2]),),
        master_admin_token=ADMIN_TOKEN,
        tls_cert=str(pair.cert),
        tls_key=str(pair.key),
        policy=str(policy),
    )
    session = pb.SessionRef(client_id="writer", epoch=1, secret=os.urandom(32))
    with BackgroundGateway(settings.validate()) as gateway:
        credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        with grpc.secure_channel(gateway.address, credentials) as channel:

            def ask(name, **fields):
                method = METHODS[name]
                call = channel.unary_unary(
                    method.path, method.request.SerializeToString, method.response.FromString
                )
                shown = [("authorization", f"Bearer {token}"), (SESSION_KEY, session.SerializeToString())]
                return call(method.request(**fields), timeout=120, metadata=shown)

            ask("OpenSession", client_id=session.client_id, epoch=session.epoch, secret=session.secret)
            topic = f"made_{server.name}"
            made = ask("CreateTopic", topic=topic, stores=2, partitions=3)
            assert (made.created, list(made.broker_ids)) == (True, [1])
            again = ask("CreateTopic", topic=topic)
            assert (again.created, list(again.broker_ids)) == (False, [1])
            ask("CheckTopic", topic=topic, publishable=True)

    with TubeMQClient.connect(server.master, group="it_group") as client, client.producer() as producer:
        assert len(client.layout(topic).partitions) == 2 * 3
        for number in range(COUNT):
            producer.send(topic, b"%d" % number)
        producer.flush()
        assert_same_rows([int(record.value) for record in client.read(topic)], range(COUNT))
