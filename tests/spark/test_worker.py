"""What a Spark worker process does once."""

import gc

import pytest

from tubemq_spark.spark.worker import REUSED_VARIABLE, spare_collector


@pytest.fixture(autouse=True)
def fresh_process():
    """Whatever the collector passes over was moved there by the test."""
    gc.unfreeze()
    spare_collector.cache_clear()
    yield
    spare_collector.cache_clear()
    gc.unfreeze()


def test_the_collector_passes_over_what_a_reused_worker_has_imported(monkeypatch):
    monkeypatch.setenv(REUSED_VARIABLE, "1")
    spare_collector()
    spared = gc.get_freeze_count()
    assert spared > 1000
    kept = [[] for _ in range(1000)]
    spare_collector()
    assert gc.get_freeze_count() == spared, f"only the first task does that; {len(kept)} lists came later"


def test_other_processes_are_left_alone(monkeypatch):
    monkeypatch.delenv(REUSED_VARIABLE, raising=False)
    spare_collector()
    assert gc.get_freeze_count() == 0
