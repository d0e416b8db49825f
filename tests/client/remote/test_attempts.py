"""Where calls go when gateways are busy or away, in virtual time."""

import random

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.client.remote.attempts import LONGEST_REFUSAL_S, Attempts, AwayError
from tubemq_spark.errors import GatewayError, TlsError, TubeMQConnectionError
from tubemq_spark.model import Endpoint

GONE = AwayError("UNAVAILABLE: it is gone")


def busy(retry_after_ms=500):
    what = {"gateway": "g1", "what": "20 sessions are open", "retry_after_ms": retry_after_ms}
    return AwayError(GatewayError("TUBEMQ_GATEWAY_BUSY", **what))


def other_tls():
    cause = {"cause": "its issuer is not trusted", "hint": "set tubemq.tls.caFile"}
    return AwayError(TlsError("TUBEMQ_TLS_CERTIFICATE", endpoint=Endpoint("g1", 1), **cause))


class Client:
    """A client of several gateways whose clock goes on only while it pauses."""

    def __init__(self, count=2, *, rounds=3, patience_s=60.0, seed=1):
        self.now = 100.0
        self.current = 0
        self.count = count
        self.asked = []
        self.attempts = Attempts(
            count,
            self.leave,
            rounds=rounds,
            retry_s=1.0,
            patience_s=patience_s,
            clock=lambda: self.now,
            chance=random.Random(seed).random,
        )

    def leave(self, gateway):
        if self.current == gateway:
            self.current = (gateway + 1) % self.count

    def call(self, answers):
        """Ask until a gateway serves: ``answers`` says for an index and a moment how it fails, or None."""
        while (error := answers(self.current, self.now - 100)) is not None:
            self.asked.append((self.current, round(self.now - 100, 3)))
            pause = self.attempts.failed(self.current, error)
            if pause is None:
                return False
            self.now += pause
        return True


def test_a_busy_gateway_is_asked_again_and_not_left():
    client = Client()
    assert client.call(lambda gateway, at: busy() if at < 3 else None)
    assert {gateway for gateway, _ in client.asked} == {0}
    assert client.current == 0


@given(st.integers(0, 4_000), st.integers(0, 1_000))
def test_a_client_never_comes_back_earlier_than_it_was_told_and_not_much_later(retry_after_ms, seed):
    client = Client(seed=seed)
    pause_s = client.attempts.failed(0, busy(retry_after_ms))
    if client.current == 0:
        told_s = max(0.05, retry_after_ms / 1000)
        assert told_s <= pause_s <= 1.5 * told_s
    else:
        assert pause_s == 0
        assert 1.5 * retry_after_ms / 1000 > LONGEST_REFUSAL_S


def test_clients_that_were_refused_together_do_not_come_back_together():
    pauses = {Client(seed=seed).attempts.failed(0, busy()) for seed in range(100)}
    assert len(pauses) == 100


def test_a_gateway_that_is_busy_for_long_is_left_for_the_next_one():
    client = Client()
    assert client.call(lambda gateway, at: busy() if gateway == 0 else None)
    assert client.current == 1
    assert LONGEST_REFUSAL_S - 1 < client.now - 100 <= LONGEST_REFUSAL_S


def test_a_gateway_that_wants_half_a_minute_is_left_at_once():
    client = Client()
    assert client.call(lambda gateway, at: busy(30_000) if gateway == 0 else None)
    assert client.now == 100


def test_who_has_one_gateway_waits_for_it():
    client = Client(1)
    assert client.call(lambda gateway, at: busy(20_000) if at < 20 else None)


@pytest.mark.parametrize("error", [GONE, AwayError(GatewayError("TUBEMQ_GATEWAY_DRAINING", gateway="g1"))])
def test_a_gateway_that_is_away_or_about_to_stop_is_left_at_once(error):
    client = Client()
    assert client.call(lambda gateway, at: error if gateway == 0 else None)
    assert (client.asked, client.now) == ([(0, 0.0)], 100)


def test_all_are_tried_in_each_round_and_there_are_pauses_between_the_rounds():
    client = Client(3, rounds=2)
    assert not client.call(lambda gateway, at: GONE)
    assert [gateway for gateway, _ in client.asked] == [0, 1, 2, 0, 1, 2]
    assert 0.5 <= client.now - 100 <= 1
    error = client.attempts.error("asking", "g1:1, g2:1")
    assert isinstance(error, TubeMQConnectionError)
    assert "it is gone" in str(error)


def test_the_error_after_busy_gateways_is_what_they_said_and_when_to_come_back():
    client = Client(patience_s=4.0)
    assert not client.call(lambda gateway, at: busy(30_000))
    error = client.attempts.error("asking", "g1:1, g2:1")
    assert isinstance(error, GatewayError)
    assert error.condition == "TUBEMQ_GATEWAY_BUSY"
    assert error.parameters["retry_after_ms"] == 30_000
    assert "20 sessions are open" in str(error)
    assert client.now == 100, "a wait beyond the deadline is not begun"


def test_a_busy_gateway_is_found_again_when_the_others_are_away():
    client = Client(3, rounds=None)
    assert client.call(lambda gateway, at: (busy() if at < 20 else None) if gateway == 1 else GONE)
    assert client.current == 1


def test_a_whole_round_without_common_tls_is_the_end():
    client = Client(rounds=5)
    assert not client.call(lambda gateway, at: other_tls())
    assert (client.asked, client.now) == ([(0, 0.0), (1, 0.0)], 100)
    assert client.attempts.error("asking", "").condition == "TUBEMQ_TLS_CERTIFICATE"


def test_one_gateway_with_another_certificate_does_not_keep_a_client_from_the_other():
    client = Client()
    assert client.call(lambda gateway, at: other_tls() if gateway == 0 else None)
    assert client.current == 1


@given(st.data())
def test_a_gateway_that_comes_back_is_found_whatever_happened_before(data):
    count = data.draw(st.integers(1, 4))
    client = Client(count, rounds=None, patience_s=None, seed=data.draw(st.integers(0, 99)))
    well = data.draw(st.integers(0, count - 1))
    troubles = [data.draw(st.sampled_from([GONE, busy(), busy(8_000), other_tls()])) for _ in range(count)]

    def answer(gateway, at):
        return None if gateway == well and at > 30 else troubles[gateway]

    while not client.call(answer):
        client.now += 1  # all gateways had another certificate; the user tries again
    assert client.current == well
    assert client.now - 100 < 30 + count * (2 * LONGEST_REFUSAL_S + 12)
