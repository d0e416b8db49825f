"""The rules and dashboards in ``deploy/``, as tests read them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from testkit.git import ROOT

PROMETHEUS: Final = ROOT / "deploy" / "prometheus"
RULES: Final = PROMETHEUS / "rules.yml"
DASHBOARDS: Final = tuple(sorted((ROOT / "deploy" / "grafana").glob("*.json")))

_METRIC: Final = re.compile(r"\b((?:tubemq|process)_[a-z_0-9]+)\b(?!:)")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_EVERYTHING: Final = {"job": ".*", "instance": ".*", "query": ".*", "topic": ".*", "stuck": "600"}
"""What the variables of dashboards are when nothing is chosen."""


def dashboard(file: Path) -> dict[str, Any]:
    """Return what a dashboard's file says."""
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return data


def panels(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the panels of a dashboard, those in rows too."""
    for panel in data["panels"]:
        yield panel
        yield from panel.get("panels", ())


def rules() -> list[dict[str, Any]]:
    """Return all rules, in their order."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def questions() -> list[str]:
    """Return the expressions that the page about monitoring shows."""
    page = (ROOT / "docs" / "spark" / "monitoring.md").read_text(encoding="utf-8")
    table = page.partition("### PromQL\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| [^|`]+\? \| `(.+)` \|$", table, re.MULTILINE)


def metrics_in(expression: str) -> set[str]:
    """Return the names of our metrics in an expression; those that rules record have a colon."""
    return {name for name in _METRIC.findall(expression) if f":{name}" not in expression}


def with_variables(expression: str, rate_interval: str) -> str:
    """Return the expression of a panel as Grafana asks it while nothing is chosen."""
    values = {**_EVERYTHING, "__rate_interval": rate_interval}
    return _VARIABLE.sub(lambda match: values[match[1] or match[2]], expression)
