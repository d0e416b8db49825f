"""The known name that a misspelt one most likely stands for."""

import difflib
from collections.abc import Iterable


def nearest_names(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that are closest to one that is missing, or the first of them if none is close."""
    known = sorted(names)
    return difflib.get_close_matches(name, known, n=most, cutoff=0.5) or known[:most]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``did you mean 'value'?`` with the name that is closest, or "" if none is close.

    Upper and lower case make no difference.
    """
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
    return f"did you mean '{by_lower_case[close[0]]}'?" if close else ""
