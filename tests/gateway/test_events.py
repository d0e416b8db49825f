"""What sessions are told by themselves, in their stream of events or with their next heartbeat."""

from tests.gateway.fleet import ROW, attach, fleet_of, fresh, place, values_of
from tests.gateway.running import DRAINING, end_of, gateway
from tests.waiting import wait_until
from tubemq_spark.net import loop
from tubemq_spark.protocol.gateway import gateway_pb2 as pb


class Stream:
    """The events of a session; the gateway tells them from now on."""

    def __init__(self, client, **how):
        self.call = client.begin("SessionEvents", **how, timeout=30)
        self.call.initial_metadata()

    def next(self, kind):
        """The next event of a kind; others are passed over."""
        events = (answer.event for answer in self.call)
        return next(getattr(event, kind) for event in events if event.WhichOneof("event") == kind)


def heard(client, **how):
    return list(client("Heartbeat", **how).events)


def kinds(client):
    return {event.WhichOneof("event") for event in heard(client)}


def test_members_of_a_group_hear_of_a_member_that_comes_and_goes(fleet):
    topic, group = fleet.topic(), fresh("group")
    stays = fleet.reader(topic, 1, group=group)
    stream = Stream(stays)
    comes = fleet.reader(topic, 2, group=group)
    assert stream.next("members_changed").group == group
    comes("CloseSession")
    assert stream.next("members_changed").group == group


def test_members_of_other_groups_hear_nothing(fleet):
    topic = fleet.topic()
    other = fleet.reader(topic, 1)
    fleet.reader(topic, 2)
    assert heard(other) == []


def test_members_hear_nothing_of_each_other_where_the_settings_want_that(server, fleet):
    topic, group = fleet.topic(), fresh("group")
    with gateway(server, notify_members=False) as quiet:
        stays = fleet.reader(topic, 1, group=group, served=quiet)
        fleet.reader(topic, 2, group=group, served=quiet)
        assert heard(stays) == []


def test_events_come_with_heartbeats_until_they_were_seen(fleet):
    topic, group = fleet.topic(), fresh("group")
    stays = fleet.reader(topic, 1, group=group)
    fleet.reader(topic, 2, group=group)
    (event,) = heard(stays)
    assert event.WhichOneof("event") == "members_changed"
    assert heard(stays) == [event]
    assert heard(stays, seen=event.number) == []
    assert heard(stays) == []


def test_a_new_stream_tells_only_events_that_a_broken_one_has_not_told(fleet):
    topic, group = fleet.topic(), fresh("group")
    stays = fleet.reader(topic, 1, group=group)
    stream = Stream(stays)
    comes = fleet.reader(topic, 2, group=group)
    stream.next("members_changed")
    stream.call.cancel()
    wait_until(lambda: next(one for one in fleet.gateway._sessions).under_way == set())
    assert heard(stays) == []
    comes("CloseSession")
    Stream(stays).next("members_changed")


def test_a_partition_that_another_client_took_is_told_of(fleet):
    """The other one comes from elsewhere, when the lease at the broker has ended."""
    topic, group = fleet.topic(), fresh("group")
    loser = fleet.reader(topic, 1, 2, group=group)
    stream = Stream(loser)
    parked = loser.begin("Fetch", wait_ms=20_000, timeout=25)
    for broker in (1, 2):
        fleet.server.faults.give_leases_away(topic, broker=broker)
        lost = stream.next("partition_lost")
        assert lost.partition == place(topic, broker), "each is told of once"
        # 410, when it was asked for again before the broker's answer to the fetch was read.
        assert lost.error.code in (410, 412)
    # Nothing is attached any more, so there is nothing to wait for.
    assert parked.result(10).reason == pb.FetchResponse.REASON_NOTHING_ATTACHED


def test_without_leave_records_that_are_gone_are_an_error(fleet):
    topic = fleet.topic()
    fleet.publish(topic, b"one", b"two", b"three")
    fleet.server.apply_retention(topic, older_than_ms=0)
    reader = fleet.client()
    (answer,) = attach(reader, topic, 1)
    assert answer.error.condition.startswith("TUBEMQ_DATA_LOSS")
    assert "offset_corrected" in kinds(reader)


def test_a_consumer_that_accepts_losses_is_told_and_reads_what_is_left(fleet, caplog):
    topic = fleet.topic()
    fleet.publish(topic, b"one", b"two")
    fleet.server.apply_retention(topic, older_than_ms=0)
    fleet.publish(topic, b"three")
    reader = fleet.client()
    stream = Stream(reader)
    (answer,) = attach(reader, topic, 1, accept_losses=True)
    assert answer.offset == 2 * ROW
    corrected = stream.next("offset_corrected")
    assert (corrected.partition, corrected.loss.kind) == (place(topic), "EXPIRED")
    assert (corrected.loss.start, corrected.loss.end, corrected.loss.rows) == (0, 2 * ROW, 2)
    assert 'tubemq_gateway_losses_total{kind="EXPIRED"}' in fleet.gateway.metrics.text()
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [text for text in warned if topic in text and reader.session.client_id in text]
    assert values_of(reader("Fetch", wait_ms=10_000)) == [b"three"]


def test_a_topic_with_more_partitions_than_before_is_told_of(fleet):
    topic = fleet.topic()
    client = fleet.client()
    client("QueryRoute", topics=[topic])
    stream = Stream(client)
    fleet.server.add_topic(topic, 1, 2)
    # The brokers change one after the other.
    while (changed := stream.next("route_changed")).partitions != 6:
        assert changed.topic == topic


def test_a_second_stream_takes_the_place_of_the_first(fleet):
    client = fleet.client()
    first = Stream(client)
    Stream(client)
    assert end_of(first.call)[0] == "INVALID_ARGUMENT"


def test_a_session_ends_soon_after_its_stream_was_lost_if_it_wants_that(fleet):
    stays, goes = fleet.client(), fleet.client()
    streams = [Stream(stays), Stream(goes, close_when_lost=True)]
    for stream in streams:
        stream.call.cancel()

    def sessions():
        return {one.client_id for one in stays("ListSessions").sessions}

    wait_until(lambda: goes.session.client_id not in sessions())
    assert stays.session.client_id in sessions()


def test_a_client_that_comes_back_in_time_keeps_its_session(fleet, monkeypatch):
    sessions, lost = fleet.gateway._sessions, []
    close = sessions.close_if_silent
    monkeypatch.setattr(sessions, "close_if_silent", lambda *known: lost.append(known))
    client = fleet.client()
    Stream(client, close_when_lost=True).call.cancel()
    wait_until(lambda: lost)
    client("Heartbeat")
    loop.call_soon(lambda: close(*lost[0]))
    client("Heartbeat")


def test_event_streams_hear_that_the_gateway_drains(server):
    with fleet_of(server) as fleet:
        client = fleet.client()
        stream = Stream(client)
        with fleet.draining(10_000):
            stream.next("draining")
            assert end_of(stream.call) == DRAINING


def test_a_client_that_never_looks_does_not_make_the_gateway_grow(fleet):
    topic, group = fleet.topic(), fresh("group")
    sleeps = fleet.reader(topic, 1, group=group)
    for _ in range(5):
        fleet.reader(topic, 2, group=group)("CloseSession")
    (event,) = heard(sleeps)
    assert event.WhichOneof("event") == "members_changed"


def test_a_session_that_ends_by_silence_is_told_to_its_group(server):
    with fleet_of(server, lease_ms=400, heartbeat_ms=100, housekeeping_ms=20) as fleet:
        topic, group = fleet.topic(), fresh("group")
        stays = fleet.reader(topic, 1, group=group)
        stream = Stream(stays)
        fleet.reader(topic, 2, group=group)
        stream.next("members_changed")
        # No call is made for the second one.
        stream.next("members_changed")
        assert len(fleet.gateway._consuming) == 1


def test_a_heartbeat_says_which_gateway_answers(fleet):
    client = fleet.client()
    assert client("Heartbeat").gateway == client("DescribeGateway").name
