"""What a Java master lists in the first seconds of its life."""

import contextlib
import dataclasses
import threading

import pytest

from integration_tests.rig.messages import client_config
from testkit.connections import opened_connections
from tubemq_spark.client.metadata.topics import topics_layout
from tubemq_spark.errors import TubeMQError
from tubemq_spark.net.loop import run

TOPICS = ("kept", "assigned")
GOES = 2
"""The broker that is down while the master restarts."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("leave", ["stop_broker", "kill_broker"])
def test_a_restarted_master_lists_all_partitions_at_once_though_a_broker_is_down(
    real_brokers, record_property, leave
):
    """A partition that a master leaves out is gone: its first answer has those of a broker that is silent."""
    config = client_config(real_brokers.master, "watchers")
    with opened_connections() as connections:
        whole = run(topics_layout(config, connections, TOPICS)).partitions
    answers = []
    over, restarted = threading.Event(), threading.Event()

    def watch():
        with opened_connections() as connections:
            while not over.wait(0.02):
                with contextlib.suppress(TubeMQError):
                    layout = run(topics_layout(impatient, connections, TOPICS))
                    if restarted.is_set():
                        answers.append(layout.partitions)

    impatient = dataclasses.replace(
        config, register_attempts=1, rpc_timeout_ms=1_000, connect_timeout_ms=500, lease_wait_ms=0
    )
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        getattr(real_brokers, leave)(GOES)
        real_brokers.kill_master()
        restarted.set()
        real_brokers.start_master()
        over.wait(10)
    finally:
        over.set()
        watcher.join()
        real_brokers.start_broker(GOES)
    record_property("answers", len(answers))
    assert answers
    assert {partition.broker_id for partition in whole} == {1, 2}
    assert [answer for answer in answers if answer != whole] == []
