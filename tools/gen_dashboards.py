"""Writes the dashboards of ``deploy/grafana`` from what ``tools/dashboards`` says of their panels.

In a query there, a metric stands without what its dashboard's variables select; the tool adds that, by the
labels of the metric's family. ``deploy/grafana`` is what Grafana imports: a panel is a line of it.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tubemq_spark.observe.metrics import FAMILIES

ROOT: Final = Path(__file__).resolve().parent.parent

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_METRIC: Final = re.compile(r"\b((?:tubemq|process)_\w+)(?:\{([^}]*)\})?")
_ALL: Final = {"selected": True, "text": ["All"], "value": ["$__all"]}
_LEGEND: Final = {"displayMode": "list", "placement": "bottom", "showLegend": True}
_WIDTH: Final = 24
_SIZES: Final = {"stat": (4, 4), "timeseries": (8, 8)}
_CUSTOM: Final[dict[str, dict[str, Any]]] = {
    "stat": {},
    "state-timeline": {"custom": {"fillOpacity": 80, "lineWidth": 0}},
    "timeseries": {
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 10,
            "showPoints": "never",
            "spanNulls": False,
        }
    },
}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    },
    "state-timeline": {
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "alignValue": "left",
        "legend": _LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
}


def dashboard(board: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    names = [name for name in board["variables"] if "metric" in board["variables"][name]]
    variables = [_variable(name, asked, names) for name, asked in board["variables"].items()]
    return {
        "uid": board["uid"],
        "title": board["title"],
        "description": board["description"],
        "tags": ["tubemq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "liveNow": False,
        "id": None,
        "annotations": {"list": [_ANNOTATIONS]},
        "links": [_LINKS],
        "templating": {"list": [_DATASOURCE, *variables]},
        "panels": _panels(board["rows"], names),
    }


_ANNOTATIONS: Final = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
_LINKS: Final = {
    "title": "TubeMQ",
    "type": "dashboards",
    "tags": ["tubemq"],
    "asDropdown": False,
    "includeVars": False,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}
_DATASOURCE: Final = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
    "refresh": 1,
    "regex": "",
    "skipUrlSync": False,
}


def _variable(name: str, asked: dict[str, str], names: list[str]) -> dict[str, Any]:
    """Return a text that is typed in, or values of a metric's label that the variables before select."""
    if "metric" not in asked:
        value = {"selected": True, "text": asked["value"], "value": asked["value"]}
        text = {"name": name, "label": asked["label"], "type": "textbox", "query": asked["value"]}
        return {**text, "current": value, "options": [value], "hide": 0, "skipUrlSync": False}
    before = names[: names.index(name)]
    selector = "{" + ", ".join(f'{label}=~"${label}"' for label in before) + "}" if before else ""
    question = f"label_values({asked['metric']}{selector}, {name})"
    return {
        "name": name,
        "label": asked["label"],
        "type": "query",
        "datasource": _SOURCE,
        "definition": question,
        "query": {"qryType": 1, "query": question, "refId": name},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": _ALL,
        "hide": 0,
        "options": [],
        "skipUrlSync": False,
    }


def _panels(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Return the panels of all rows, each row from the left, as many beside each other as fit."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": _WIDTH, "x": 0, "y": top}
        number = {"id": len(panels) + 1, "type": "row"}
        panels.append({**number, "title": row["title"], "gridPos": place, "collapsed": False, "panels": []})
        left, top, height = 0, top + 1, 0
        for panel in row["panels"]:
            width, tall = panel.get("size") or _SIZES[panel.get("kind", "timeseries")]
            if left + width > _WIDTH:
                left, top = 0, top + height
            place = {"h": tall, "w": width, "x": left, "y": top}
            panels.append(_panel(panel, len(panels) + 1, place, names))
            left, height = left + width, tall
        top += height
    return panels


def _panel(panel: dict[str, Any], number: int, place: dict[str, int], names: list[str]) -> dict[str, Any]:
    kind = panel.get("kind", "timeseries")
    states = [state.rsplit(" ", 1) for state in panel.get("states", ())]
    levels = panel.get("levels") or _levels([color for _, color in states]) or [["blue"]]
    colors = {"mode": "palette-classic" if kind == "timeseries" else "thresholds"}
    defaults: dict[str, Any] = {
        "unit": panel.get("unit", "short"),
        "mappings": [_mapping(states)] if states else [],
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value[0] if value else None} for color, *value in levels],
        },
        **({} if panel.get("negative") else {"min": 0}),
        **{name: panel[name] for name in ("max", "decimals") if name in panel},
        "color": colors,
        **_CUSTOM[kind],
    }
    if panel.get("steps"):
        defaults["custom"] = {**defaults["custom"], "lineInterpolation": "stepAfter"}
    return {
        "id": number,
        "type": kind,
        "title": panel["title"],
        "description": panel["text"],
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[kind],
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": _METRIC.sub(lambda match: _selected(match, names), query),
                "legendFormat": legend,
                "range": True,
            }
            for index, (legend, query) in enumerate(panel["queries"].items())
        ],
    }


def _levels(colors: list[str]) -> list[list[Any]]:
    """Return where the color changes."""
    changed = [value for value in range(1, len(colors)) if colors[value] != colors[value - 1]]
    return [[color] for color in colors[:1]] + [[colors[value], value] for value in changed]


def _mapping(states: list[list[str]]) -> dict[str, Any]:
    texts = {
        str(value): {"text": text, "color": color, "index": value}
        for value, (text, color) in enumerate(states)
    }
    return {"type": "value", "options": texts}


def _selected(metric: re.Match[str], names: list[str]) -> str:
    """Return a metric with what the variables select of it; one that names its job is as it shall be."""
    name, more = metric[1], metric[2] or ""
    if "job=" in more:
        return metric[0]
    family = FAMILIES.get(name.removesuffix("_total"))
    labels = [label for label in names if family is None or label in ("job", *family.labels)]
    selectors = [f'{label}=~"${label}"' for label in labels]
    return f"{name}{{{', '.join([*selectors, *filter(None, [more])])}}}"


def written() -> Iterator[tuple[Path, str]]:
    """Yield the file of each dashboard that Grafana imports, and its text, with a panel in each line."""
    for source in sorted((ROOT / "tools" / "dashboards").glob("*.toml")):
        board = dashboard(tomllib.loads(source.read_text(encoding="utf-8")))
        panels = ",\n".join(map(json.dumps, board.pop("panels")))
        head = "".join(f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in board.items())
        yield (
            ROOT / "deploy" / "grafana" / f"tubemq-{source.stem}.json",
            f'{{\n{head}"panels": [\n{panels}\n]\n}}\n',
        )


def main() -> None:
    """Write all dashboards."""
    for file, text in written():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
