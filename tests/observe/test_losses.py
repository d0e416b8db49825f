"""The losses in a ledger, counted."""

import datetime
import logging
import threading

import pytest

from tubemq_spark.errors import OptionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.observe import LagListener, metrics as losses_module
from tubemq_spark.observe.metrics import LedgerLosses
from tubemq_spark.offsets.ledger import SUFFIX, file_of, micro_batch
from tubemq_spark.offsets.loss import Loss, LossRecord

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
EXPIRED = ("readers", "demo", "EXPIRED")


@pytest.fixture
def clock():
    return [1_000.0]


@pytest.fixture
def losses(tmp_path, clock):
    return LedgerLosses(str(tmp_path), lambda: clock[0])


def lose(folder, start, end, *, rows=None, reason=Loss.EXPIRED, batch=1):
    """Write a loss into a ledger as a task does."""
    record = LossRecord(reason, TopicPartition("demo", 1, 0), 28 * start, 28 * end, rows)
    name, text = file_of([record], micro_batch("readers", "query", batch), NOW)
    (folder / f"{name}{SUFFIX}").write_text(text)


def test_each_gap_counts_once_with_its_rows(tmp_path, losses, clock):
    lose(tmp_path, 0, 4, rows=4)
    lose(tmp_path, 0, 4, rows=4)
    lose(tmp_path, 7, 9, batch=2)
    lose(tmp_path, 9, 10, rows=1, reason=Loss.CORRUPT, batch=3)
    assert losses.counts() == {EXPIRED: (2, 4), ("readers", "demo", "CORRUPT"): (1, 1)}
    assert losses.read_at == clock[0]


def test_it_is_read_again_after_half_a_minute(tmp_path, losses, clock):
    assert losses.counts() == {}
    lose(tmp_path, 0, 4, rows=4)
    clock[0] += 29
    assert losses.counts() == {}
    clock[0] += 1
    assert losses.counts() == {EXPIRED: (1, 4)}


def test_counts_only_grow_although_gaps_become_one(tmp_path, losses, clock):
    lose(tmp_path, 0, 4, rows=4)
    lose(tmp_path, 6, 8, rows=2)
    assert losses.counts() == {EXPIRED: (2, 6)}
    lose(tmp_path, 2, 7, rows=5)
    clock[0] += 30
    assert losses.counts() == {EXPIRED: (2, 8)}


def test_a_ledger_that_cannot_be_read_keeps_its_counts_and_is_told_once(tmp_path, losses, clock, caplog):
    caplog.set_level(logging.WARNING)
    lose(tmp_path, 0, 4, rows=4)
    losses.counts()
    bad = tmp_path / f"other{SUFFIX}"
    bad.write_text("{}\n")
    for _ in range(3):
        clock[0] += 30
        assert losses.counts() == {EXPIRED: (1, 4)}
    assert losses.read_at == 1_000
    assert len(caplog.messages) == 1
    bad.unlink()
    clock[0] += 30
    losses.counts()
    assert losses.read_at == clock[0]


def test_a_ledger_that_does_not_answer_holds_up_no_metrics(losses, clock, monkeypatch):
    monkeypatch.setattr(losses_module, "_PATIENCE_SECONDS", 0.05)
    answers, reads = threading.Event(), []

    def read():
        reads.append(clock[0])
        assert answers.wait(60)
        return {losses_module.Kind(*EXPIRED): losses_module.Count(1, 4)}

    monkeypatch.setattr(losses, "_read", read)
    assert losses.counts() == {}
    clock[0] += 60
    assert losses.counts() == {}
    assert (reads, losses.read_at) == ([1_000], None)
    answers.set()
    losses._reading.join(60)
    clock[0] -= 40
    assert losses.counts() == {EXPIRED: (1, 4)}


def test_losses_are_metrics(tmp_path):
    lose(tmp_path, 0, 4, rows=4)
    with LagListener().metrics(loss_ledger=str(tmp_path)) as metrics:
        text = metrics.text()
    labels = '{group="readers",reason="EXPIRED",topic="demo"}'
    for line in (f"tubemq_losses_total{labels} 1.0", f"tubemq_lost_rows_total{labels} 4.0"):
        assert line in text
    assert "\ntubemq_loss_ledger_timestamp_seconds 1." in text


def test_a_text_that_is_no_folder_is_refused_without_its_secrets():
    with pytest.raises(OptionError, match="loss_ledger") as refused:
        LagListener().metrics(loss_ledger="s4://key:secret@bucket/x")
    assert "secret" not in str(refused.value)
