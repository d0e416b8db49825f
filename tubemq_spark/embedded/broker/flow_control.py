"""Flow control: how much a consumer that lags behind may read per minute, and how long it then waits.

A broker applies the rules of type 0 only. The others tell clients how often to fetch, and are only validated
here, with TubeMQ's messages.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tubemq_spark.protocol.flow_rules import (
    DEPRECATED,
    EMPTY_FETCHES,
    LAG_LIMIT,
    NO_LIMIT,
    PAUSES,
    READERS,
    UNLIMITED,
    FlowRules,
    rules_of,
    time_of_day,
)

_NAMES: Final = {LAG_LIMIT: "data_limit", EMPTY_FETCHES: "freq_limit", PAUSES: "low_fetch_limit"}
_MINUTE_MS: Final = 60_000
_WINDOW_MS: Final = 5_000
_WINDOWS_PER_MINUTE: Final = 12

NO_READ: Final = -2
"""The position in the data log of a consumer that has not read yet."""


class RuleError(ValueError):
    """A rule text that TubeMQ refuses; the message is TubeMQ's. It never leaves this package."""


def parse_rules(text: str) -> FlowRules:
    """Parse a rule text; a blank one has no rules."""
    if not text.strip():
        return FlowRules()
    try:
        records = _array(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise RuleError("Parse flowCtrlInfo value failure") from error
    rules: dict[int, Sequence[Any]] = {}
    try:
        for number, item in enumerate(records, 1):
            record = _object(item)
            kind = _kind(record, number)
            if kind != DEPRECATED:
                rules[kind] = _rules(record, kind, number)  # of several records of a type the last counts
    except ValueError as error:
        raise RuleError(f"Parse flowCtrlInfo value failure, {error}") from error
    return rules_of(rules)


class Allowance:
    """What one consumer of one partition may still read (ConsumerNodeInfo). Its owner does the locking.

    Once per minute it is decided which rule applies. The bytes are limited per minute, and to a twelfth of
    that per 5 s. The first read is not limited, and returns up to ``first_read_bytes``.
    """

    def __init__(self, first_read_bytes: int = 320 << 10) -> None:
        self.limit = NO_LIMIT
        self.read_bytes = first_read_bytes
        """How many bytes its next read may return."""
        self.window_limit = 0
        """How many bytes it may read per 5 s."""
        self.read_in_window = 0
        self.read_in_minute = 0
        self.data_end = NO_READ
        """Where its last read ended in the data log."""
        self._window_ends_ms = -1
        self._minute_ends_ms = -1

    def wait_ms(
        self,
        rules: FlowRules,
        data_latest: int,
        transfer_bytes: int,
        now_ms: int,
        *,
        clock_ms: int,
        escape: bool,
    ) -> int | None:
        """Return how long the consumer must wait before it may read, or None if it may read now.

        Minutes are counted by ``now_ms``, the time since some moment. ``clock_ms``, the time of day in ms
        since the epoch, decides which rule applies; it may be set back. A consumer that limits itself
        (``escape``) is stopped only by a limit of 0.
        """
        if self.data_end < 0:
            return None
        self._renew(rules, data_latest - self.data_end, transfer_bytes, now_ms, clock_ms)
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

    def _renew(self, rules: FlowRules, lag: int, transfer_bytes: int, now_ms: int, clock_ms: int) -> None:
        if now_ms > self._minute_ends_ms:
            self.limit = rules.limit(lag, time_of_day(clock_ms / 1000)) or NO_LIMIT
            self.read_in_window = self.read_in_minute = 0
            self._window_ends_ms = now_ms + _WINDOW_MS
            self._minute_ends_ms = now_ms + _MINUTE_MS
            self.window_limit = self.limit.bytes_per_minute // _WINDOWS_PER_MINUTE
            self.read_bytes = min(self.window_limit, transfer_bytes)
        elif now_ms > self._window_ends_ms:
            self.read_in_window = 0
            self._window_ends_ms = now_ms + _WINDOW_MS


def _kind(record: Mapping[str, Any], number: int) -> int:
    if "type" not in record:
        raise RuleError(f"FIELD type is required in record({number}) of flowCtrlInfo value!")
    kind = _integer(record["type"])
    if kind not in READERS:
        raise RuleError(f"the value of FIELD type must in [0,1,3] in record({number}) of flowCtrlInfo value!")
    return kind


def _rules(record: Mapping[str, Any], kind: int, number: int) -> list[Any]:
    where = f"{_NAMES[kind]} record({number}) of flowCtrlInfo value!"
    if "rule" not in record:
        raise RuleError(f"FIELD rule is required in {where}")
    items = _array(record["rule"])
    if kind == PAUSES and len(items) > 1:
        raise RuleError(f"only allow set one rule in {where}")
    if not items:
        raise RuleError(f"not found valid rule define in {where}")
    return [
        READERS[kind](_Fields(_object(item), f"{_NAMES[kind]} item({index}).record({number})"))
        for index, item in enumerate(items, 1)
    ]


class _Fields:
    """The fields of one rule; numbers may be texts, and a window is longer than a minute."""

    lag_unit = 1  # the field is called dltInM, but brokers compare it with bytes (FlowCtrlItem.getDataLimit)

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """Take the fields, and how error messages name the rule."""
        self._values = values
        self._where = f"{where} of flowCtrlInfo value!"

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def number(self, name: str, least: int, most: int = UNLIMITED) -> int:
        value = _integer(self._required(name))
        bound = f"be greater than or equal to {least}"
        if most != UNLIMITED:
            bound = f"in [0, {most}]"
            if 0 <= value < least:  # the only field with a least value that another one says
                bound = "be greater than or equal to the value of FIELD filterFreqInMs"
        elif name == "dltInM":
            bound = f"be greater than {least - 1}"
        if not least <= value <= most:
            raise RuleError(f"the value of FIELD {name} must {bound} in {self._where}")
        return value

    def window(self) -> tuple[int, int]:
        start, end = self._time("start"), self._time("end")
        if start >= end:
            raise RuleError(f"the value of FIELD start must lower than the value FIELD end in {self._where}")
        return start, end

    def _required(self, name: str) -> Any:  # noqa: ANN401  any JSON value
        if name not in self._values:
            raise RuleError(f"FIELD {name} is required in {self._where}")
        return self._values[name]

    def _time(self, name: str) -> int:
        """Return a time of day such as ``08:30`` as hour * 100 + minute; 24:00 to 24:59 are valid."""
        text = _text(self._required(name))
        if not text.strip():
            raise RuleError(f"the value of FIELD {name} is null or blank in {self._where}")
        parts = text.split(":")
        if len(parts) != 2 or not all(part.strip() for part in parts):
            form = "must be 'aa:bb' and 'aa','bb' must be int value"
            raise RuleError(f"illegal format, the value of FIELD {name} {form} in {self._where}")
        numbers = []
        for part, letters in zip(parts, ("aa", "bb"), strict=True):
            try:
                numbers.append(int(part))
            except ValueError:
                form = f"must be 'aa:bb' and '{letters}' must be int value"
                what = f"illegal format, the value of FIELD {name}"
                raise RuleError(f"{what} {form} in {self._where}") from None
        for value, most, what in zip(
            numbers, (24, 59), ("-hour value must in [0,23]", "-minute value must in [0,59]"), strict=True
        ):
            if not 0 <= value <= most:
                raise RuleError(f"illegal value, the value of FIELD {name}{what} in {self._where}")
        return numbers[0] * 100 + numbers[1]


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
