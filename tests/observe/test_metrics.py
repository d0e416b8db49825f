"""What Prometheus reads, also of the losses in a ledger."""

import datetime
import json
import logging
import math
import sys
import threading
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.events import idle, offset, progress, run_id, source, start, termination
from tubemq_spark.errors import OptionError, TubeMQConnectionError
from tubemq_spark.model import TopicPartition
from tubemq_spark.observe import LagListener, metrics as losses_module
from tubemq_spark.observe.metrics import LedgerLosses
from tubemq_spark.offsets.ledger import SUFFIX, file_of, micro_batch
from tubemq_spark.offsets.loss import Loss, LossRecord

LABELS = "query", "source", "topic", "broker", "partition", "condition"


def values(text):
    """Return the values by metric and labels."""
    return {
        (sample.name, *(sample.labels[name] for name in LABELS if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def listener():
    made = LagListener()
    for second, begin, end in ((0, 0, 10), (10, 10, 10), (20, 10, 20)):
        brokers = {"away": [2], "outages": 3} if second == 20 else None
        only = source(
            offset(demo=end),
            offset(demo=10 + second, brokers=brokers),
            start=offset(demo=begin),
            rows=end - begin - 1,
        )
        made.onQueryProgress(
            progress(
                run_id(1), only, second=second, name='the "one"', took_ms=1500, observed=observed(second)
            )
        )
    first = source(offset(orders=4, begins={"orders": 1}), offset(orders=7), rows=3)
    made.onQueryProgress(progress(run_id(2), first, name="two"))
    made.onQueryIdle(idle(run_id(2), second=30))
    return made


def observed(size):
    """Return what Spark observed: of a micro-batch without rows a sum is null."""
    return {"mine": {"rows": 3}, "tubemq.bytes.a": {"bytes": size or None}, "tubemq.bytes.b": {"bytes": 1}}


ONE, TWO = ('the "one"', "0", "demo"), ("two", "0", "orders")


def test_each_known_figure_is_a_metric(listener):
    with listener.metrics() as metrics:
        assert values(metrics.text()) == {
            ("tubemq_lag_rows", *ONE): 10,
            ("tubemq_lag_seconds", *ONE): 10,
            ("tubemq_catch_up_seconds", *ONE): math.inf,
            ("tubemq_progress_timestamp_seconds", *ONE): 1772366420,
            ("tubemq_read_rows_total", *ONE): 20,
            ("tubemq_input_rows_total", *ONE[:2]): 17,
            ("tubemq_brokers_away", *ONE[:2]): 1,
            ("tubemq_broker_outages_total", *ONE[:2]): 3,
            ("tubemq_query_idle", ONE[0]): 0,
            ("tubemq_batches_total", ONE[0]): 3,
            ("tubemq_batch_seconds_total", ONE[0]): 4.5,
            ("tubemq_observed_bytes_total", ONE[0]): 33,
            ("tubemq_lag_rows", *TWO): 3,
            ("tubemq_progress_timestamp_seconds", *TWO): 1772366430,
            ("tubemq_read_rows_total", *TWO): 3,
            ("tubemq_input_rows_total", *TWO[:2]): 3,
            ("tubemq_brokers_away", *TWO[:2]): 0,
            ("tubemq_broker_outages_total", *TWO[:2]): 0,
            ("tubemq_query_idle", TWO[0]): 1,
            ("tubemq_batches_total", TWO[0]): 1,
            ("tubemq_batch_seconds_total", TWO[0]): 0.001,
        }
        listener.onQueryTerminated(termination(run_id(1)))
        assert {query for _, query, *_ in values(metrics.text())} == {"two"}


def test_partitions_have_series_where_that_is_wanted(listener):
    end = {"v": 1, "topics": {"demo": {"1:0": 28 * 5, "1:1": 28 * 8, "2:0": 28 * 6}}}
    start = {"v": 1, "topics": {"demo": {"1:0": 28 * 4, "1:1": 28 * 7, "2:0": 0}}}
    latest = {"v": 1, "topics": {"demo": {"1:0": 28 * 9, "1:1": 28 * 9, "2:0": 28 * 6}}}
    texts = [json.dumps(one) for one in (end, latest, start)]
    made = LagListener()
    made.onQueryProgress(progress(run_id(1), source(*texts[:2], start=texts[2]), name="three"))

    found = values(made.metrics(partitions=True).text())

    where = [("three", "0", "demo", *place) for place in (("1", "0"), ("1", "1"), ("2", "0"))]
    assert [found["tubemq_partition_lag_rows", *place] for place in where] == [4, 1, 0]
    assert [found["tubemq_partition_read_rows_total", *place] for place in where] == [1, 1, 6]
    assert found["tubemq_partition_lag_seconds", *where[2]] == 0
    topic = where[0][:3]
    assert found["tubemq_lag_rows", *topic] == 4, "two partitions share a store"
    assert found["tubemq_read_rows_total", *topic] == 1 + 6


def test_failures_are_counted_by_condition(listener):
    """They stay when the query is gone; those of queries that do not concern TubeMQ are none of ours."""
    ours = "Caused by: DataLossError: [TUBEMQ_DATA_LOSS.EXPIRED] Records of demo ..."
    for run, name, exception in (
        (1, None, ours),
        (2, None, "[DIVIDE_BY_ZERO] Division by zero."),
        (3, "never began", "[TUBEMQ_CONNECT_FAILED] Cannot connect"),
        (4, "of another source", "java.lang.Exception"),
        (5, "never began", "[TUBEMQ_CONNECT_FAILED] Cannot connect"),
        (6, "stopped", None),
    ):
        listener.onQueryStarted(start(run_id(run), name))
        listener.onQueryTerminated(termination(run_id(run), exception))

    assert values(listener.metrics().text()) == {
        ("tubemq_query_failures_total", 'the "one"', "TUBEMQ_DATA_LOSS.EXPIRED"): 1,
        ("tubemq_query_failures_total", "two", "other"): 1,
        ("tubemq_query_failures_total", "never began", "TUBEMQ_CONNECT_FAILED"): 2,
    }


def test_failures_of_queries_without_a_name_are_counted_up_to_a_number(listener):
    for number in range(10, 1_200):
        listener.onQueryTerminated(termination(run_id(number), "[TUBEMQ_TIMEOUT] ..."))
    assert len(listener.failures()) == 1_000


def test_without_queries_there_are_no_series():
    assert values(LagListener().metrics().text()) == {}


def test_metrics_are_served_until_closed(listener):
    with listener.metrics() as metrics:
        port = metrics.serve(0)
        address = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert values(answer.read().decode()) == values(metrics.text())
        metrics.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=10)


def test_metrics_that_cannot_be_served_say_why(listener):
    with listener.metrics() as metrics, listener.metrics() as others:
        port = metrics.serve(0)
        with pytest.raises(
            TubeMQConnectionError, match=rf"listen on 127.0.0.1:{port}: .*; set port to another"
        ):
            others.serve(port)
        with pytest.raises(OptionError, match=r"'192.0.2.1' is not an address of this machine"):
            others.serve(0, "192.0.2.1")


def test_metrics_go_into_a_registry_of_the_user(listener):
    registry = prometheus_client.CollectorRegistry()
    registry.register(listener.metrics().collector)
    assert registry.get_sample_value(
        "tubemq_lag_rows", {"query": "two", "source": "0", "topic": "orders"}
    ) == pytest.approx(3)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "tubemq_spark.observe.metrics", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(OptionError, match=r"pip install 'tubemq_spark\[prometheus\]'"):
        LagListener().metrics()


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
        return {losses_module.LossKind(*EXPIRED): losses_module.LossCount(1, 4)}

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
