"""The rules and the dashboard that are shipped speak PromQL, and only of metrics that exist."""

import json
import re
from importlib.resources import files

import prometheus_client
import promql_parser
import pytest
import yaml

from django_runlease import metrics
from django_runlease.exceptions import DeclineReason
from django_runlease.models import AlertKind, Outcome

FILES = files("django_runlease") / "monitoring"
RULES = yaml.safe_load((FILES / "prometheus-rules.yml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))

KEYS = {"alert", "expr", "for", "labels", "annotations"}
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$lease": ".*"}
"""What Grafana puts in place of its variables."""
VALUES = {
    "outcome": set(Outcome.values),
    "reason": set(DeclineReason.__args__),
    "kind": set(AlertKind.values),
}


def rules():
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def targets():
    return [target for panel in DASHBOARD["panels"] for target in panel["targets"]]


def _expressions():
    for rule in rules():
        yield pytest.param(rule["expr"], id=rule["alert"])
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in GRAFANA.items():
                expression = expression.replace(variable, value)
            yield pytest.param(expression, id=f"{panel['title']} {target['refId']}")


EXPRESSIONS = list(_expressions())


def labels_of_samples():
    """The labels of each sample that the metrics may have."""
    found = {}
    for told, suffixes, more in (
        (metrics.COUNTERS, [""], ()),
        (metrics.GAUGES, [""], ()),
        (metrics.HISTOGRAMS, ["_sum", "_count"], ()),
        (metrics.HISTOGRAMS, ["_bucket"], ("le",)),
    ):
        for name, (_, labels) in told.items():
            found.update({name + suffix: {*labels, *more} for suffix in suffixes})
    return found


def nodes(expression, kind):
    found = []
    promql_parser.walk(promql_parser.parse(expression), found.append)
    return [node for node in found if isinstance(node, kind)]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_is_promql(expression):
    assert promql_parser.parse(expression) is not None
    assert "$" not in expression


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_and_label_of_an_expression_exists(expression):
    known = labels_of_samples()
    selectors = nodes(expression, promql_parser.VectorSelector)
    assert selectors
    for selector in selectors:
        assert selector.name in known
        for matcher in selector.matchers.matchers:
            assert matcher.name in known[selector.name], matcher
            if matcher.name in VALUES:
                assert set(matcher.value.split("|")) <= VALUES[matcher.name]
    # Joined without these two, which only tell the processes apart that say the same.
    target = {"instance", "pod"}
    labels = set().union(*(known[selector.name] for selector in selectors))
    for aggregate in nodes(expression, promql_parser.AggregateExpr):
        if aggregate.modifier is not None:
            assert set(aggregate.modifier.labels) <= labels | target


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_figures_of_several_processes_are_never_added_up(expression):
    for aggregate in nodes(expression, promql_parser.AggregateExpr):
        inner = nodes(aggregate.expr.prettify(), promql_parser.AggregateExpr)
        assert str(aggregate.op) == "max" or inner


def test_the_declared_metrics_are_those_that_the_collector_gives():
    families = metrics._families()
    assert set(families) == {*metrics.COUNTERS, *metrics.HISTOGRAMS, *metrics.GAUGES}
    assert all(isinstance(family, prometheus_client.Metric) for family in families.values())


def test_the_rules_have_the_shape_that_prometheus_reads():
    assert set(RULES) == {"groups"}
    for group in RULES["groups"]:
        assert set(group) == {"name", "rules"}
    for rule in rules():
        assert {"alert", "expr", "labels", "annotations"} <= set(rule) <= KEYS
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert set(rule["annotations"]) == {"summary", "description"}
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_the_two_essential_alerts_and_those_on_jobs_that_do_not_work_are_there():
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    assert re.search(r"(?s)runlease_declined_total.*\) > 0$", found["RunleaseContention"])
    assert re.search(r"runlease_duration_interval_ratio\) > 0\.8$", found["RunleaseOverrun"])
    assert "runlease_last_success_timestamp_seconds" in found["RunleaseOverdue"]
    assert "runlease_last_success_timestamp_seconds" in found["RunleaseNoSuccess"]
    assert "runlease_lost_total" in found["RunleaseLost"]
    assert "runlease_runs_total" in found["RunleaseFailing"]


def test_every_metric_is_in_a_rule_or_on_the_dashboard():
    shown = {
        re.sub("_(bucket|sum|count)$", "", selector.name)
        for parameter in EXPRESSIONS
        for selector in nodes(parameter.values[0], promql_parser.VectorSelector)
    }
    assert shown == {*metrics.COUNTERS, *metrics.HISTOGRAMS, *metrics.GAUGES}


def test_the_panels_of_the_dashboard_have_places_of_their_own_and_a_data_source_to_choose():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    sources = {each["datasource"]["uid"] for each in [*DASHBOARD["panels"], *targets()]}
    assert sources == {"${datasource}"}
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["lease"]["definition"] == "label_values(runlease_held, lease)"
