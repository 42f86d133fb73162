"""Alerts and the dashboard: their metrics, labels and texts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser
import pytest

from extproc.core.request.refusals import Refusal
from tests.e2e.scene import MODEL
from tests.manifests.builds import Object, adapter_rules, built
from tests.manifests.expositions import Exposition, scrape

# Labels that Prometheus and the operator add to every sample of a pod.
TARGET_LABELS = {"container", "endpoint", "instance", "job", "namespace", "pod"}
# Counters of Kubernetes discovery, which a static configuration does not change, and of ejections.
SILENT = {
    "extproc_ejections_total": {"model", "reason"},
    "extproc_discovery_lists_total": {"resource", "result"},
    "extproc_discovery_watches_total": {"resource", "result"},
    "extproc_endpoints_refused_total": {"reason"},
}
# Metrics of Prometheus itself.
SYNTHETIC = {"up"}
MONITORING = built("overlays/monitoring")


@dataclass(frozen=True)
class Query:
    """A PromQL expression with its position."""

    where: str
    expr: str


def alerts() -> list[Object]:
    groups = MONITORING.one("PrometheusRule")["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> Object:
    data = MONITORING.one("ConfigMap", "extproc-dashboard")["data"]
    found: Object = json.loads(data["extproc.json"])
    return found


def panels() -> list[Object]:
    found: list[Object] = dashboard()["panels"]
    return found


def in_rules() -> Iterator[Query]:
    for rule in alerts():
        yield Query(rule["alert"], rule["expr"])


def in_panels() -> Iterator[Query]:
    for panel in panels():
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$__rate_interval", "5m").replace("$__range", "1h")
            yield Query(f"{panel['title']} {target['refId']}", expr)


def in_autoscalers() -> Iterator[Query]:
    """Yield the queries of KEDA, and those of prometheus-adapter as it sends them."""
    scaler = built("overlays/model-server-autoscaling").one("ScaledObject")
    for trigger in scaler["spec"]["triggers"]:
        # The model of the running sidecar has another name.
        query = re.sub(r'model="[^"]+"', f'model="{MODEL}"', trigger["metadata"]["query"])
        yield Query(trigger["name"], query)
    for rule in adapter_rules():
        yield Query(f"{rule['name']['as']} series", rule["seriesQuery"])
        series = rule["seriesQuery"].partition("{")[0]
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", "pod")
        matchers = 'namespace="inference",pod=~"extproc-gateway-1|extproc-gateway-2"'
        yield Query(rule["name"]["as"], query.replace("<<.LabelMatchers>>", matchers))


ALL = [*in_rules(), *in_panels(), *in_autoscalers()]


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Return the vector selectors of an expression."""
    found = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        elif isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(promql_parser.parse(expr), visit)
    assert found
    return found


def grouping_labels(expr: str) -> set[str]:
    """Return the labels by which an expression groups."""
    lists = re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expr)
    return {label.strip() for found in lists for label in found.split(",")}


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exposition]:
    """Return the metrics of all monitored containers."""
    return asyncio.run(scrape(tmp_path_factory.mktemp("mon")))


@pytest.mark.parametrize("query", ALL, ids=lambda query: query.where)
def test_expressions_use_existing_metrics_and_labels(
    query: Query, scraped: dict[str, Exposition]
) -> None:
    for selector in selectors(query.expr):
        assert selector.name is not None
        if selector.name in SYNTHETIC:
            continue
        homes = [found for found in scraped.values() if selector.name in found.names]
        assert len(homes) == 1 or selector.name in SILENT, f"{selector.name} is nowhere"
        own = [m for m in selector.matchers.matchers if m.name not in TARGET_LABELS]
        if selector.name in SILENT:
            labels = SILENT[selector.name]
            assert {matcher.name for matcher in own} <= labels
        else:
            samples = [sample for sample in homes[0].of(selector.name) if fits(own, sample)]
            assert samples, f"no sample of {selector.prettify()}"
            labels = set(samples[0])
        assert grouping_labels(query.expr) <= labels | TARGET_LABELS | {"le"}


def fits(matchers: list[promql_parser.Matcher], sample: dict[str, str]) -> bool:
    """True if a sample has a selector's labels, and their values if the selector fixes them."""
    kinds = promql_parser.MatchOp
    for matcher in matchers:
        if matcher.name not in sample:
            return False
        if matcher.value.startswith("$"):
            continue
        value = sample[matcher.name]
        held = {
            str(kinds.Equal): value == matcher.value,
            str(kinds.NotEqual): value != matcher.value,
            str(kinds.Re): re.fullmatch(matcher.value, value) is not None,
            str(kinds.NotRe): re.fullmatch(matcher.value, value) is None,
        }
        if not held[str(matcher.op)]:
            return False
    return True


def test_our_label_overrides_the_one_of_prometheus(
    scraped: dict[str, Exposition],
) -> None:
    for monitor in MONITORING.of("PodMonitor"):
        clash = scraped[monitor["metadata"]["name"]].label_names() & TARGET_LABELS
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint.get("honorLabels", False) is bool(clash)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
class TestAlert:
    def test_has_summary_description_and_action(self, rule: Object) -> None:
        assert set(rule["annotations"]) == {"summary", "description", "action"}
        for text in rule["annotations"].values():
            assert text.strip().endswith(".")
        assert len(rule["annotations"]["summary"]) < 120

    def test_has_a_severity_and_our_name_prefix(self, rule: Object) -> None:
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"Extproc[A-Z]\w+", rule["alert"])

    def test_uses_only_labels_that_its_expression_keeps(self, rule: Object) -> None:
        shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        kept = grouping_labels(rule["expr"])
        assert shown <= kept if kept else shown <= TARGET_LABELS


def test_no_alert_fires_for_a_resource_that_the_cluster_does_not_have() -> None:
    (rule,) = [rule for rule in alerts() if rule["alert"] == "ExtprocDiscoveryFails"]
    selector = selectors(rule["expr"])[0]
    matchers = selector.matchers.matchers
    assert not fits(matchers, {"resource": "inferenceobjectives", "result": "404"})
    assert fits(matchers, {"resource": "inferenceobjectives", "result": "403"})


def test_only_refused_requests_count_as_refused() -> None:
    alert = next(one for one in alerts() if one["alert"] == "ExtprocRefusesRequests")
    excluded = re.search(r'outcome!~"([^"]+)"', alert["expr"])
    assert excluded
    others = set(excluded[1].split("|"))
    assert others == {"routed", "models_listed", "passed", "aborted"}
    assert others.isdisjoint(one.code for one in _refusals(Refusal))


def _refusals(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    for one in kind.__subclasses__():
        yield one
        yield from _refusals(one)


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))


class TestDashboard:
    def test_has_grafanas_label_and_a_constant_name(self) -> None:
        labels = MONITORING.one("ConfigMap", "extproc-dashboard")["metadata"]["labels"]
        assert labels["grafana_dashboard"] == "1"
        assert dashboard()["uid"] == "extproc"
        assert "id" not in dashboard()

    def test_panels_are_unique_and_do_not_overlap(self) -> None:
        ids = [panel["id"] for panel in panels()]
        assert len(ids) == len(set(ids))
        taken: set[tuple[int, int]] = set()
        for panel in panels():
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            taken |= cells

    def test_every_panel_has_a_description(self) -> None:
        for panel in panels():
            assert panel["title"]
            assert panel["type"] == "row" or panel["description"].endswith(".")

    def test_data_source_is_a_variable(self) -> None:
        variables = {v["name"]: v for v in dashboard()["templating"]["list"]}
        assert variables["datasource"]["type"] == "datasource"
        assert variables["datasource"]["query"] == "prometheus"
        places = [*panels(), *(v for v in variables.values() if v["type"] == "query")]
        for place in places:
            for thing in (place, *place.get("targets", [])):
                if thing.get("type") != "row":
                    assert thing["datasource"] == {"type": "prometheus", "uid": "${datasource}"}

    def test_used_variables_are_defined(self) -> None:
        text = json.dumps(dashboard())
        has = {v["name"] for v in dashboard()["templating"]["list"]}
        builtin = {"__rate_interval", "__range", "__all"}
        assert set(re.findall(r"\$\{?(\w+)", text)) <= has | builtin
