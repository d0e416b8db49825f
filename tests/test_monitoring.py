"""Rules and dashboards in ``deploy/``: of metrics that there are, complete, and as Prometheus takes them."""

import itertools
import re
import shutil
import subprocess

import pytest
import yaml

from testkit.git import ROOT
from testkit.monitoring import DASHBOARDS, PROMETHEUS, RULES, dashboard, metrics_in, panels, questions, rules
from tests.gateway.running import settings, tubemq
from tubemq_spark.gateway.server import GatewayServer
from tubemq_spark.observe.metrics import FAMILIES

NEEDS_PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's prometheus")
LEFT_OUT = {
    "process_start_time_seconds": "dashboards show when a gateway answers",
    "process_virtual_memory_bytes": "what counts is the resident memory",
}
"""Metrics in no panel, with the reason."""
BOARDS = [pytest.param(dashboard(file), id=file.stem) for file in DASHBOARDS]


def exported():
    """Return the names of all metrics of listeners and gateways, as they are scraped."""
    with tubemq(demo=(1, 1)) as server:
        of_gateway = list(GatewayServer(settings(server)).metrics.registry.collect())
    return exported_by_listener() | {name for family in of_gateway for name in names_of(family)}


def exported_by_listener():
    families = [family.kind(name, family.text) for name, family in FAMILIES.items()]
    return {name for family in families for name in names_of(family)}


def names_of(family):
    endings = {"counter": ["_total"], "histogram": ["_bucket"]}
    return [family.name + ending for ending in endings.get(family.type, [""])]


def expressions(board):
    return [target["expr"] for panel in panels(board) for target in panel.get("targets", ())]


def queries_of_variables(board):
    return [
        one["query"]["query"] for one in board["templating"]["list"] if isinstance(one.get("query"), dict)
    ]


def promtool(*arguments):
    return subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )


@NEEDS_PROMTOOL
def test_prometheus_takes_the_rules_and_each_alert_fires_where_it_should():
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", "rules_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_rule_is_tested_and_each_alert_says_what_to_do():
    tests = (PROMETHEUS / "rules_test.yml").read_text()
    for rule in rules():
        name = rule.get("alert") or rule["record"]
        assert re.search(rf'\b{name}\b"?', tests), f"rules_test.yml has no test of {name}"
        if "alert" in rule:
            assert rule["labels"].keys() == {"severity"}
            assert rule["labels"]["severity"] in {"page", "ticket"}
            assert rule["annotations"].keys() == {"summary", "description"}
            grows = "increase(" in rule["expr"] or "certificate" in rule["expr"]
            assert ("for" in rule) != grows, f"{name}: what is there for a moment is no alert"
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(names) == len(set(names))


def test_rules_and_dashboards_are_about_metrics_that_there_are_and_all_are_shown():
    there = exported()
    shown = set().union(
        *(metrics_in(expression) for board in map(dashboard, DASHBOARDS) for expression in expressions(board))
    )
    alerted = set().union(*(metrics_in(rule["expr"]) for rule in rules()))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = set(re.findall(r"\w+:\w+(?::\w+)?", " ".join(rule["expr"] for rule in rules() if "alert" in rule)))
    assert (shown | alerted) - there == set(), "no metric has this name"
    assert there - shown == LEFT_OUT.keys(), "show it in a dashboard, or name it in LEFT_OUT with the reason"
    assert used <= recorded, "an alert uses what no rule records"


def test_the_page_names_every_metric_of_streams_and_asks_for_some_of_them():
    page = (ROOT / "docs" / "spark" / "monitoring.md").read_text()
    of_streams = exported_by_listener()
    unnamed = [name for name in of_streams if f"| `{name}` |" not in page]
    assert unnamed == [], "the table of docs/spark/monitoring.md has a row for each metric of streams"
    assert len(questions()) > 8
    assert set().union(*map(metrics_in, questions())) <= of_streams


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_one_that_grafana_imports(board):
    assert board["schemaVersion"] >= 36
    assert board["id"] is None, "the id of some server"
    assert board["uid"]
    assert board["title"]
    source = {"type": "prometheus", "uid": "${datasource}"}
    first, *others = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    for variable in others:
        assert variable["type"] == "textbox" or variable["datasource"] == source
    ids = [panel["id"] for panel in panels(board)]
    assert len(ids) == len(set(ids))
    for panel in panels(board):
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == source
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
        for target in panel["targets"]:
            assert target["datasource"] == source
            assert target["legendFormat"] or panel["type"] == "stat", panel["title"]


@pytest.mark.parametrize("board", BOARDS)
def test_panels_are_within_the_width_and_do_not_overlap(board):
    places = [panel["gridPos"] for panel in panels(board)]
    for place in places:
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@pytest.mark.parametrize("board", BOARDS)
def test_what_is_chosen_above_concerns_all_panels(board):
    names = {variable["name"] for variable in board["templating"]["list"]} - {"datasource"}
    used = set(re.findall(r"\$(\w+)", " ".join(expressions(board)))) - {"__rate_interval"}
    assert used == names
    for expression in expressions(board):
        for selector in re.findall(r"(?:tubemq|process)_\w+(\{[^}]*\})?", expression):
            assert 'job=~"$job"' in selector, expression
    of_variables = " ".join(queries_of_variables(board))
    assert metrics_in(of_variables) <= exported()


def test_the_files_are_in_the_source_distribution():
    assert "graft deploy" in (PROMETHEUS.parents[1] / "MANIFEST.in").read_text()
    assert yaml.safe_load(RULES.read_text())["groups"]
