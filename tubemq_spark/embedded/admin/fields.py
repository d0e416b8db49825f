"""The properties of topics, flow rules and query priorities in web calls and their answers.

See TopicPropGroup and WebParameterUtils.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Parameters, bad_request
from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules
from tubemq_spark.embedded.config.catalog import TopicSpec
from tubemq_spark.embedded.config.controls import ClusterSetting, GroupControl
from tubemq_spark.protocol.constants import UNDEFINED

_NAME: Final = "qryPriorityId"
_LEAST, _MOST = 101, 303
_LEVELS: Final = [1, 2, 3]
_DEPRECATED_TYPE: Final = 2


def _read_priority(parameters: Parameters) -> int | None:
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


_UNIT_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1000}
_MAX_AGE_MS: Final = 168 * _UNIT_MS["h"]
_DURATION: Final = re.compile(r"(-?\d{1,64})([smh]?)", re.ASCII)
_POLICY_FORM: Final = "the format of DELETEPOLICY must like {method},{digital}[m|s|h]"


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a record: its name there, and how it is read from a parameter of a call."""

    attribute: str
    read: Callable[[Parameters, str], object]
    """Takes the parameter's name; None if the call does not have it."""


Fields = Mapping[str, Field]
"""Fields by the names of their parameters, which are those in answers, too."""


def number(attribute: str, least: int, most: int | None = None) -> Field:
    """Return a field with a whole number."""
    return Field(attribute, lambda parameters, name: parameters.optional_number(name, least=least, most=most))


def flag(attribute: str) -> Field:
    """Return a field that is true or false."""
    return Field(attribute, Parameters.optional_flag)


def read_fields(fields: Fields, parameters: Parameters) -> dict[str, Any]:
    """Return the fields of a record that a call has, by their names in the record."""
    values = {field.attribute: field.read(parameters, name) for name, field in fields.items()}
    return {attribute: value for attribute, value in values.items() if value is not None}


def show_fields(fields: Fields, record: object) -> dict[str, Any]:
    """Return the fields of a record in the form of answers."""
    return {name: getattr(record, field.attribute) for name, field in fields.items()}


_INT_MAX: Final = (1 << 31) - 1
_NUMBERS: Final[Fields] = {
    "numTopicStores": number("stores", 1, _INT_MAX),
    "numPartitions": number("partitions", 1, _INT_MAX),
    "unflushThreshold": number("flush_messages", 0, _INT_MAX),
    "unflushInterval": number("flush_interval_ms", 1, _INT_MAX),
    "unflushDataHold": number("flush_bytes", 0, _INT_MAX),
    "memCacheMsgSizeInMB": number("cache_mib", 2, 2048),
    "memCacheMsgCntInK": number("cache_k_messages", 1, _INT_MAX),
    "memCacheFlushIntvl": number("cache_flush_ms", 4000, _INT_MAX),
}
_FLAGS: Final[Fields] = {"acceptPublish": flag("accept_publish"), "acceptSubscribe": flag("accept_subscribe")}
_FLOW: Final[Fields] = {
    "qryPriorityId": Field("query_priority", lambda parameters, _name: _read_priority(parameters)),
    "flowCtrlEnable": flag("flow_control"),
    "flowCtrlInfo": Field("flow_rules", lambda parameters, _name: read_rules(parameters)),
}


def read_properties(parameters: Parameters) -> dict[str, Any]:
    """Return the fields of TopicSpec in a call (WebParameterUtils.getTopicPropInfo)."""
    fields = read_fields(_NUMBERS, parameters)
    age_ms = _retention_ms(parameters.text("deletePolicy"))
    if age_ms is not None:
        fields["retention_ms"] = age_ms
    return {**fields, **read_fields(_FLAGS, parameters)}


def show_properties(spec: TopicSpec) -> dict[str, Any]:
    """Return all properties in the form of query answers (TopicPropGroup.toWebJsonStr)."""
    return {
        **show_fields(_NUMBERS, spec),
        **show_fields(_FLAGS, spec),
        "deletePolicy": _policy(spec.retention_ms),
        "dataStoreType": UNDEFINED,
        "dataPath": "",
    }


def read_flow(parameters: Parameters) -> dict[str, Any]:
    """Return query priority and flow control in a call, fields of ClusterSetting and GroupControl."""
    return read_fields(_FLOW, parameters)


def show_flow(record: ClusterSetting | GroupControl) -> dict[str, Any]:
    """Return query priority and flow control in the form of answers."""
    rules = json.loads(record.flow_rules)
    return {
        "qryPriorityId": record.query_priority,
        "flowCtrlEnable": record.flow_control,
        "flowCtrlRuleCount": len(rules),
        "flowCtrlInfo": rules,
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
