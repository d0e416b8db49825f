"""Options of a write: how rows are spread, what is not sent again, and who writes."""

import collections

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from integration_tests.rig.messages import assert_same_rows
from integration_tests.rig.queries import read, write
from integration_tests.rig.servers import USER
from tubemq_spark.client import TubeMQClient
from tubemq_spark.embedded.server import EmbeddedTubeMQ
from tubemq_spark.net import loop
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.errcodes import ErrCode

ROWS = 3 * 32 * 2
SPREAD = {"roundRobin": 3, "sticky": 1}
"""Over how many of three partitions the rows of one task are spread."""


def numbers(spark, count):
    """Return one task's rows."""
    return spark.range(count).coalesce(1).selectExpr("cast(id as string) as value")


@pytest.mark.parametrize("partitioner", SPREAD)
def test_one_task_s_rows_are_spread_as_the_partitioner_says(spark, server, partitioner):
    topic = server.fresh_topic("3x1")
    write(
        numbers(spark, ROWS),
        server,
        topic=topic,
        partitioner=partitioner,
        retryAmbiguous="false",
        deliveryTimeoutMs="60000",
    )
    found = read(spark, server, topic).collect()
    assert_same_rows([int(row.value) for row in found], range(ROWS))
    assert len({row.partition for row in found}) == SPREAD[partitioner]


@pytest.fixture
def three_brokers():
    with EmbeddedTubeMQ(topics={"demo": (1, 1)}, brokers=3) as running:
        yield running


def save(frame, running, **options):
    settings = {"tubemq.master.servers": running.master, "topic": "demo", **options}
    frame.write.format("tubemq").mode("append").options(**settings).save()


def stored(running):
    """Return how often each number is there."""
    with TubeMQClient.connect(running.master) as client:
        return collections.Counter(int(record.value) for record in client.read("demo"))


def test_a_row_that_may_be_stored_is_not_sent_again_when_that_is_forbidden(spark, three_brokers):
    rule = three_brokers.faults.drop_connection(Method.SEND_MESSAGE, carried_out=True, skip=20, times=1)
    with pytest.raises((PySparkException, Py4JJavaError), match=r"\[TUBEMQ_SEND_FAILED\.AMBIGUOUS\]"):
        save(numbers(spark, ROWS), three_brokers, retryAmbiguous="false")
    assert rule.hits == 1
    assert set(stored(three_brokers).values()) == {1}


def test_rows_that_are_refused_are_sent_again_all_the_same(spark, three_brokers):
    rule = three_brokers.faults.answer(Method.SEND_MESSAGE, ErrCode.SERVER_RECEIVE_OVERFLOW, times=50)
    save(numbers(spark, ROWS), three_brokers, retryAmbiguous="false")
    assert rule.hits == 50
    assert stored(three_brokers) == dict.fromkeys(range(ROWS), 1)


def login(server):
    return TubeMQClient.connect(server.master, username=USER.user, password=USER.password)


AWAY = {
    "a broker is stopped": lambda faults: faults.stop_broker(2),
    "a broker does not answer": lambda faults: faults.hold(Method.SEND_MESSAGE, broker=2),
}


@pytest.mark.parametrize("away", AWAY)
def test_a_write_ends_when_its_delivery_timeout_is_over(spark, three_brokers, away):
    """A request may take ten minutes here, which is longer than a test may."""
    rows = numbers(spark, 30).selectExpr("value", "2 as brokerId", "0 as partition")
    AWAY[away](three_brokers.faults)
    with pytest.raises((PySparkException, Py4JJavaError), match=r"\[TUBEMQ_SEND_FAILED[^]]*\].*demo/2:0"):
        save(rows, three_brokers, deliveryTimeoutMs="1500", **{"tubemq.rpcTimeoutMs": "600000"})


def test_a_user_writes_where_logins_are_demanded(secured_server):
    """Java's own producer cannot: its master hands out no token, and its brokers ask for one."""
    before = secured_server.stored(secured_server.topic)
    with login(secured_server) as client, client.producer() as producer:
        for number in range(300):
            producer.send(secured_server.topic, b"%d" % number)
        producer.flush()
        assert set(producer.statistics().answers) == {200}
    assert secured_server.stored(secured_server.topic) == before + 300


def test_a_proof_that_a_broker_refuses_is_renewed(secured_server):
    before = secured_server.stored(secured_server.topic)
    with login(secured_server) as client, client.producer(retry_ambiguous=False) as producer:
        producer.send(secured_server.topic, b"first")
        producer.flush()
        pipeline = producer._queue.pipeline
        session = pipeline._session
        session._own_proof = session.authorized_token = ""
        loop.run(follow(pipeline))
        for number in range(10):
            producer.send(secured_server.topic, b"%d" % number)
        producer.flush()
        assert set(producer.statistics().answers) == {200, ErrCode.CERTIFICATE_FAILURE}
    assert secured_server.stored(secured_server.topic) == before + 11


async def follow(pipeline):
    pipeline._destinations.follow()
