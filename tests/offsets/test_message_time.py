"""The text of a message's time, and the times that it may mean."""

import zoneinfo

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.offsets.message_time import Minutes, minutes_of, text_of

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Shanghai"]
OCTOBER = 29_880_000  # 2026-10-24 16:00 UTC


@given(st.integers(OCTOBER - 2_000_000, OCTOBER + 2_000_000), st.sampled_from(ZONES))
def test_a_text_may_always_mean_the_time_that_it_was_made_of(minute, name):
    zone = zoneinfo.ZoneInfo(name)
    meaning = minutes_of(text_of(minute, zone), zone)
    assert minute in meaning
    assert meaning.last - meaning.first in {0, 30, 60}
    assert meaning.certain == (meaning.first == meaning.last)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("202610250159", -1, -1),  # summer time
        ("202610250200", 0, 60),
        ("202610250259", 59, 119),
        ("202610250300", 120, 120),
    ],
)
def test_an_hour_that_comes_twice_means_two_times(text, first, last):
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    midnight = minutes_of("202610250000", zoneinfo.ZoneInfo("UTC")).first
    assert minutes_of(text, zone) == Minutes(midnight + first, midnight + last)


def test_a_time_that_a_zone_skips_means_none_for_certain():
    assert not minutes_of("202603290230", zoneinfo.ZoneInfo("Europe/Berlin")).certain


@pytest.mark.parametrize(
    "text", [None, "", "soon", "202602300000", "20260101000", "2026010100000", "٢٠٢٦٠١٠١٠٠٠٠"]
)
def test_what_is_no_time(text):
    assert minutes_of(text, zoneinfo.ZoneInfo("UTC")) is None
