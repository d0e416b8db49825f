"""What operators set, for the cluster and for brokers, is stored with who set it."""

import pytest

from tubemq_spark.embedded.config.catalog import SYSTEM_USER, TopicSpec
from tubemq_spark.embedded.config.controls import (
    BrokerConfig,
    BrokerRecord,
    ClusterSetting,
    ConsumeControl,
    Controls,
    GroupControl,
    ManageStatus,
    Stamp,
    TopicControl,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "controls.json"


def test_the_default_cluster_setting_can_be_another_until_one_is_set(path):
    mine = ClusterSetting(query_priority=303)
    controls = Controls(path, mine)
    assert controls.cluster == mine
    controls.set_group("g", GroupControl(), "me")
    assert Controls(path, mine).cluster == mine
    assert Controls(path).cluster == ClusterSetting()
    controls.set_cluster(ClusterSetting(query_priority=101), "me")
    assert Controls(path, mine).cluster.query_priority == 101


def test_records_come_back_with_their_stamps(path):
    controls = Controls(path)
    controls.set_cluster(ClusterSetting(4, 303, True, '[{"type":1}]'), "me", "20240102030405")
    controls.set_group("b", GroupControl(True, 7, 202, True, "[1]"), "me")
    controls.set_group("a", GroupControl(), "me")
    controls.set_consume("g", "t", ConsumeControl(False, "no", True, ("x", "y")), "me")
    controls.set_consume("g", "s", ConsumeControl(), "me")
    controls.set_topic("t", TopicControl(True), "me")
    again = Controls(path)
    assert again.cluster == ClusterSetting(4, 303, True, '[{"type":1}]')
    assert again.cluster.stamp == controls.cluster.stamp
    assert again.cluster.stamp.create_date == "20240102030405"
    assert list(again.groups()) == ["a", "b"]
    assert again.group("b") == GroupControl(True, 7, 202, True, "[1]")
    assert list(again.consumes()) == [("g", "s"), ("g", "t")]
    assert again.consume("g", "t") == ConsumeControl(False, "no", True, ("x", "y"))
    assert again.topic("t").authorize
    assert again.group("b").stamp == controls.group("b").stamp


def test_the_maker_of_a_record_stays_and_its_serial_id_rises(path):
    now = [1_700_000_000_000]
    controls = Controls(path, now_ms=lambda: now[0])
    controls.set_group("g", GroupControl(), "first", "20240101000000")
    first = controls.group("g").stamp
    assert first == Stamp(1_700_000_000_000, "first", "20240101000000", "first", "20240101000000")
    controls.set_group("g", GroupControl(res_check=True), "second", "20240202000000")
    second = controls.group("g").stamp
    assert second == Stamp(1_700_000_000_001, "first", "20240101000000", "second", "20240202000000")
    now[0] += 5000
    controls.set_group("g", GroupControl(), "third")
    third = controls.group("g").stamp
    assert third.serial_id == 1_700_000_005_000
    assert len(third.modify_date) == 14
    assert third.modify_date.isdigit()


def test_a_stamp_makes_no_difference_between_records():
    assert GroupControl(stamp=Stamp(1)) == GroupControl(stamp=Stamp(2))
    assert GroupControl(res_check=True) != GroupControl()


@pytest.mark.parametrize(("on", "expected"), [(True, 1000), (False, -2)])
def test_the_id_of_flow_rules_is_there_while_they_are_in_force(path, on, expected):
    controls = Controls(path, now_ms=lambda: 1000)
    controls.set_cluster(ClusterSetting(flow_control=on), "me")
    controls.set_group("g", GroupControl(flow_control=on), "me")
    assert controls.cluster.flow_id == expected
    assert controls.group("g").flow_id == expected


@pytest.fixture
def broker_path(tmp_path):
    return tmp_path / "broker.json"


@pytest.mark.parametrize(
    ("status", "publish", "subscribe"),
    [
        (ManageStatus.DRAFT, False, False),
        (ManageStatus.ONLINE, True, True),
        (ManageStatus.ONLY_READ, False, True),
        (ManageStatus.ONLY_WRITE, True, False),
        (ManageStatus.OFFLINE, False, False),
    ],
)
def test_what_a_status_allows(status, publish, subscribe):
    assert (status.accept_publish, status.accept_subscribe) == (publish, subscribe)


def test_a_broker_without_a_file_is_online(broker_path):
    config = BrokerConfig(broker_path)
    assert config.record == BrokerRecord(ManageStatus.ONLINE, TopicSpec())
    assert config.record.stamp.create_user == SYSTEM_USER
    assert not broker_path.exists()


def test_a_stored_configuration_comes_back(broker_path):
    config = BrokerConfig(broker_path, lambda: 1000)
    record = BrokerRecord(ManageStatus.ONLY_READ, TopicSpec(partitions=3), 9000, 1, 2)
    config.replace(record, "maker", "20200101000000", as_new=True)
    config.replace(record, "changer", "20200202000000")
    again = BrokerConfig(broker_path)
    assert again.record == record
    assert again.record.stamp == config.record.stamp
    assert (again.record.stamp.create_user, again.record.stamp.modify_user) == ("maker", "changer")


def test_a_broker_whose_record_an_earlier_release_deleted_is_offline(broker_path):
    broker_path.write_text('{"version": 1, "broker": null}')
    assert BrokerConfig(broker_path).record == BrokerRecord(ManageStatus.OFFLINE)
