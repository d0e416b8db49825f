"""Threads ask questions that no trigger waits for; a peer that does not answer is waited for once."""

import threading
import types

import pytest

from tests.source.scripted_questions import ScriptedQuestion, StillAskingError, scripted
from tubemq_spark.errors import TubeMQConnectionError
from tubemq_spark.source import background
from tubemq_spark.source.background import PATIENCE_S, BackgroundQuestion, BackgroundQuestions

AWAY = TubeMQConnectionError("TUBEMQ_NO_MASTER", during="a test", tried="none")


def test_a_question_is_asked_by_a_thread_that_ends_with_it(monkeypatch):
    """It does not keep a process alive: Spark ends the driver's process of a stream without a word."""
    answers, moments = threading.Event(), iter((5.0, 7.5))
    monkeypatch.setattr(background, "time", types.SimpleNamespace(monotonic=lambda: next(moments)))
    begun = BackgroundQuestion(lambda: answers.wait(20) and threading.current_thread(), "tubemq-test")
    assert not begun.ended_within(0)
    answers.set()
    assert begun.ended_within(20)
    assert (begun.answer().name, begun.answer().daemon) == ("tubemq-test", True)
    assert begun.took_s == 2.5


def test_an_error_is_raised_where_the_answer_is_taken():
    def ask():
        raise AWAY

    begun = BackgroundQuestion(ask, "tubemq-test")
    assert begun.ended_within(20)
    with pytest.raises(TubeMQConnectionError) as raised:
        begun.answer()
    assert raised.value is AWAY


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(background, "BackgroundQuestion", scripted(now))
    return now


class Peer:
    """Answers with a number, or does not."""

    def __init__(self):
        self.hangs = False
        self.answered = 0

    def ask(self):
        if self.hangs:
            raise StillAskingError
        self.answered += 1
        return self.answered


def test_a_peer_that_stops_answering_is_waited_for_once(clock):
    peer, questions = Peer(), BackgroundQuestions("test")
    questions.begin(peer.ask)
    assert questions.ended().answer() == 1
    assert not questions.under_way

    peer.hangs = True
    questions.begin(peer.ask)
    for _ in range(5):
        assert questions.ended() is None
        assert questions.under_way
    assert clock[0] == 1000 + PATIENCE_S

    clock[0] += 5
    peer.hangs = False
    assert questions.ended().answer() == 2, "what was late is there for the next one who looks"
    peer.hangs = True
    questions.begin(peer.ask)
    assert questions.ended() is None
    assert clock[0] == 1005 + PATIENCE_S, "it was late: the next answer is not waited for"

    peer.hangs = False
    assert questions.ended().answer() == 3
    questions.begin(peer.ask)
    assert questions.ended().answer() == 4
    peer.hangs = True
    questions.begin(peer.ask)
    assert questions.ended() is None
    assert clock[0] == 1005 + 2 * PATIENCE_S, "it had answered in time again"


def test_what_is_forgotten_is_not_taken(clock):
    peer, questions = Peer(), BackgroundQuestions("test")
    questions.begin(peer.ask)
    questions.forget()
    assert questions.ended() is None
    assert not questions.under_way


def test_a_peer_whose_question_was_forgotten_is_not_waited_for_again(clock):
    peer, questions = Peer(), BackgroundQuestions("test")
    peer.hangs = True
    for _ in range(3):
        questions.begin(peer.ask)
        assert questions.ended() is None
        questions.forget()
    assert clock[0] == 1000 + PATIENCE_S


def test_a_scripted_question_does_what_a_thread_does(clock):
    """It raises where the answer is taken, and ends once."""

    def ask():
        raise AWAY

    begun = ScriptedQuestion(clock, ask, "test")
    assert begun.ended_within(0)
    with pytest.raises(TubeMQConnectionError):
        begun.answer()
