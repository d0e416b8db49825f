"""Sessions: one for each client id, that of the largest epoch, as long as it gives signs of life."""

import asyncio
import contextlib

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.errors import GatewayError
from tubemq_spark.gateway.sessions import Sessions
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


def test_a_call_of_an_unknown_session_is_refused():
    sessions, _ = made()
    opened(sessions)
    refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref("other"))
    refused("TUBEMQ_SESSION_UNKNOWN", sessions.use, ref(epoch=2))


def test_a_newer_client_of_the_same_id_fences_the_older_one():
    sessions, _ = made()
    older = opened(sessions)
    newer = opened(sessions, "reader", 2)

    assert older.ended
    refused("TUBEMQ_SESSION_FENCED", sessions.use, ref())
    refused("TUBEMQ_SESSION_FENCED", opened, sessions)
    assert sessions.use(ref(epoch=2)) is newer


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


def test_the_same_client_may_open_its_session_again_with_other_settings():
    sessions, _ = made()
    before = opened(sessions)
    again = opened(sessions)
    assert before.end == "replaced"
    assert sessions.use(ref()) is again
    assert len(sessions) == 1


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


def test_a_client_without_a_name_is_refused():
    sessions, _ = made()
    refused("TUBEMQ_GATEWAY_REQUEST", opened, sessions, " ")


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
    ("close", "condition"),
    [
        (lambda sessions, _: opened(sessions, "reader", 2), "TUBEMQ_SESSION_FENCED"),
        (lambda sessions, session: sessions.close(session), "TUBEMQ_SESSION_UNKNOWN"),
        (lambda sessions, _: opened(sessions), "TUBEMQ_SESSION_UNKNOWN"),
    ],
    ids=["fenced", "closed", "other settings"],
)
def test_the_calls_of_a_session_end_with_it(close, condition):
    sessions, _ = made()
    session, call, ended = opened(sessions), Call(), Call()
    with session.during(ended):
        pass
    with session.during(call):
        close(sessions, session)
    assert (call.ended_by, ended.ended_by) == (condition, None)


def test_the_end_of_a_session_is_settled_when_its_last_call_is():
    sessions, _ = made()
    session, calls = opened(sessions), [Call(), Call()]

    async def settle():
        with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
            first.enter_context(session.during(calls[0]))
            second.enter_context(session.during(calls[1]))
            settled = asyncio.ensure_future(session.settled(3_600))
            for stack in (first, second):
                await asyncio.sleep(0)
                assert not settled.done()
                stack.close()
            await settled

    asyncio.run(settle())


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_secret_that_can_be_guessed_or_is_too_long_is_refused(size):
    sessions, _ = made()
    refused("TUBEMQ_GATEWAY_REQUEST", opened, sessions, "reader", 1, bytes(size))


def test_a_secret_is_never_shown():
    sessions, _ = made()
    assert SECRET.decode() not in repr(opened(sessions))
