"""The configuration of a broker, and that it is stored."""

import pytest

from tubemq_spark.embedded.config.catalog import SYSTEM_USER, TopicSpec
from tubemq_spark.embedded.config.controls import BrokerConfig, BrokerRecord, ManageStatus
from tubemq_spark.errors import DataLossError


@pytest.fixture
def path(tmp_path):
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


def test_a_broker_without_a_file_is_online(path):
    config = BrokerConfig(path)
    assert config.record == BrokerRecord(ManageStatus.ONLINE, TopicSpec())
    assert config.record.stamp.create_user == SYSTEM_USER
    assert not path.exists()


def test_a_stored_configuration_comes_back(path):
    config = BrokerConfig(path, lambda: 1000)
    record = BrokerRecord(ManageStatus.ONLY_READ, TopicSpec(partitions=3), 9000, 1, 2)
    config.replace(record, "maker", "20200101000000", as_new=True)
    config.replace(record, "changer", "20200202000000")
    again = BrokerConfig(path)
    assert again.record == record
    assert again.record.stamp == config.record.stamp
    assert (again.record.stamp.create_user, again.record.stamp.modify_user) == ("maker", "changer")


def test_a_file_that_cannot_be_read_is_refused_and_left_alone(path):
    text = '{"version": 1, "broker": {"status": "asleep"}}'
    path.write_text(text)
    with pytest.raises(DataLossError, match=r"^\[TUBEMQ_STORE_DAMAGED\] .*broker\.json is damaged"):
        BrokerConfig(path)
    assert path.read_text() == text


def test_a_broker_whose_record_an_earlier_release_deleted_is_offline(path):
    path.write_text('{"version": 1, "broker": null}')
    assert BrokerConfig(path).record == BrokerRecord(ManageStatus.OFFLINE)
