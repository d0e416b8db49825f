"""What confluent-kafka, kafka-python, aiokafka and Spark call something, and what is there for it here.

One table for those who guess, in two parts: ``attributes`` and ``arguments``. ``guesses`` answers with it,
and ``make docs`` writes it as a page. An answer is one sentence in Markdown that says what to use, or why
there is nothing.
"""

from typing import Final, NamedTuple


class OtherName(NamedTuple):
    """Names elsewhere of one thing."""

    names: tuple[str, ...]
    places: tuple[str, ...]
    """Classes of ours where they are attributes, or methods where they are arguments; a class as a method is
    its constructor. What is said of a class is true of its form for asyncio."""
    answer: str
    ours: tuple[str, ...] = ()
    """Attributes, arguments and settings of ours that the answer is about; none if there is no such thing."""


def row(places: str, names: str, answer: str, *ours: str) -> OtherName:
    """Return a row of the table, whose names and places are given with blanks between."""
    return OtherName(tuple(names.split()), tuple(places.split()), answer, ours)


NO_TRANSACTIONS: Final = "TubeMQ has no transactions: each message is stored by itself."
