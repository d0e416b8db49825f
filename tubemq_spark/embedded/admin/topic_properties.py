"""The properties of topics, flow rules and query priorities in web calls and their answers.

See TopicPropGroup and WebParameterUtils.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Parameters, bad_request
from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.protocol.constants import UNDEFINED

_NAME: Final = "qryPriorityId"
_LEAST, _MOST = 101, 303
_LEVELS: Final = [1, 2, 3]
_DEPRECATED_TYPE: Final = 2


def read_priority(parameters: Parameters) -> int | None:
    """Return a call's query priority; None if it has none."""
    priority = parameters.optional_number(_NAME, least=_LEAST)
    if priority is None:
        return None
    text = f"Illegal value in {_NAME} parameter:"
    if priority > _MOST:
        what = f"{_NAME} value must be greater than or equal to {_LEAST} and less than or equal to {_MOST}!"
        raise bad_request(f"{text} {what}")
    if priority % 100 not in _LEVELS:
        raise bad_request(f"{text} the units of {_NAME} must in {_LEVELS}")
    return priority


def read_rules(parameters: Parameters) -> str | None:
    """Return a call's flow rules, sorted by type; None if it has none."""
    text = parameters.text("flowCtrlInfo")
    if not text:
        return None
    try:
        parse_rules(text)
    except RuleError as error:
        raise bad_request(f"Parse parameter flowCtrlInfo failure: 'java.lang.Exception: {error}") from error
    records = [record for record in json.loads(text) if record["type"] != _DEPRECATED_TYPE]
    return json.dumps(sorted(records, key=lambda record: int(record["type"])), separators=(",", ":"))


def show_rules(text: str) -> dict[str, Any]:
    """Return flow rules in the form of query answers."""
    rules = json.loads(text)
    return {"flowCtrlRuleCount": len(rules), "flowCtrlInfo": rules}


_UNIT_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1000}
_MAX_AGE_MS: Final = 168 * _UNIT_MS["h"]
_DURATION: Final = re.compile(r"(-?\d{1,64})([smh]?)", re.ASCII)
_POLICY_FORM: Final = "the format of DELETEPOLICY must like {method},{digital}[m|s|h]"


@dataclasses.dataclass(frozen=True, slots=True)
class _Number:
    field: str
    """The name in TopicSpec."""
    least: int
    most: int = (1 << 31) - 1


_NUMBERS: Final[Mapping[str, _Number]] = {
    "numTopicStores": _Number("stores", 1),
    "numPartitions": _Number("partitions", 1),
    "unflushThreshold": _Number("flush_messages", 0),
    "unflushInterval": _Number("flush_interval_ms", 1),
    "unflushDataHold": _Number("flush_bytes", 0),
    "memCacheMsgSizeInMB": _Number("cache_mib", 2, 2048),
    "memCacheMsgCntInK": _Number("cache_k_messages", 1),
    "memCacheFlushIntvl": _Number("cache_flush_ms", 4000),
}


def read_properties(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of TopicSpec in a call (WebParameterUtils.getTopicPropInfo)."""
    fields: dict[str, Any] = {
        number.field: parameters.optional_number(name, least=number.least, most=number.most)
        for name, number in _NUMBERS.items()
    }
    fields["retention_ms"] = _retention_ms(parameters.text("deletePolicy"))
    fields["accept_publish"] = parameters.optional_flag("acceptPublish")
    fields["accept_subscribe"] = parameters.optional_flag("acceptSubscribe")
    return {name: value for name, value in fields.items() if value is not None}


def show_properties(spec: TopicSpec) -> dict[str, Any]:
    """Return all properties in the form of query answers (TopicPropGroup.toWebJsonStr)."""
    return {
        **{name: getattr(spec, number.field) for name, number in _NUMBERS.items()},
        "acceptPublish": spec.accept_publish,
        "acceptSubscribe": spec.accept_subscribe,
        "deletePolicy": _policy(spec.retention_ms),
        "dataStoreType": UNDEFINED,
        "dataPath": "",
    }


def _retention_ms(policy: str) -> int | None:
    """Parse ``delete,<number><unit>``; the unit is s, m or h, by default h."""
    if not policy:
        return None
    parts = policy.split(",")
    if len(parts) != 2 or not parts[1]:
        raise bad_request(f"Value must include one and only one comma character, {_POLICY_FORM}")
    method, duration = parts[0].strip().lower(), parts[1].lower()
    if not method:
        raise bad_request(f"Method value must not be blank, {_POLICY_FORM}")
    if method != "delete":
        raise bad_request("Field DELETEPOLICY only support delete method now!")
    if duration[-1].isalpha() and duration[-1] not in _UNIT_MS:
        raise bad_request("Field DELETEPOLICY only support [s|m|h] unit!")
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise bad_request("The value of field DELETEPOLICY's valid duration must digits!")
    age_ms = int(match[1]) * _UNIT_MS[match[2] or "h"]
    if not 0 < age_ms <= _MAX_AGE_MS:
        raise bad_request(
            "The value of field DELETEPOLICY must be greater than 0 and  less than or equal to"
            f"{_MAX_AGE_MS} seconds!"
        )
    return age_ms


def _policy(age_ms: int) -> str:
    """Return the policy in the largest unit that makes it a whole number."""
    unit = next((unit for unit, length in _UNIT_MS.items() if age_ms % length == 0), "s")
    return f"delete,{-(-age_ms // _UNIT_MS[unit])}{unit}"
