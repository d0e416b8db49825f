"""A master that does not lead redirects its clients, after it has checked their requests."""

import pytest

from tests.embedded.wire import MasterClient


@pytest.fixture
def standby(start, closing):
    server = start(topics={"demo": (1, 1)})
    client = closing.enter_context(MasterClient(server.master))
    client.register_producer()
    client.join_group("one", "balanced")
    client.register_consumer("two", "own")
    server.faults.become_standby()
    return server, client


CALLS = {
    "register_producer": ("producer-1", {}),
    "producer_heartbeat": ("producer-1", {}),
    "close_producer": ("producer-1", {}),
    "join_group": ("one", {"group": "balanced"}),
    "group_heartbeat": ("one", {"group": "balanced"}),
    "register_consumer": ("two", {"group": "own"}),
    "consumer_heartbeat": ("two", {"group": "own"}),
    "layout": ("two", {"group": "own"}),
    "close_consumer": ("two", {"group": "own"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_is_sent_on(standby, call):
    server, client = standby
    name, fields = CALLS[call]
    with pytest.raises(AssertionError, match="StandbyException") as failure:
        getattr(client, call)(name, **fields)
    text = str(failure.value)
    assert "org.apache.inlong.tubemq.corerpc.exception.StandbyException" in text
    assert f"{server.master} is not master now. the connecting client id is {name}" in text
    server.faults.become_active()
    answer = getattr(client, call)(name, **fields)
    assert answer.errCode == 200, "nothing was changed meanwhile"


@pytest.mark.parametrize("call", CALLS)
def test_what_is_wrong_is_said_first(standby, call):
    _, client = standby
    _, fields = CALLS[call]
    assert getattr(client, call)("", **fields).errCode == 400


def test_topics_come_after_it_for_consumers_and_before_it_for_producers(standby):
    _, client = standby
    for call in (client.join_group, client.register_consumer):
        with pytest.raises(AssertionError, match="StandbyException"):
            call("one", topics=["nosuch"])
    assert client.register_producer(topics=["__offset_history__"]).errCode == 400
    with pytest.raises(AssertionError, match="StandbyException"):
        client.producer_heartbeat("unknown")
