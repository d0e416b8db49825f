"""Events of a session: numbered, each pending until it was seen, and never without bound."""

import asyncio
import weakref

from hypothesis import given, strategies as st

from tubemq_spark.gateway.sessions import _MOST, WAKE_S, Inbox, SharedEvents
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


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
