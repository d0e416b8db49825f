"""What pytest does for mutants: run the tests of a list, in its order; note how long each took."""

import json
import os
from pathlib import Path

import pytest

_seconds: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not in the list; tests may be there without their parameters."""
    listed = os.environ.get("TUBEMQ_MUTANTS_TESTS")
    if listed is None:
        return
    places = {test: place for place, test in enumerate(json.loads(Path(listed).read_text()))}
    without = {test.partition("[")[0]: place for test, place in places.items()}

    def place_of(item: pytest.Item) -> int | None:
        # A test may have got or lost its parameters since the list was made.
        function = item.nodeid.partition("[")[0]
        return places.get(item.nodeid, places.get(function, without.get(item.nodeid)))

    kept = [item for item in items if place_of(item) is not None]
    config.hook.pytest_deselected(items=[item for item in items if place_of(item) is None])
    items[:] = sorted(kept, key=lambda item: place_of(item) or 0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the seconds of one part of a test."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the seconds, unless this is one process of several."""
    path = os.environ.get("TUBEMQ_MUTANTS_TIMES")
    if path is not None and not hasattr(session.config, "workerinput"):
        Path(path).write_text(json.dumps(_seconds))
