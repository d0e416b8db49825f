"""An event costs what has changed, and not what there is."""

import asyncio
from types import SimpleNamespace

import pytest

from tubemq_spark.gateway.control import ControlService
from tubemq_spark.gateway.sessions import IDLE, LOST, Events, Sessions
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

SETTINGS = GatewaySettings(master_servers=(Endpoint("m", 8715),), node_name="g1")


class Access:
    def __init__(self, group):
        self.config = SimpleNamespace(group=group, reader_groups=())


@pytest.fixture
def parts(monkeypatch):
    sessions = Sessions(SETTINGS)
    events = Events(SETTINGS, sessions)
    # To look at each session there is would cost too much.
    monkeypatch.setattr(Sessions, "__iter__", lambda _: pytest.fail("all sessions were looked at"))
    return sessions, events


def opened(sessions, client_id, access):
    request = pb.OpenSessionRequest(client_id=client_id, epoch=1, secret=bytes(16))
    return sessions.open(request, lambda: access, "peer")


def told(session):
    return [event.WhichOneof("event") for event in session.inbox.pending()]


def test_only_those_whom_an_event_concerns_are_told_and_all_sessions_are_never_looked_at(parts):
    sessions, events = parts
    first, second = Access("a"), Access("b")
    one, two, three = (
        opened(sessions, name, access) for name, access in (("1", first), ("2", first), ("3", second))
    )
    events.route_changed(second, "clicks", 3)
    events.members_changed("a", one)
    assert (told(one), told(two), told(three)) == ([], ["members_changed"], ["route_changed"])
    events.draining()
    assert (told(one), told(two)) == (["draining"], ["members_changed", "draining"])


def test_groups_and_settings_without_sessions_are_forgotten(parts):
    sessions, events = parts
    access = Access("a")
    one, two = opened(sessions, "1", access), opened(sessions, "2", access)
    sessions.close(one)
    assert set(events._of_group) == {"a"}
    sessions.close(two)
    assert not events._of_group
    assert not events._of_access


@pytest.mark.parametrize(("attached", "end"), [({"clicks"}, LOST), (set(), IDLE)], ids=[LOST, IDLE])
def test_a_session_that_is_silent_after_its_stream_was_lost_is_closed(parts, attached, end):
    sessions, _ = parts
    session = opened(sessions, "1", Access("a"))
    session.attached |= attached
    sessions.close_if_silent(session, session.calls)
    assert session.end == end


def test_a_session_that_gave_a_sign_of_life_after_its_stream_was_lost_goes_on(parts):
    sessions, _ = parts
    session = opened(sessions, "1", Access("a"))
    sessions.use(pb.SessionRef(client_id="1", epoch=1, secret=bytes(16)))
    sessions.close_if_silent(session, session.calls - 1)
    with session.during(object()):
        sessions.close_if_silent(session, session.calls)
    assert not session.ended


def test_a_stream_that_has_ended_is_woken_no_more(parts):
    sessions, events = parts
    session = opened(sessions, "1", Access("a"))

    async def stream():
        context = SimpleNamespace(start_answering=lambda: asyncio.sleep(0))
        call = SimpleNamespace(context=context, owner=lambda: session, end=None, ended_by=None)
        control = ControlService(SETTINGS, sessions, None, None, None, None)
        telling = asyncio.ensure_future(control.session_events(pb.SessionEventsRequest(), call))
        await asyncio.sleep(0)
        assert events._for_all.readers == {session.inbox}
        telling.cancel()
        await asyncio.wait({telling})
        assert not events._for_all.readers

    asyncio.run(stream())
