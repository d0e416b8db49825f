"""Flow control rules that an operator sets come to a group's members by heartbeats, and go again."""

import json

import pytest

from testkit.connections import opened, opened_connections
from tests.client.ways import served
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.consumer.flow_control import FetchOutcome, FlowControl, PartitionFlow
from tubemq_spark.client.consumer.group.session import GroupSession
from tubemq_spark.client.consumer_config import Subscription
from tubemq_spark.client.metadata.admin import MasterAdmin
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.flow_rules import Pauses

MIB = 1 << 20
ADD = {"confModAuthToken": "abc", "createUser": "me"}
CHANGE = {"confModAuthToken": "abc", "modifyUser": "me"}


def rules(*records):
    return json.dumps([{"type": kind, "rule": items} for kind, items in records])


LIMIT = {"start": "00:00", "end": "23:59", "dltInM": 21, "limitInM": 12, "freqInMs": 900}
OF_THE_CLUSTER = rules((1, [{"zeroCnt": 2, "freqInMs": 700}]), (3, [{"normFreqInMs": 9}]))
OF_THE_GROUP = rules((0, [LIMIT]), (3, [{"normFreqInMs": 5}]))


server = served()


@pytest.fixture
def control(server):
    """What a member of the group ``etl`` knows."""
    config = ClientConfig((Endpoint.parse(server.master),), "etl", heartbeat_period_ms=20)
    flow = FlowControl()
    with (
        opened_connections() as connections,
        opened(
            GroupSession(
                config,
                connections,
                Subscription.of("demo"),
                flow,
                partitions=tuple,
                on_event=lambda _: None,
            )
        ),
    ):
        yield flow


def test_rules_come_and_go(server, control):
    admin = MasterAdmin(server.master_web)
    assert (control.pauses, control.own_limits, control.query_priority) == (Pauses(), False, -2)

    admin.ask(
        method="admin_set_cluster_default_setting", flowCtrlEnable="true", flowCtrlInfo=OF_THE_CLUSTER, **ADD
    )
    wait_until(lambda: control.pauses == Pauses(usual_ms=9))
    assert control.pause_after_empty(2, 400) == 700

    group = {"groupName": "etl", "flowCtrlEnable": "true", "flowCtrlInfo": OF_THE_GROUP, "qryPriorityId": 303}
    admin.ask(method="admin_add_group_resctrl_info", **group, **ADD)
    wait_until(lambda: control.pauses == Pauses(usual_ms=5))
    assert control.query_priority == 303
    assert control.own_limits, "which each fetch tells the broker"
    assert control.pause_after_empty(2, 400) == 700, "of the cluster, since the group has no rule about that"
    partition = PartitionFlow(control, lambda: 0.0)
    partition.record(FetchOutcome(200, MIB, lag=22 * MIB))
    assert partition.rest_ms(filtered=False) == 900

    admin.ask(method="admin_update_group_resctrl_info", groupName="etl", flowCtrlEnable="false", **CHANGE)
    wait_until(lambda: control.pauses == Pauses(usual_ms=9))
    assert not control.own_limits
