"""Flow control: how much a consumer that lags behind may read per minute, and how long it then waits.

The rules are TubeMQ's JSON (FlowCtrlRuleHandler), an array of records::

    [{"type": 0, "rule": [{"start": "08:00", "end": "17:59",
                           "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}]},
     {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
     {"type": 3, "rule": [{"normFreqInMs": 0, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}]}]

A broker applies the rules of type 0 only. The others tell clients how often to fetch, and are only validated
here.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

_DATA_LIMIT, _FREQUENCY, _DEPRECATED, _LOW_FETCH = 0, 1, 2, 3
_NAMES: Final = {_DATA_LIMIT: "data_limit", _FREQUENCY: "freq_limit", _LOW_FETCH: "low_fetch_limit"}
_MIN_LAG: Final = 20
_MIN_WAIT_MS: Final = 200
_MAX_LOW_FETCH_WAIT_MS: Final = 300_000
_MIB: Final = 1 << 20

_ZONE_MS: Final = 8 * 3_600_000
"""The time of day in rules is in GMT+8."""
_MINUTE_MS: Final = 60_000
_WINDOW_MS: Final = 5_000
_WINDOWS_PER_MINUTE: Final = 12

UNLIMITED_BYTES: Final = (1 << 63) - 1
"""What a consumer may read per minute if no rule applies to it."""
NO_READ: Final = -2
"""The position in the data log of a consumer that has not read yet."""


class RuleError(ValueError):
    """A rule text that TubeMQ refuses; the message is TubeMQ's. It never leaves this package."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataLimit:
    """One rule of type 0; ``start`` and ``end`` are times of day, hour * 100 + minute, both included."""

    start: int
    end: int
    lag_above: int
    """It applies to consumers that lag by more than this. The field is called dltInM, but brokers compare it
    with bytes (FlowCtrlItem.getDataLimit), and so do we."""
    bytes_per_minute: int
    wait_ms: int

    def applies_to(self, lag: int, time_of_day: int) -> bool:
        """Whether the rule applies at this time to a consumer with this lag."""
        return lag > self.lag_above and self.start <= time_of_day <= self.end


NO_LIMIT: Final = DataLimit(0, 2400, 0, UNLIMITED_BYTES, 0)
"""Applies where no rule does."""


@dataclasses.dataclass(frozen=True, slots=True)
class FlowRules:
    """The rules of type 0 in a text, sorted by the time they begin."""

    limits: tuple[DataLimit, ...] = ()

    def limit(self, lag: int, now_ms: int) -> DataLimit:
        """Return the first rule that applies to a consumer now, or ``NO_LIMIT``."""
        time_of_day = _time_of_day(now_ms)
        return next((limit for limit in self.limits if limit.applies_to(lag, time_of_day)), NO_LIMIT)


def parse_rules(text: str) -> FlowRules:
    """Parse a rule text; a blank one has no rules.

    Raises:
        RuleError: the text is not valid; the error's message is TubeMQ's.
    """
    if not text.strip():
        return FlowRules()
    try:
        records = _array(json.loads(text))
    except ValueError as error:
        raise RuleError("Parse flowCtrlInfo value failure") from error
    limits: Sequence[DataLimit] = ()
    try:
        for number, item in enumerate(records, 1):
            record = _object(item)
            kind = _kind(record, number)
            if kind == _DATA_LIMIT:
                # If a type has several records, the last one applies.
                limits = sorted(_rules(record, kind, number, _data_limit), key=lambda limit: limit.start)
            elif kind != _DEPRECATED:
                _rules(record, kind, number, _low_fetch if kind == _LOW_FETCH else _frequency)
    except ValueError as error:
        raise RuleError(f"Parse flowCtrlInfo value failure, {error}") from error
    return FlowRules(tuple(limits))


class Allowance:
    """What one consumer of one partition may still read (ConsumerNodeInfo). Its owner does the locking.

    Once per minute it is decided which rule applies. The bytes are limited per minute, and to a twelfth of
    that per 5 s.
    """

    def __init__(self, first_read_bytes: int = 320 << 10) -> None:
        """Start for a consumer that has not read yet; its first read is not limited, and is of this size."""
        self.limit = NO_LIMIT
        self.read_bytes = first_read_bytes
        """How many bytes its next read may return."""
        self.window_limit = 0
        """How many bytes it may read per 5 s."""
        self.read_in_window = 0
        self.read_in_minute = 0
        self.data_end = NO_READ
        """Where its last read ended in the data log."""
        self._window_ends_ms = 0
        self._minute_ends_ms = 0

    def wait_ms(
        self, rules: FlowRules, data_latest: int, transfer_bytes: int, now_ms: int, *, escape: bool
    ) -> int | None:
        """Return how long the consumer must wait before it may read, or None if it may read now.

        Args:
            rules: the rules in force.
            data_latest: where the data of the store ends.
            transfer_bytes: the maximum size of one read.
            now_ms: the time of day, ms since the epoch.
            escape: the consumer limits itself; only a limit of 0 prevents it from reading.
        """
        if self.data_end < 0:
            return None
        self._renew(rules, data_latest - self.data_end, transfer_bytes, now_ms)
        if escape or (
            self.window_limit > self.read_in_window and self.limit.bytes_per_minute > self.read_in_minute
        ):
            return None if self.read_bytes > 0 else 0
        return self.limit.wait_ms

    def count(self, data_end: int, size: int) -> None:
        """Count a read that ended at a position in the data log; ``size`` includes the headers."""
        self.data_end = data_end
        self.read_in_window += size
        self.read_in_minute += size

    def _renew(self, rules: FlowRules, lag: int, transfer_bytes: int, now_ms: int) -> None:
        if now_ms > self._minute_ends_ms:
            self.limit = rules.limit(lag, now_ms)
            self.read_in_window = self.read_in_minute = 0
            self._window_ends_ms = now_ms + _WINDOW_MS
            self._minute_ends_ms = now_ms + _MINUTE_MS
            self.window_limit = self.limit.bytes_per_minute // _WINDOWS_PER_MINUTE
            self.read_bytes = min(self.window_limit, transfer_bytes)
        elif now_ms > self._window_ends_ms:
            self.read_in_window = 0
            self._window_ends_ms = now_ms + _WINDOW_MS


def _time_of_day(now_ms: int) -> int:
    minutes = (now_ms + _ZONE_MS) // _MINUTE_MS
    return minutes // 60 % 24 * 100 + minutes % 60


def _kind(record: Mapping[str, Any], number: int) -> int:
    if "type" not in record:
        raise RuleError(f"FIELD type is required in record({number}) of flowCtrlInfo value!")
    kind = _integer(record["type"])
    if not _DATA_LIMIT <= kind <= _LOW_FETCH:
        raise RuleError(f"the value of FIELD type must in [0,1,3] in record({number}) of flowCtrlInfo value!")
    return kind


_Rule = TypeVar("_Rule")


def _rules(
    record: Mapping[str, Any], kind: int, number: int, parse: "Callable[[_Fields], _Rule]"
) -> list[_Rule]:
    where = f"{_NAMES[kind]} record({number}) of flowCtrlInfo value!"
    if "rule" not in record:
        raise RuleError(f"FIELD rule is required in {where}")
    items = _array(record["rule"])
    if kind == _LOW_FETCH and len(items) > 1:
        raise RuleError(f"only allow set one rule in {where}")
    if not items:
        raise RuleError(f"not found valid rule define in {where}")
    return [
        parse(_Fields(_object(item), f"{_NAMES[kind]} item({index}).record({number}) of flowCtrlInfo value!"))
        for index, item in enumerate(items, 1)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one rule, and how error messages name the rule."""

    values: Mapping[str, Any]
    where: str

    def required(self, name: str) -> Any:  # noqa: ANN401  any JSON value
        if name not in self.values:
            raise RuleError(f"FIELD {name} is required in {self.where}")
        return self.values[name]

    def number(self, name: str, least: int, rule: str) -> int:
        value = _integer(self.required(name))
        if value < least:
            raise RuleError(f"the value of FIELD {name} must be {rule} in {self.where}")
        return value

    def low_fetch_wait(self, name: str) -> int:
        value = _integer(self.required(name))
        if not 0 <= value <= _MAX_LOW_FETCH_WAIT_MS:
            raise RuleError(f"the value of FIELD {name} must in [0, 300000] in {self.where}")
        return value

    def time(self, name: str) -> int:
        """Return a time of day such as ``08:30`` as hour * 100 + minute; 24:00 to 24:59 are valid."""
        text = _text(self.required(name))
        if not text.strip():
            raise RuleError(f"the value of FIELD {name} is null or blank in {self.where}")
        parts = text.split(":")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            form = "must be 'aa:bb' and 'aa','bb' must be int value"
            raise RuleError(f"illegal format, the value of FIELD {name} {form} in {self.where}")
        numbers = []
        for part, letters in zip(parts, ("aa", "bb"), strict=True):
            try:
                numbers.append(int(part))
            except ValueError:
                form = f"must be 'aa:bb' and '{letters}' must be int value"
                raise RuleError(f"illegal format, the value of FIELD {name} {form} in {self.where}") from None
        for value, most, what in zip(
            numbers, (24, 59), ("-hour value must in [0,23]", "-minute value must in [0,59]"), strict=True
        ):
            if not 0 <= value <= most:
                raise RuleError(f"illegal value, the value of FIELD {name}{what} in {self.where}")
        return numbers[0] * 100 + numbers[1]


def _data_limit(fields: _Fields) -> DataLimit:
    start, end = fields.time("start"), fields.time("end")
    if start >= end:
        raise RuleError(f"the value of FIELD start must lower than the value FIELD end in {fields.where}")
    lag = fields.number("dltInM", _MIN_LAG + 1, f"greater than {_MIN_LAG}")
    limit = fields.number("limitInM", 0, "greater than or equal to 0")
    wait_ms = fields.number("freqInMs", _MIN_WAIT_MS, f"greater than or equal to {_MIN_WAIT_MS}")
    return DataLimit(start, end, lag, limit * _MIB, wait_ms)


def _frequency(fields: _Fields) -> None:
    fields.number("zeroCnt", 1, "greater than or equal to 1")
    fields.number("freqInMs", 0, "greater than or equal to 0")


def _low_fetch(fields: _Fields) -> None:
    if "filterFreqInMs" in fields.values or "minDataFilterFreqInMs" in fields.values:
        usual = fields.low_fetch_wait("filterFreqInMs")
        if fields.low_fetch_wait("minDataFilterFreqInMs") < usual:
            rule = "must be greater than or equal to the value of FIELD filterFreqInMs"
            raise RuleError(f"the value of FIELD minDataFilterFreqInMs {rule} in {fields.where}")
    if "normFreqInMs" in fields.values:
        fields.low_fetch_wait("normFreqInMs")


def _array(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise RuleError(f"Not a JSON Array: {json.dumps(value)}")
    return value


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RuleError(f"Not a JSON Object: {json.dumps(value)}")
    return value


def _integer(value: object) -> int:
    """Return a whole number; a text that contains one is accepted too, as by Java's library."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return int(value)
        except (ValueError, OverflowError):
            pass
    raise RuleError(f'For input string: "{value}"')


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
