"""Names in requests, as Java sees them."""

import pytest

from tubemq_spark.embedded.dispatch import RefusedError, required, trimmed
from tubemq_spark.errors import RemoteProtocolError

EMOJI = "\U0001f600"
"""One character, and two for Java."""


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("name", "name"),
        (" \t name\n\x00", "name"),
        ("", ""),
        (" \t\r\n", ""),
        ("\u3000\u2028", ""),
        # Not white space in Java, and not removed.
        ("\u00a0", "\u00a0"),
        ("\u00a0name\u3000", "\u00a0name\u3000"),
    ],
)
def test_blanks_are_those_of_java(given, seen):
    assert trimmed("clientId", given) == seen


@pytest.mark.parametrize("blank", ["", " ", "\u3000", "\x01"])
def test_a_blank_name_is_missing(blank):
    with pytest.raises(RefusedError, match="Request miss necessary clientId data!"):
        required("clientId", blank, 10)


@pytest.mark.parametrize("name", ["n" * 10, EMOJI * 5, f"  {'n' * 10}  "])
def test_a_name_may_be_as_long_as_the_limit(name):
    assert required("clientId", name, 10) == name.strip()


@pytest.mark.parametrize("name", ["n" * 11, EMOJI * 5 + "n", EMOJI * 6])
def test_a_longer_name_is_refused(name):
    with pytest.raises(RefusedError, match="clientId's length over max value, allowed max length is 10"):
        required("clientId", name, 10)


def test_bytes_are_not_a_name():
    with pytest.raises(RemoteProtocolError, match="the text clientId is not UTF-8"):
        trimmed("clientId", b"\xff")
