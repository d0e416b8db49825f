"""What hostile clients try reaches nothing, and others hardly notice, by a gateway as operators start it.

``python -m benchmarks.gateway_attacks`` shows the same attacks with the times of another client's heartbeats.
"""

import pytest

from testkit.attacks import ATTACKS, LIMIT_BYTES, SLACK_BYTES, run
from testkit.heartbeats import LEAST

_LONG = ("threads", "streams", "page", "memory b: many windows", "memory c: bodies", "memory d: names")
"""Thousands of calls, requests of half a minute, and hundreds of megabytes in three more ways."""


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in _LONG else []) for name in ATTACKS]
)
def test_an_attack_reaches_nothing(name, tmp_path):
    outcome = run(name, tmp_path)
    assert outcome.reached == []
    assert outcome.grown_bytes < LIMIT_BYTES + SLACK_BYTES
    assert outcome.errors == [], "heartbeats of another client"


@pytest.mark.process
def test_an_attack_that_is_over_at_once_is_judged_by_as_many_heartbeats(monkeypatch, tmp_path):
    monkeypatch.setitem(ATTACKS, "nothing", lambda stage: [])
    outcome = run("nothing", tmp_path, quiet_s=0)
    assert outcome.errors == []
    assert len(outcome.quiet_ms) >= LEAST
    assert len(outcome.took_ms) >= LEAST
