"""Of a test with many cases, marked ``sampled``, every change runs some; the night runs all."""

from collections import defaultdict
from typing import Final

import pytest

EVERY: Final = 3
"""Of so many cases one is run; of each test the first one always is."""


def leave_most_cases_to_the_night(items: list[pytest.Item]) -> None:
    """Mark what is not run with every change, the same cases in every run and in every process."""
    cases: defaultdict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in sorted(items, key=lambda item: item.nodeid):
        if item.get_closest_marker("sampled"):
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    for of_one_test in cases.values():
        for number, item in enumerate(of_one_test):
            if number % EVERY:
                item.add_marker(pytest.mark.nightly)
