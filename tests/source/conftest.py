"""What the tests of the source share."""

import types

import pytest

from tests.source.fake_cluster import FakeCluster
from tests.source.scripted_questions import scripted
from tubemq_spark.cluster import peek
from tubemq_spark.source import background, layout_cache, marks, planner, row_sizes, stream_driver


@pytest.fixture
def cluster(monkeypatch):
    """The cluster that every planner sees."""
    fake = FakeCluster()
    monkeypatch.setattr(planner, "open_cluster", lambda _: fake)
    return fake


@pytest.fixture
def clock(monkeypatch):
    """The planner's clock, as a list of one number: seconds. Questions beside a trigger wait on it too."""
    now = [1000.0]

    def sleep(seconds):
        now[0] += seconds

    fake = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    for module in (planner, layout_cache, marks, row_sizes, stream_driver, peek):
        monkeypatch.setattr(module, "time", fake)
    for module in (background, marks, planner):
        monkeypatch.setattr(module, "BackgroundQuestion", scripted(now))
    return now
