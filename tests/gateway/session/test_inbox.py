"""Events of a session: numbered, each pending until it was seen, and never without bound."""

import asyncio

from hypothesis import given, strategies as st

from tubemq_spark.gateway.session.inbox import _MOST, WAKE_S, Board, Inbox
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
def test_each_follower_hears_once_what_others_put_on_a_board(steps):
    board, inboxes = Board(), {"one": Inbox(), "two": Inbox()}
    for inbox in inboxes.values():
        inbox.follow(board)
    owed = {"one": {}, "two": {}}
    for number, (what, topic) in enumerate(steps):
        name = what.split()[-1]
        if what.startswith("look"):
            pending = inboxes[name].pending()
            assert [event.route_changed.topic for event in pending] == sorted(owed[name], key=owed[name].get)
            inboxes[name].seen(pending[-1].number if pending else 0)
            owed[name].clear()
        else:
            inboxes[name].put_for_others(board, ("route", topic), changed(topic))
            owed["two" if name == "one" else "one"][topic] = number


def test_an_event_of_a_board_costs_the_same_however_many_follow_it(monkeypatch):
    """Nothing is done for a follower before it looks."""
    board, touched = Board(), []
    inboxes = [Inbox() for _ in range(1_000)]
    for inbox in inboxes:
        inbox.follow(board)
    monkeypatch.setattr(Inbox, "_add", lambda inbox, *_: touched.append(inbox))
    for _ in range(100):
        inboxes[0].put_for_others(board, ("members",), changed("a"))
    assert touched == []
    inboxes[1].pending()
    assert touched == [inboxes[1]]


def test_of_too_many_things_a_board_leaves_the_oldest_out():
    board, inbox = Board(), Inbox()
    inbox.follow(board)
    for number in range(_MOST + 5):
        board.put((str(number),), changed(str(number)))
    assert topics(inbox) == [str(number) for number in range(5, _MOST + 5)]


def test_streams_are_woken_at_once_and_then_once_in_a_while():
    loop = asyncio.new_event_loop()
    now, due = 100.0, []
    loop.time = lambda: now
    loop.call_later = lambda delay, call: due.append((delay, call)) or due
    board, inbox, silent = Board(), Inbox(), Inbox()

    async def steps():
        nonlocal now
        inbox.follow(board)
        silent.follow(board)
        inbox.begin_reading("call")
        inbox.news.clear()
        board.put(("a",), changed("a"))
        assert (inbox.news.is_set(), silent.news.is_set()) == (True, False)
        inbox.news.clear()
        now += WAKE_S / 4
        for _ in range(1_000):
            board.put(("a",), changed("a"))
        assert not inbox.news.is_set()
        ((delay, wake),) = due
        assert delay == WAKE_S * 3 / 4
        now += delay
        wake()
        assert inbox.news.is_set()

    loop.run_until_complete(steps())
    loop.close()


def test_who_has_left_a_board_is_not_kept_by_it():
    board, inbox = Board(), Inbox()
    inbox.follow(board)
    inbox.begin_reading("call")
    inbox.leave()
    inbox.end_reading("call")
    assert not board.followers
    assert not board.readers
    board.put(("a",), changed("a"))
    assert inbox.pending() == []
