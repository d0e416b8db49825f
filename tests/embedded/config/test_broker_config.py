"""The configuration of a broker, and that it is stored."""

import pytest

from tubemq_spark.embedded.config.broker_config import BrokerConfig, BrokerRecord, ManageStatus
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.stamps import SYSTEM_USER
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
def test_what_a_status_allows(path, status, publish, subscribe):
    config = BrokerConfig(path)
    config.replace(BrokerRecord(status), "me")
    assert (config.accept_publish, config.accept_subscribe) == (publish, subscribe)
    assert status.serves == (publish or subscribe)
    assert status.changed(None, None).accept_publish == publish
    assert status.changed(True, True) is ManageStatus.ONLINE
    assert status.changed(False, False) is ManageStatus.OFFLINE
    assert status.changed(None, False).accept_publish == publish
    assert status.changed(True, None).accept_subscribe == subscribe


def test_without_a_file_it_is_online(path):
    config = BrokerConfig(path)
    assert config.record == BrokerRecord(ManageStatus.ONLINE, TopicSpec())
    assert config.record.stamp.create_user == SYSTEM_USER
    assert not path.exists()


def test_it_comes_back(path):
    config = BrokerConfig(path, lambda: 1000)
    record = BrokerRecord(ManageStatus.ONLY_READ, TopicSpec(partitions=3), 9000, 1, 2)
    config.replace(record, "maker", "20200101000000", anew=True)
    config.replace(record, "changer", "20200202000000")
    again = BrokerConfig(path)
    assert again.record == record
    assert again.record.stamp == config.record.stamp
    assert (again.record.stamp.create_user, again.record.stamp.modify_user) == ("maker", "changer")


def test_a_deleted_broker_serves_nobody(path):
    BrokerConfig(path).delete()
    again = BrokerConfig(path)
    assert again.record is None
    assert not again.accept_publish
    assert not again.accept_subscribe
    again.replace(BrokerRecord(), "me")
    assert BrokerConfig(path).accept_publish


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "broker": {"status": "asleep"}}']
)
def test_a_file_that_cannot_be_read_is_refused_and_left_alone(path, text):
    path.write_text(text)
    with pytest.raises(DataLossError, match=r"^\[TUBEMQ_STORE_DAMAGED\] .*broker\.json is damaged"):
        BrokerConfig(path)
    assert path.read_text() == text
