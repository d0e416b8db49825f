"""Flow control rules: how often, and how much, consumers may fetch.

Masters keep them as a JSON array, with at most one record per type (FlowCtrlRuleHandler)::

    [{"type": 0, "rule": [{"start": "08:00", "end": "17:59",
                           "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}]},
     {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
     {"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]}]

Type 0 limits consumers that lag behind; brokers apply it, and clients that say so in a fetch
(``escFlowCtrl``). Types 1 and 3 tell clients how long to pause. Type 2 was about SSD stores, which TubeMQ no
longer has.

Brokers refuse a text as a whole, clients leave out what is wrong in it: each reads single values in its own
way (``RuleFields``), and both follow the readers here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

LAG_LIMIT, EMPTY_FETCHES, DEPRECATED, PAUSES = range(4)
"""The types of records."""
MIB: Final = 1 << 20
UNLIMITED: Final = (1 << 63) - 1
"""Bytes per minute where no rule applies, and the lag of a consumer that lags behind without end."""
_LEAST_LAG: Final = 21
"""TubeMQ demands more than 20 (FlowCtrlRuleHandler, and its C++ client)."""
_LEAST_WAIT_MS: Final = 200  # freqInMs of type 0
_LONGEST_PAUSE_MS: Final = 300_000  # of all three fields of type 3
_ZONE_S: Final = 8 * 3600  # FlowCtrlRuleHandler: GMT+8


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


class RuleFields(Protocol):
    """The fields of one rule; its methods raise ``ValueError`` for a value that is not sound."""

    lag_unit: int
    """How many bytes 1 means in ``dltInM``."""

    def __contains__(self, name: object) -> bool:
        """Whether the rule has the field."""

    def number(self, name: str, least: int, most: int = UNLIMITED) -> int:
        """Return a whole number within bounds."""

    def window(self) -> tuple[int, int]:
        """Return ``start`` and ``end`` as ``time_of_day``; hours go to 24, minutes to 59."""


def rules_of(records: Mapping[int, Sequence[Any]], problems: tuple[str, ...] = ()) -> FlowRules:
    """Return the rules that were read, by the type of their record."""
    return FlowRules(
        tuple(sorted(records.get(LAG_LIMIT, ()), key=lambda limit: limit.start)),
        tuple(sorted(records.get(EMPTY_FETCHES, ()), key=lambda rule: -rule.count)),
        next(iter(records.get(PAUSES, ())), None),  # type 3 has one rule only
        problems,
    )


def _lag_limit(fields: RuleFields) -> LagLimit:
    start, end = fields.window()
    return LagLimit(
        start,
        end,
        fields.number("dltInM", _LEAST_LAG) * fields.lag_unit,  # MiB; Java takes bytes
        fields.number("limitInM", 0) * MIB,  # per minute, and a twelfth of it per 5 s
        fields.number("freqInMs", _LEAST_WAIT_MS),  # once limitInM is used up
    )


def _empty_fetches(fields: RuleFields) -> EmptyFetches:
    return EmptyFetches(fields.number("zeroCnt", 1), fields.number("freqInMs", 0))


def _pauses(fields: RuleFields) -> Pauses:
    usual = filtered = slow = None
    # Each of the two needs the other (FlowCtrlRuleHandler.parseLowFetchLimit).
    if "filterFreqInMs" in fields or "minDataFilterFreqInMs" in fields:
        filtered = fields.number("filterFreqInMs", 0, _LONGEST_PAUSE_MS)
        slow = fields.number("minDataFilterFreqInMs", filtered, _LONGEST_PAUSE_MS)  # after requireSlow
    if "normFreqInMs" in fields:
        usual = fields.number("normFreqInMs", 0, _LONGEST_PAUSE_MS)
    return Pauses(usual, filtered, slow)


READERS: Final[Mapping[int, Callable[[RuleFields], Any]]] = {
    LAG_LIMIT: _lag_limit,
    EMPTY_FETCHES: _empty_fetches,
    DEPRECATED: lambda _: None,  # type 2: skipped, as in Java
    PAUSES: _pauses,
}
"""What reads one rule, by the type of its record."""
