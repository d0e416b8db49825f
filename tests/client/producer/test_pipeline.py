"""Questions of several tasks: one answer for all that ask the same, and none for those that have left."""

import asyncio

import pytest

from tubemq_spark.client.producer.pipeline import SharedQuestions


class Oracle:
    """Answers when it is told to, and counts."""

    def __init__(self):
        self.may_answer, self.has_begun = asyncio.Event(), asyncio.Event()
        self.begun = 0
        self.cancelled = 0

    async def answer(self):
        self.begun += 1
        number = self.begun
        self.has_begun.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number


async def test_all_that_ask_the_same_have_the_same_answer():
    oracle, questions = Oracle(), SharedQuestions()
    callers = [asyncio.create_task(questions.ask(key, oracle.answer)) for key in ("a", "a", "b")]
    oracle.may_answer.set()
    assert await asyncio.gather(*callers) == [1, 1, 2]
    assert oracle.begun == 2, "one question for each key"
    assert await questions.ask("a", oracle.answer) == 3, "an answer is not kept"


async def test_a_question_ends_with_the_last_that_waits_for_it():
    oracle, questions = Oracle(), SharedQuestions()
    first, second = (asyncio.create_task(questions.ask("a", oracle.answer)) for _ in range(2))
    await oracle.has_begun.wait()
    first.cancel()
    await asyncio.wait((first,))
    assert not oracle.cancelled, "another task waits"
    second.cancel()
    await asyncio.wait((second,))
    await asyncio.sleep(0)
    assert oracle.cancelled == 1
    third = asyncio.create_task(questions.ask("a", oracle.answer))
    oracle.may_answer.set()
    assert await third == 2, "it was begun again"


async def test_an_error_reaches_all_that_wait():
    async def refuse():
        await asyncio.sleep(0)
        raise ValueError("no")

    questions = SharedQuestions()
    outcomes = await asyncio.gather(*(questions.ask("a", refuse) for _ in range(2)), return_exceptions=True)
    assert [str(error) for error in outcomes] == ["no", "no"]


async def test_closing_ends_the_questions():
    oracle, questions = Oracle(), SharedQuestions()
    caller = asyncio.create_task(questions.ask("a", oracle.answer))
    await oracle.has_begun.wait()
    await questions.close(ValueError("closed"))
    assert oracle.cancelled == 1
    with pytest.raises(ValueError, match="closed"):
        await caller
