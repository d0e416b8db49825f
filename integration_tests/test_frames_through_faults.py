"""Spark writes a frame to two Java brokers, and something goes wrong: every row is there.

There are no more copies than the write's manifest tells of. ``test_write_faults`` does more of this to a
producer alone, and ``test_guarantees`` does it through Spark to three embedded brokers.
"""

import concurrent.futures
import contextlib
import time

import pytest

from integration_tests.real.processes import wait_until
from integration_tests.rig.clusters import behind_proxies

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

AWAY = 2
"""The broker that goes away."""
ROWS = 300_000
"""Brokers that write each row before they acknowledge it have some thousands per second."""
UNDER_WAY = 20_000
"""So many rows are stored when something happens."""
PATIENCE_S = 600


@contextlib.contextmanager
def killed(cluster):
    """Kill a broker, and start it again later."""
    yield cluster.master, lambda: cluster.kill(AWAY), cluster.times.away, lambda: cluster.start(AWAY)


@contextlib.contextmanager
def frozen(cluster):
    """Pause a broker during the block, and for a while after it."""
    yield cluster.master, lambda: cluster.freeze(AWAY), cluster.times.frozen, lambda: cluster.thaw(AWAY)


@contextlib.contextmanager
def disconnected(cluster):
    """Cut the connections to a broker, and then let the new ones stall for a while."""
    with behind_proxies(cluster) as (relay, ways):

        def begin():
            ways[AWAY].cut()
            time.sleep(0.1)
            ways[AWAY].stall()

        yield relay.address, begin, cluster.times.frozen, ways[AWAY].resume


def save(spark, master, topic, named, manifests):
    """Write numbers as text; half of them to partitions that they name, if that is wanted."""
    names = "id % 2 = 0" if named else "false"
    spark.createDataFrame([], "unused int")  # without an active session, this thread cannot write
    frame = spark.range(0, ROWS, numPartitions=4).selectExpr(
        "lpad(cast(id as string), 100, '0') as value",
        f"cast(if({names}, 1 + id div 2 % 2, null) as int) as brokerId",
        f"if({names}, 0, null) as partition",
    )
    options = {
        "tubemq.master.servers": master,
        "topic": topic,
        "receiptsPath": str(manifests),
    }
    frame.write.format("tubemq").options(**options).mode("append").save()


def found(spark, master, topic):
    """Return how many rows a topic has, how many different ones, the lowest and the highest."""
    reader = spark.read.format("tubemq").option("tubemq.master.servers", master).option("subscribe", topic)
    frame = reader.load().selectExpr("cast(cast(value as string) as long) as number")
    return frame.selectExpr("count(number)", "count(distinct number)", "min(number)", "max(number)").head()


@pytest.mark.parametrize("named", [False, True], ids=["free", "named"])
@pytest.mark.parametrize("how", [killed, frozen, disconnected], ids=lambda how: how.__name__)
def test_every_row_is_there(spark, faulty_java, how, named, tmp_path, record_property):
    cluster, topic = faulty_java, faulty_java.fresh_topic()
    with (
        concurrent.futures.ThreadPoolExecutor(1) as others,
        how(cluster) as (master, begin, seconds, end),
    ):
        writing = others.submit(save, spark, master, topic, named, tmp_path)
        wait_until(
            lambda: cluster.stored(topic) > UNDER_WAY or writing.done(),
            timeout_s=PATIENCE_S,
            what="rows to be stored",
            poll_s=0.02,
        )
        assert not writing.done()
        begin()
        time.sleep(seconds)
        end()
        writing.result(PATIENCE_S)
        cluster.settle()

    rows, different, lowest, highest = found(spark, cluster.master, topic)
    assert (different, lowest, highest) == (ROWS, 0, ROWS - 1)
    view = spark.read.format("tubemq").option("view", "receipts").option("receiptsPath", str(tmp_path))
    acknowledged, retried, told = (
        view.load().selectExpr("sum(count)", "sum(retried)", "sum(unanswered)").head()
    )
    assert acknowledged == ROWS
    assert rows - different <= told
    record_property("extra", rows - different)
    record_property("told", told)
    record_property("retried", retried)
