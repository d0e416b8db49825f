"""What Prometheus reads."""

import math
import sys
import urllib.request

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.events import offset, progress, run_id, source, termination
from tubemq_spark.errors import OptionError
from tubemq_spark.observe import LagListener


def values(text):
    """Return the values by metric, query and topic."""
    return {
        (sample.name, sample.labels["query"], sample.labels["topic"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def listener():
    made = LagListener()
    for second, end in ((0, 10), (10, 10), (20, 20)):
        made.onQueryProgress(
            progress(
                run_id(1), source(offset(demo=end), offset(demo=10 + second)), second=second, name='the "one"'
            )
        )
    made.onQueryProgress(progress(run_id(2), source(offset(orders=4), offset(orders=7)), name="two"))
    return made


def test_each_known_figure_is_a_metric(listener):
    with listener.metrics() as metrics:
        found = values(metrics.text())
        assert found == {
            ("tubemq_lag_rows", 'the "one"', "demo"): 10,
            ("tubemq_lag_seconds", 'the "one"', "demo"): 10,
            ("tubemq_catch_up_seconds", 'the "one"', "demo"): math.inf,
            ("tubemq_progress_timestamp_seconds", 'the "one"', "demo"): 1772366420,
            ("tubemq_lag_rows", "two", "orders"): 3,
            ("tubemq_progress_timestamp_seconds", "two", "orders"): 1772366400,
        }
        listener.onQueryTerminated(termination(run_id(1)))
        assert {query for _, query, _ in values(metrics.text())} == {"two"}


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
