"""Hooks: told of each call, and harmless when they fail."""

from tests.gateway.fleet import batch_to
from tests.waiting import wait_until


class Seen:
    def __init__(self):
        self.calls = []

    def before(self, call):
        self.calls.append(("before", call.method.name))

    def after(self, call, status, seconds):
        self.calls.append(("after", call.method.name, status, call.rows, seconds >= 0))


class Broken:
    def before(self, call):
        raise ZeroDivisionError

    def after(self, call, status, seconds):
        raise ZeroDivisionError


def test_hooks_see_each_call_and_a_failing_hook_does_no_harm(fleet, monkeypatch):
    seen = Seen()
    monkeypatch.setattr(fleet.served.server._calls, "hooks", [Broken(), seen])
    topic = fleet.topic()
    client = fleet.client()
    client("PublishStream", batch=batch_to(topic, b"one", b"two"))
    wait_until(lambda: len(seen.calls) == 4)
    assert seen.calls == [
        ("before", "OpenSession"),
        ("after", "OpenSession", "OK", 0, True),
        ("before", "PublishStream"),
        ("after", "PublishStream", "OK", 2, True),
    ]
    assert "tubemq_gateway_hooks_failed_total 4.0" in fleet.served.server.metrics.text()
