"""Damaged records are counted and logged once each."""

from tubemq_spark.embedded.log import store
from tubemq_spark.embedded.log.store import DamagedRecords


def test_a_record_is_counted_and_logged_once(caplog):
    damaged = DamagedRecords("demo-0")
    assert damaged.report((28, 56)) == 2
    assert damaged.report((28, 84)) == 1
    assert damaged.report((28, 56, 84)) == 0
    texts = [line.getMessage() for line in caplog.records]
    assert len(texts) == 2
    assert "Store demo-0: 1 damaged records from offset 84 to 84" in texts[1]
    assert "3 have been found" in texts[1]


def test_only_a_limited_number_of_damaged_records_is_remembered(monkeypatch, caplog):
    monkeypatch.setattr(store, "_MAX_REMEMBERED", 2)
    damaged = DamagedRecords("demo-0")
    assert damaged.report((0, 28, 56)) == 2
    assert damaged.report((84,)) == 0
    assert len(caplog.records) == 1
