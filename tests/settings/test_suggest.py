"""What a misspelt name may stand for."""

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.settings.suggest import did_you_mean

KNOWN = ("value", "messageId", "startingOffsets")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("values", "value"),
        ("VALUE", "value"),
        ("messageid", "messageId"),
        ("startingOffset", "startingOffsets"),
    ],
)
def test_the_closest_name_is_suggested(name, meant):
    assert did_you_mean(name, KNOWN) == f"did you mean '{meant}'?"


@pytest.mark.parametrize("name", ["", "x", "checkpointLocation"])
def test_no_name_is_suggested_where_none_is_close(name):
    assert did_you_mean(name, KNOWN) == ""


@given(name=st.text(), known=st.lists(st.text(min_size=1), unique_by=str.lower))
def test_only_known_names_are_suggested(name, known):
    suggestion = did_you_mean(name, known)
    assert suggestion == "" or suggestion in {f"did you mean '{candidate}'?" for candidate in known}
