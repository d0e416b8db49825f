"""How long a consumer leaves a partition alone after a fetch, by rules of flow control.

A master sends two texts of rules: its own default, and one for the group, which wins. Each has an id, which
the consumer sends with every heartbeat, so that the text only travels when it changed.

A text that is wrong in part still gives its sound records (``parse_flow_rules``): an operator's slip must not
lift all limits. What was left out is named in ``FlowRules.problems``. Where TubeMQ's clients differ, this
follows the one whose numbers mean what the keys say. ``dltInM`` counts MiB as in the C++ client; Java
compares it with bytes, and Go multiplies by 208896. Of several rules of type 1, that with the largest count
that was reached applies, as in Java and Go. A blank text clears the rules, as in C++.

``FlowControl`` has the rules of one consumer; ``PartitionFlow`` counts, for one partition, what was fetched
and how often nothing was found:

- A *minute* begins with the first fetch, or with a fetch later than 60 s after the last one began. Which rule
  of type 0 applies is decided then, by the lag that was last known, and stays for the minute.
- A *slice* of 5 s has a twelfth of the minute's bytes.
- When the bytes of the minute or the slice are used up, the rule's wait applies between fetches.

Invariants:

- Both change only by ``update`` and by ``record``; nothing else keeps a time, and both clocks are given.
- A rule never shortens what the broker asks to wait when bytes are used up; what it says after fetches that
  found something, or nothing, replaces it, as in TubeMQ's clients.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.net.deadline import Clock, monotonic
from tubemq_spark.protocol.constants import UNDEFINED
from tubemq_spark.protocol.errcodes import ErrCode
from tubemq_spark.protocol.flow_rules import (
    MIB,
    NO_LIMIT,
    PAUSES,
    READERS,
    UNLIMITED,
    FlowRules,
    LagLimit,
    Pauses,
    rules_of,
    time_of_day,
)

logger = logging.getLogger(__name__)

_MINUTE_S: Final = 60.0
_SLICE_S: Final = 5.0
_SLICES: Final = 12
_OWN_LIMITS_S: Final = 10.0
"""How long it counts whether the group has a limit of its own now."""
_NO_PAUSES: Final = Pauses()


def parse_flow_rules(text: str) -> FlowRules:
    """Read a text of rules; a blank one has none."""
    if not text.strip():
        return FlowRules()
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        return FlowRules(problems=(f"the text is not JSON: {error}",))
    if not isinstance(records, list):
        return FlowRules(problems=("the text is not a JSON array",))
    records_by_type: dict[int, list[Any]] = {}
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
            records_by_type[kind] = rules
    return rules_of(records_by_type, tuple(problems))


class _SkippedError(ValueError):
    """A record is left out; the others count."""


def _record(record: object) -> tuple[int, list[Any]]:
    """Return the type of a record and its rules."""
    if not isinstance(record, Mapping):
        raise _SkippedError("not a JSON object")
    kind = record.get("type")
    if not isinstance(kind, int) or isinstance(kind, bool) or kind not in READERS:
        raise ValueError(f"the type {kind!r} is not 0, 1, 2 or 3")
    rules = record.get("rule")
    if not isinstance(rules, list):
        raise _SkippedError("its rule is not a JSON array")
    if kind == PAUSES and len(rules) > 1:
        raise _SkippedError("type 3 has more than one rule")
    try:
        return kind, [READERS[kind](_RuleFields(item)) for item in rules]
    except ValueError as error:
        raise _SkippedError(str(error)) from error


class _RuleFields:
    """The fields of one rule: numbers must be JSON numbers, and a window may be one minute."""

    lag_unit = MIB

    def __init__(self, values: object) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"the rule {values!r} is not a JSON object")
        self._values = values

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def number(self, name: str, least: int, most: int = UNLIMITED) -> int:
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            bounds = f"at least {least}" if most == UNLIMITED else f"from {least} to {most}"
            raise ValueError(f"{name} is {value!r} and not a number {bounds}")
        return value

    def window(self) -> tuple[int, int]:
        start, end = self._time("start"), self._time("end")
        if start > end:
            raise ValueError(f"start {start:04d} is after end {end:04d}")
        return start, end

    def _time(self, name: str) -> int:
        """Return ``HH:MM`` as hour * 100 + minute."""
        value = self._values.get(name)
        hour, colon, minute = value.strip().partition(":") if isinstance(value, str) else ("", "", "")
        if not (colon and hour.isascii() and hour.isdigit() and minute.isascii() and minute.isdigit()):
            raise ValueError(f"{name} is {value!r} and not a time HH:MM")
        if int(hour) > 24 or int(minute) > 59:
            raise ValueError(f"{name} is {value!r}; hours go to 24 and minutes to 59")
        return int(hour) * 100 + int(minute)


@dataclasses.dataclass(slots=True)
class _RuleSet:
    """One text of rules, and its id, which heartbeats say, so that only news are sent."""

    check_id: int = UNDEFINED
    rules: FlowRules = dataclasses.field(default_factory=FlowRules)

    def update(self, check_id: int, text: str, whose: str) -> bool:
        """Take rules over when their id is another one; return whether it is."""
        if check_id == self.check_id:
            return False
        # Parsed first: a bug in the parser must not leave the id of one text with the rules of another.
        rules = parse_flow_rules(text)
        self.check_id, self.rules = check_id, rules
        for problem in rules.problems:
            logger.warning("the flow control rules of %s (id %d) are wrong: %s", whose, check_id, problem)
        logger.info("flow control rules of %s changed (id %d): %s", whose, check_id, text.strip() or "none")
        return True


class FlowControl:
    """The flow control rules of one consumer."""

    def __init__(self, clock: Clock = monotonic, wall_clock: Clock = time.time) -> None:
        """Create it without rules."""
        self.query_priority = UNDEFINED
        """Which records the group may see, as the master says; -2: as the cluster is configured."""
        self._clock = clock
        self._wall_clock = wall_clock
        self.default = _RuleSet()
        self.group = _RuleSet()
        self._own_limits = False
        self._own_limits_until = clock()

    @property
    def own_limits(self) -> bool:
        """Whether the group has a rule of type 0 at this time of day, which this client applies itself.

        A fetch says so, and the broker then leaves out the limits of the cluster.
        """
        now = self._clock()
        if now >= self._own_limits_until:
            self._own_limits_until = now + _OWN_LIMITS_S
            applies = self.group.rules.limit(UNLIMITED, time_of_day(self._wall_clock()))
            self._own_limits = applies is not None
        return self._own_limits

    def update_default(self, check_id: int, text: str) -> None:
        """Take over the master's default rules, if they are not those we have; blank: there are none."""
        self.default.update(check_id, text, "the cluster")

    def update_group(self, check_id: int, text: str) -> None:
        """Take over the group's rules, like ``update_default``."""
        if self.group.update(check_id, text, "the group"):
            self._own_limits_until = self._clock()

    def limit(self, lag: int) -> LagLimit:
        """Return the rule of type 0 that applies to a lag, in bytes, now."""
        now = time_of_day(self._wall_clock())
        return self.group.rules.limit(lag, now) or self.default.rules.limit(lag, now) or NO_LIMIT

    def pause_after_empty(self, count: int, otherwise_ms: int) -> int:
        """Return the pause, in ms, after so many fetches in a row that found nothing.

        A group that has rules of type 1 is not subject to the default ones.
        """
        rules = self.group.rules if self.group.rules.empty_fetches else self.default.rules
        pause_ms = rules.pause_after_empty(count)
        return otherwise_ms if pause_ms is None else pause_ms

    @property
    def pauses(self) -> Pauses:
        """The rule of type 3, with nothing but None if there is none."""
        return self.group.rules.pauses or self.default.rules.pauses or _NO_PAUSES


@dataclasses.dataclass(frozen=True, slots=True)
class FetchOutcome:
    """What a fetch brought, as far as flow control is concerned."""

    code: int
    """The broker's result code."""
    size: int = 0
    """Bytes of the messages."""
    wait_ms: int = 0
    """How long to wait if no rule says otherwise."""
    lag: int = -1
    """Bytes that the store holds behind the messages; -1: the broker did not say."""
    slow: bool = False
    """Whether the broker asks for slow fetches."""


class PartitionFlow:
    """What one partition's consumer fetched lately, and how long it waits now."""

    def __init__(self, control: FlowControl, clock: Clock = monotonic) -> None:
        self._control = control
        self._clock = clock
        self._last = FetchOutcome(code=0)
        self._recorded_at = clock()
        self._lag = -1
        self._limit = NO_LIMIT
        self._minute_ends = self._slice_ends = clock()
        self._in_minute = self._in_slice = 0
        self.empty_fetches = 0
        """How many fetches in a row found nothing."""

    def record(self, outcome: FetchOutcome) -> None:
        """Count what a fetch brought."""
        now = self._recorded_at = self._clock()
        self._last = outcome
        if outcome.lag >= 0:
            self._lag = outcome.lag
        self._begin_windows(now)
        self._in_minute += outcome.size
        self._in_slice += outcome.size
        if outcome.code == ErrCode.NOT_FOUND and not outcome.size:
            self.empty_fetches += 1
        elif outcome.code in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):
            self.empty_fetches = 0

    @property
    def rests_at_end(self) -> bool:
        """Whether it waits because nothing was found, and no rule says for how long."""
        if self._last.code != ErrCode.NOT_FOUND or not self.empty_fetches:
            return False
        return self._control.pause_after_empty(self.empty_fetches, UNDEFINED) == UNDEFINED

    def rest_ms(self, *, filtered: bool) -> int:
        """Return how long to leave the partition alone from now on, in ms."""
        elapsed_ms = round((self._clock() - self._recorded_at) * 1000)
        return max(0, self._pause_ms(filtered=filtered) - elapsed_ms)

    def _begin_windows(self, now: float) -> None:
        if now >= self._minute_ends:
            self._limit = NO_LIMIT if self._lag < 0 else self._control.limit(self._lag)
            self._in_minute = self._in_slice = 0
            self._minute_ends = now + _MINUTE_S
            self._slice_ends = now + _SLICE_S
        elif now >= self._slice_ends:
            self._in_slice = 0
            self._slice_ends = now + _SLICE_S

    def _pause_ms(self, *, filtered: bool) -> int:
        last = self._last
        if last.code not in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):
            return last.wait_ms
        if self.empty_fetches:
            return self._control.pause_after_empty(self.empty_fetches, last.wait_ms)
        limit = self._limit.bytes_per_minute
        if self._in_minute >= limit or self._in_slice >= limit // _SLICES:
            return max(self._limit.wait_ms, last.wait_ms)
        pause_ms = self._pause_after_success(filtered=filtered) if last.code == ErrCode.SUCCESS else None
        return last.wait_ms if pause_ms is None else pause_ms

    def _pause_after_success(self, *, filtered: bool) -> int | None:
        pauses = self._control.pauses
        if not filtered:
            return pauses.usual_ms
        return pauses.slow_ms if self._last.slow else pauses.filtered_ms
