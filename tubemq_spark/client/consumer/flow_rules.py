"""Flow control rules as a consumer reads them: a text that is wrong in part still gives its sound records.

An operator's slip must not lift all limits. What was left out is named in ``FlowRules.problems``.

Where TubeMQ's clients differ, this follows the one whose numbers mean what the keys say. ``dltInM`` counts
MiB as in the C++ client; Java compares it with bytes, and Go multiplies by 208896. Of several rules of type
1, that with the largest count that was reached applies, as in Java and Go. A blank text clears the rules, as
in C++.
"""

import json
from collections.abc import Mapping
from typing import Any

from tubemq_spark.protocol.flow_rules import MIB, PAUSES, READERS, UNLIMITED, FlowRules, rules_of


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
        return kind, [READERS[kind](_Fields(item)) for item in rules]
    except ValueError as error:
        raise _SkippedError(str(error)) from error


class _Fields:
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
