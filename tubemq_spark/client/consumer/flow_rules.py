"""Flow control rules as masters send them: how often, and how much, a consumer may fetch.

The text is a JSON array, with at most one record per type (FlowCtrlRuleHandler)::

    [{"type": 0, "rule": [{"start": "08:00", "end": "17:59",
                           "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}]},
     {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
     {"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]}]

A text that is wrong in part still gives the rules of its sound records: an operator's slip must not lift all
limits. What was left out is named in ``FlowRules.problems``.

Where TubeMQ's clients differ, this follows the one whose numbers mean what the keys say. ``dltInM`` counts
MiB as in the C++ client; Java compares it with bytes, and Go multiplies by 208896. Of several rules of type
1, that with the largest count that was reached applies, as in Java and Go. A blank text clears the rules, as
in C++.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

_MIB: Final = 1 << 20
_LAG_LIMIT, _EMPTY_FETCHES, _DEPRECATED, _PAUSES = range(4)
_LEAST_LAG_MIB: Final = 21
_LEAST_WAIT_MS: Final = 200
_LONGEST_PAUSE_MS: Final = 300_000
_LATEST_HOUR: Final = 24
_ZONE_S: Final = 8 * 3600

UNLIMITED: Final = (1 << 63) - 1
"""Bytes per minute where no rule applies, and the lag of a consumer that lags behind without end."""


def time_of_day(epoch_s: float) -> int:
    """Return the time of day that rules name, hour * 100 + minute, which is in UTC+8 for every consumer."""
    minutes = int(epoch_s + _ZONE_S) // 60
    return minutes // 60 % 24 * 100 + minutes % 60


@dataclasses.dataclass(frozen=True, slots=True)
class LagLimit:
    """A rule of type 0: how much a consumer that lags behind may fetch; times as ``time_of_day``."""

    start: int
    end: int
    """Included, like ``start``."""
    lag_above: int
    """It applies to consumers with a larger lag, in bytes."""
    bytes_per_minute: int
    wait_ms: int
    """How long to wait between fetches when that much was fetched."""

    def applies_to(self, lag: int, now: int) -> bool:
        """Whether the rule applies to this lag, in bytes, at this time of day."""
        return lag > self.lag_above and self.start <= now <= self.end


NO_LIMIT: Final = LagLimit(0, 2400, -1, UNLIMITED, 0)
"""What applies where no rule does."""


@dataclasses.dataclass(frozen=True, slots=True)
class EmptyFetches:
    """A rule of type 1: how long to wait after so many fetches in a row that found nothing."""

    count: int
    wait_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pauses:
    """The rule of type 3: how long to wait after a fetch that found something; None: as the broker says."""

    usual_ms: int | None = None
    """For topics without a filter."""
    filtered_ms: int | None = None
    """For topics with a filter."""
    slow_ms: int | None = None
    """For topics with a filter when the broker asks for slow fetches, since little is left to read."""


@dataclasses.dataclass(frozen=True)
class FlowRules:
    """The rules of one text."""

    lag_limits: tuple[LagLimit, ...] = ()
    """In the order in which they begin; the first that applies counts."""
    empty_fetches: tuple[EmptyFetches, ...] = ()
    """The largest count first; the first that was reached counts."""
    pauses: Pauses | None = None
    problems: tuple[str, ...] = ()
    """What of the text was left out, and why."""

    def limit(self, lag: int, now: int) -> LagLimit | None:
        """Return the rule that applies to a lag, in bytes, at a time of day; None: no rule does."""
        return next((limit for limit in self.lag_limits if limit.applies_to(lag, now)), None)

    def pause_after_empty(self, count: int) -> int | None:
        """Return the pause after so many empty fetches in a row, in ms; None: no rule says one."""
        return next((rule.wait_ms for rule in self.empty_fetches if count >= rule.count), None)


def parse_flow_rules(text: str) -> FlowRules:
    """Read a text of rules; a blank one has none."""
    if not text.strip():
        return FlowRules()
    try:
        records = json.loads(text)
    except ValueError as error:
        return FlowRules(problems=(f"the text is not JSON: {error}",))
    if not isinstance(records, list):
        return FlowRules(problems=("the text is not a JSON array",))
    found: dict[int, list[Any]] = {}
    problems: list[str] = []
    for number, record in enumerate(records, 1):
        try:
            kind, rules = _record(record)
        except _SkippedError as error:
            problems.append(f"record {number}: {error}")
        except ValueError as error:
            problems.append(f"record {number} and what follows it: {error}")
            break
        else:
            found[kind] = rules
    return _rules(found, tuple(problems))


class _SkippedError(ValueError):
    """A record is left out; the others count."""


def _record(record: object) -> tuple[int, list[Any]]:
    """Return the type of a record and its rules."""
    if not isinstance(record, Mapping):
        raise _SkippedError("not a JSON object")
    kind = record.get("type")
    if not isinstance(kind, int) or isinstance(kind, bool) or not 0 <= kind < len(_READERS):
        raise ValueError(f"the type {kind!r} is not 0, 1, 2 or 3")
    rules = record.get("rule")
    if not isinstance(rules, list):
        raise _SkippedError("its rule is not a JSON array")
    if kind == _PAUSES and len(rules) > 1:
        raise _SkippedError("type 3 has more than one rule")
    try:
        return kind, [_READERS[kind](_Fields(item)) for item in rules]
    except ValueError as error:
        raise _SkippedError(str(error)) from error


def _rules(found: Mapping[int, list[Any]], problems: tuple[str, ...]) -> FlowRules:
    pauses: list[Pauses] = found.get(_PAUSES, [])
    return FlowRules(
        tuple(sorted(found.get(_LAG_LIMIT, ()), key=lambda limit: limit.start)),
        tuple(sorted(found.get(_EMPTY_FETCHES, ()), key=lambda rule: -rule.count)),
        pauses[0] if pauses else None,
        problems,
    )


class _Fields:
    """The fields of one rule, read with their bounds."""

    def __init__(self, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"the rule {values!r} is not a JSON object")
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def number(self, name: str, least: int, most: int = UNLIMITED) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bounds = f"at least {least}" if most == UNLIMITED else f"from {least} to {most}"
            raise ValueError(f"{name} is {value!r} and not a number {bounds}")
        return value

    def time(self, name: str) -> int:
        """Return ``HH:MM`` as hour * 100 + minute."""
        value = self._values.get(name)
        hour, colon, minute = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
        if not (colon and hour.isascii() and hour.isdigit() and minute.isascii() and minute.isdigit()):
            raise ValueError(f"{name} is {value!r} and not a time HH:MM")
        if int(hour) > _LATEST_HOUR or int(minute) > 59:
            raise ValueError(f"{name} is {value!r}; hours go to {_LATEST_HOUR} and minutes to 59")
        return int(hour) * 100 + int(minute)


def _lag_limit(fields: _Fields) -> LagLimit:
    start, end = fields.time("start"), fields.time("end")
    if start > end:
        raise ValueError(f"start {start:04d} is after end {end:04d}")
    return LagLimit(
        start,
        end,
        fields.number("dltInM", _LEAST_LAG_MIB) * _MIB,
        fields.number("limitInM", 0) * _MIB,
        fields.number("freqInMs", _LEAST_WAIT_MS),
    )


def _empty_fetches(fields: _Fields) -> EmptyFetches:
    return EmptyFetches(fields.number("zeroCnt", 1), fields.number("freqInMs", 0))


def _pauses(fields: _Fields) -> Pauses:
    usual = filtered = slow = None
    if "filterFreqInMs" in fields or "minDataFilterFreqInMs" in fields:
        filtered = fields.number("filterFreqInMs", 0, _LONGEST_PAUSE_MS)
        slow = fields.number("minDataFilterFreqInMs", filtered, _LONGEST_PAUSE_MS)
    if "normFreqInMs" in fields:
        usual = fields.number("normFreqInMs", 0, _LONGEST_PAUSE_MS)
    return Pauses(usual, filtered, slow)


_Rule = TypeVar("_Rule")
_Reader = Callable[[_Fields], _Rule]
_READERS: Final[tuple[_Reader[Any], ...]] = (_lag_limit, _empty_fetches, lambda _: None, _pauses)
"""By type. Type 2 was about SSD stores, which TubeMQ no longer has: its rules are accepted and ignored."""
