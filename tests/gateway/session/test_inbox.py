"""Events of a session: numbered, each pending until it was seen, and never without bound."""

from hypothesis import given, strategies as st

from tubemq_spark.gateway.session.inbox import _MOST, Inbox
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
