"""Flow rules and query priorities in web calls and their answers (WebParameterUtils)."""

import json
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Parameters, bad_request
from tubemq_spark.embedded.broker.flow_control import RuleError, parse_rules

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
