"""Sessions: one for each client id, that of the largest epoch, as long as it gives signs of life.

Their events are numbered, each pending until it was seen, and never without bound; one costs what has
changed, and not what there is.
"""

import asyncio
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.control import ControlService
from tubemq_spark.gateway.sessions import _MOST, IDLE, LOST, WAKE_S, Events, Inbox, Sessions, SharedEvents
from tubemq_spark.gateway.settings import GatewaySettings
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.gateway import gateway_pb2 as pb

LEASE_S = 30.0


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def made(**settings):
    clock = Clock()
    return Sessions(
        GatewaySettings(master_servers=(Endpoint("m", 8715),), node_name="g1", **settings), clock
    ), clock


SECRET = b"the secret of a test"


def ref(client_id="reader", epoch=1, secret=SECRET):
    return pb.SessionRef(client_id=client_id, epoch=epoch, secret=secret)


def opened(sessions, client_id="reader", epoch=1, secret=SECRET, owner=""):
    request = pb.OpenSessionRequest(client_id=client_id, epoch=epoch, secret=secret, language="Python")
    return sessions.open(request, object, "peer", owner)


def refused(condition, call, *arguments):
    with pytest.raises(GatewayError) as caught:
        call(*arguments)
    assert caught.value.condition == condition
    return caught.value


def test_opening_a_session_again_with_the_same_settings_changes_nothing():
    sessions, clock = made()
    access = object()
    request = pb.OpenSessionRequest(client_id="reader", epoch=1, secret=SECRET)
    session = sessions.open(request, lambda: access, "peer")
    clock.now += LEASE_S - 1
    assert sessions.open(request, lambda: access, "peer") is session
    clock.now += 2
    assert sessions.expire() == []
    assert not session.ended


def test_a_client_of_the_policy_that_opens_its_session_with_another_secret_goes_on_with_that():
    sessions, _ = made(policy="policy.toml")
    access, other = object(), b"another secret of a test"
    for secret in (SECRET, other):
        request = pb.OpenSessionRequest(client_id="reader", epoch=1, secret=secret)
        session = sessions.open(request, lambda: access, "peer", "ann")
    assert sessions.use(ref(secret=other), "ann") is session


def test_a_silent_session_expires_and_one_with_calls_under_way_does_not():
    sessions, clock = made()
    silent, busy, fresh = (opened(sessions, name) for name in ("silent", "busy", "fresh"))
    busy.under_way.add(object())
    clock.now += LEASE_S + 1
    sessions.use(ref("fresh"))

    assert sessions.expire() == [silent]
    assert list(sessions) == [busy, fresh]
    refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref("silent"))


def test_a_closed_session_does_not_close_its_successor():
    sessions, _ = made()
    older = opened(sessions)
    newer = opened(sessions, "reader", 2)
    sessions.close(older)
    assert list(sessions) == [newer]


def test_sessions_are_limited_and_a_refusal_says_when_to_try_again():
    sessions, _ = made(sessions=2)
    opened(sessions, "a")
    opened(sessions, "b")
    assert refused("TUBEMQ_GATEWAY_BUSY", opened, sessions, "c").parameters["retry_after_ms"] > 0
    opened(sessions, "b", 2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(1, 3), st.sampled_from(["open", "use", "wait", "close"])
        ),
        max_size=20,
    )
)
def test_only_the_newest_session_of_an_id_is_served(steps):
    sessions, clock = made()
    model = {}
    for name, epoch, what in steps:
        current = model.get(name)
        if what == "wait":
            clock.now += LEASE_S + 1
            sessions.expire()
            model.clear()
        elif what == "open":
            if current is not None and current > epoch:
                refused("TUBEMQ_SESSION_FENCED", opened, sessions, name, epoch)
            else:
                opened(sessions, name, epoch)
                model[name] = epoch
        elif current == epoch:
            session = sessions.use(ref(name, epoch))
            if what == "close":
                sessions.close(session)
                del model[name]
        else:
            fenced = current is not None and current > epoch
            refused(f"TUBEMQ_SESSION_{'FENCED' if fenced else 'UNKNOWN'}", sessions.use, ref(name, epoch))
        assert {one.client_id: one.epoch for one in sessions} == model


def test_a_listener_that_fails_does_not_keep_others_from_hearing_of_an_end(caplog):
    sessions, _ = made()
    told = []
    sessions.on_end += [lambda _: 1 // 0, told.append]
    session = opened(sessions)
    sessions.close(session)
    assert told == [session]
    assert "was not taken note of" in caplog.text


@pytest.mark.parametrize("secret", [b"", b"another secret of a test", SECRET[:-1]])
def test_a_call_with_another_secret_is_refused_as_that_of_an_unknown_session_is(secret):
    sessions, _ = made()
    opened(sessions)
    wrong = refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref(secret=secret))
    older = refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref(epoch=0, secret=secret))
    assert str(wrong) == str(older) == str(wrong).replace("other", "reader")
    unknown = refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref("other"))
    assert str(unknown) == str(wrong).replace("reader", "other")


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_id_is_only_taken_with_its_secret_or_by_the_same_client_of_the_policy(epoch):
    sessions, clock = made(policy="policy.toml")
    first = opened(sessions, owner="ann")
    other = b"another secret of a test"
    for owner in ("", "mallory"):
        refused("TUBEMQ_SESSION_TAKEN", opened, sessions, "reader", epoch, other, owner)
    assert sessions.use(ref(), "ann") is first
    clock.now += LEASE_S + 1
    sessions.expire()
    assert opened(sessions, "reader", epoch, other, "mallory").owner == "mallory"
    if epoch:
        assert opened(sessions, "reader", 2, SECRET, "mallory").secret == SECRET


def test_without_a_policy_who_has_a_certificate_needs_the_secret_too():
    sessions, _ = made()
    opened(sessions, owner="CN=ann")
    other = b"another secret of a test"
    refused("TUBEMQ_SESSION_TAKEN", opened, sessions, "reader", 2, other, "CN=ann")
    refused("TUBEMQ_SESSION_TAKEN", opened, sessions, "reader", 2, SECRET, "CN=mallory")
    refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref(), "CN=mallory")
    assert opened(sessions, "reader", 2, SECRET, "CN=ann").epoch == 2


@pytest.mark.parametrize("stranger", [(SECRET, "mallory"), (b"another secret of a test", "ann")])
def test_what_a_stranger_shows_is_no_sign_of_life(stranger):
    sessions, clock = made(policy="policy.toml")
    opened(sessions, owner="ann")
    clock.now += LEASE_S - 1
    secret, owner = stranger
    refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref(secret=secret), owner)
    clock.now += 2
    assert len(sessions.expire()) == 1


class Call:
    def __init__(self):
        self.ended_by = None

    def end(self, error):
        self.ended_by = error.condition


@pytest.mark.parametrize(
    ("close", "condition", "end"),
    [
        (lambda sessions, _: opened(sessions, "reader", 2), "TUBEMQ_SESSION_FENCED", "replaced"),
        (lambda sessions, session: sessions.close(session), "TUBEMQ_SESSION_UNKNOWN", "closed"),
        (lambda sessions, _: opened(sessions), "TUBEMQ_SESSION_UNKNOWN", "replaced"),
    ],
    ids=["fenced", "closed", "other settings"],
)
def test_the_calls_of_a_session_end_with_it(close, condition, end):
    sessions, _ = made()
    session, call, ended = opened(sessions), Call(), Call()
    with session.during(ended):
        pass
    with session.during(call):
        close(sessions, session)
    assert (call.ended_by, ended.ended_by, session.end) == (condition, None, end)


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_secret_that_can_be_guessed_or_is_too_long_is_refused(size):
    sessions, _ = made()
    refused("TUBEMQ_GATEWAY_REQUEST", opened, sessions, "reader", 1, bytes(size))


def test_a_secret_is_never_shown():
    sessions, _ = made()
    assert SECRET.decode() not in repr(opened(sessions))


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


def opened_with(sessions, client_id, access):
    request = pb.OpenSessionRequest(client_id=client_id, epoch=1, secret=bytes(16))
    return sessions.open(request, lambda: access, "peer")


def told(session):
    return [event.WhichOneof("event") for event in session.inbox.pending()]


def test_only_those_whom_an_event_concerns_are_told_and_all_sessions_are_never_looked_at(parts):
    sessions, events = parts
    first, second = Access("a"), Access("b")
    one, two, three = (
        opened_with(sessions, name, access) for name, access in (("1", first), ("2", first), ("3", second))
    )
    events.route_changed(second, "clicks", 3)
    events.members_changed("a", one)
    assert (told(one), told(two), told(three)) == ([], ["members_changed"], ["route_changed"])
    events.draining()
    assert (told(one), told(two)) == (["draining"], ["members_changed", "draining"])


def test_groups_and_settings_without_sessions_are_forgotten(parts):
    sessions, events = parts
    access = Access("a")
    one, two = opened_with(sessions, "1", access), opened_with(sessions, "2", access)
    sessions.close(one)
    assert set(events._of_group) == {"a"}
    sessions.close(two)
    assert not events._of_group
    assert not events._of_access


@pytest.mark.parametrize(("attached", "end"), [({"clicks"}, LOST), (set(), IDLE)], ids=[LOST, IDLE])
def test_a_session_that_is_silent_after_its_stream_was_lost_is_closed(parts, attached, end):
    sessions, _ = parts
    session = opened_with(sessions, "1", Access("a"))
    session.attached |= attached
    sessions.close_if_silent(session, session.calls)
    assert session.end == end


def test_a_session_that_gave_a_sign_of_life_after_its_stream_was_lost_goes_on(parts):
    sessions, _ = parts
    session = opened_with(sessions, "1", Access("a"))
    sessions.use(pb.SessionRef(client_id="1", epoch=1, secret=bytes(16)))
    sessions.close_if_silent(session, session.calls - 1)
    with session.during(object()):
        sessions.close_if_silent(session, session.calls)
    assert not session.ended


def test_a_stream_that_has_ended_is_woken_no_more(parts):
    sessions, events = parts
    session = opened_with(sessions, "1", Access("a"))

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


def put(inbox, topic):
    changed = pb.SessionEvent.RouteChanged(topic=topic)
    inbox.put(("route", topic), pb.SessionEvent(route_changed=changed))


def topics(inbox):
    return [event.route_changed.topic for event in inbox.pending()]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30))))
def test_the_newest_about_each_thing_is_pending_until_it_was_seen(steps):
    inbox, newest = Inbox(), {}
    for number, (topic, seen) in enumerate(steps, 1):
        put(inbox, topic)
        newest[topic] = number
        inbox.seen(seen)
        newest = {one: at for one, at in newest.items() if at > seen}
        assert [(event.route_changed.topic, event.number) for event in inbox.pending()] == sorted(
            newest.items(), key=lambda item: item[1]
        )


def test_of_too_many_events_the_oldest_are_left_out_which_numbers_show():
    inbox = Inbox()
    for number in range(_MOST + 5):
        put(inbox, f"t{number}")
    assert len(inbox.pending()) == _MOST
    assert inbox.pending()[0].number == 6
    assert topics(inbox)[-1] == f"t{_MOST + 4}"


def changed(topic):
    return pb.SessionEvent(route_changed=pb.SessionEvent.RouteChanged(topic=topic))


@given(st.lists(st.tuples(st.sampled_from(["one", "two", "look one", "look two"]), st.sampled_from("abc"))))
def test_each_follower_hears_once_what_others_put_among_shared_events(steps):
    shared, inboxes = SharedEvents(), {"one": Inbox(), "two": Inbox()}
    for inbox in inboxes.values():
        inbox.follow(shared)
    owed = {"one": {}, "two": {}}
    for number, (what, topic) in enumerate(steps):
        name = what.split()[-1]
        if what.startswith("look"):
            pending = inboxes[name].pending()
            assert [event.route_changed.topic for event in pending] == sorted(owed[name], key=owed[name].get)
            inboxes[name].seen(pending[-1].number if pending else 0)
            owed[name].clear()
        else:
            inboxes[name].put_for_others(shared, ("route", topic), changed(topic))
            owed["two" if name == "one" else "one"][topic] = number


def test_a_shared_event_costs_the_same_however_many_follow_it(monkeypatch):
    """Nothing is done for a follower before it looks."""
    shared, touched = SharedEvents(), []
    inboxes = [Inbox() for _ in range(1_000)]
    for inbox in inboxes:
        inbox.follow(shared)
    monkeypatch.setattr(Inbox, "add", lambda inbox, *_: touched.append(inbox))
    for _ in range(100):
        inboxes[0].put_for_others(shared, ("members",), changed("a"))
    assert touched == []
    inboxes[1].pending()
    assert touched == [inboxes[1]]


def test_of_too_many_things_shared_events_leave_the_oldest_out():
    shared, inbox = SharedEvents(), Inbox()
    inbox.follow(shared)
    for number in range(_MOST + 5):
        shared.put((str(number),), changed(str(number)))
    assert topics(inbox) == [str(number) for number in range(5, _MOST + 5)]


def test_streams_are_woken_at_once_and_then_once_in_a_while():
    loop = asyncio.new_event_loop()
    now, due = 100.0, []
    loop.time = lambda: now
    loop.call_later = lambda delay, call: due.append((delay, call)) or due
    shared, inbox, silent = SharedEvents(), Inbox(), Inbox()

    async def steps():
        nonlocal now
        inbox.follow(shared)
        silent.follow(shared)
        inbox.begin_reading(len, None)
        inbox.news.clear()
        shared.put(("a",), changed("a"))
        assert (inbox.news.is_set(), silent.news.is_set()) == (True, False)
        inbox.news.clear()
        now += WAKE_S / 4
        for _ in range(1_000):
            shared.put(("a",), changed("a"))
        assert not inbox.news.is_set()
        ((delay, wake),) = due
        assert delay == WAKE_S * 3 / 4
        now += delay
        wake()
        assert inbox.news.is_set()

    loop.run_until_complete(steps())
    loop.close()


def test_who_has_left_shared_events_is_not_kept_by_them():
    shared, inbox = SharedEvents(), Inbox()
    inbox.follow(shared)
    inbox.begin_reading(len, None)
    inbox.leave()
    inbox.end_reading(len)
    shared.put(("a",), changed("a"))
    assert inbox.pending() == []
    gone = weakref.ref(inbox)
    del inbox
    assert gone() is None
