"""Tests each rule with one changed setting of the recommended configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.envoy import RECOMMENDED, envoy_configuration, envoy_configurations
from extproc.envoy.lint import RULES, Finding, Severity, lint
from extproc.envoy.lint.subject import subjects
from extproc.envoy.tree import parse
from tests.manifests.gateway import envoy_of_base

SHIPPED = yaml.safe_load(envoy_configuration().read_text())


class Config:
    """A copy of the recommended configuration that tests can change."""

    def __init__(self) -> None:
        self.data = json.loads(json.dumps(SHIPPED))
        self.listener = self.data["static_resources"]["listeners"][0]
        self.manager = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        self.buffer, self.ext_proc, self.router = self.manager["http_filters"]
        self.settings = self.ext_proc["typed_config"]
        (host,) = self.manager["route_config"]["virtual_hosts"]
        self.routes = host["routes"]
        self.clusters = {one["name"]: one for one in self.data["static_resources"]["clusters"]}

    def route(self, name: str) -> Any:
        return next(one for one in self.routes if one["name"] == name)

    def show_part(self, route: Any) -> None:
        name = "envoy.filters.http.ext_proc"
        modes = {"request_header_mode": "SEND", "request_body_mode": "BUFFERED_PARTIAL"}
        route["typed_per_filter_config"] = {
            name: {
                **route["typed_per_filter_config"][name],
                "overrides": {"processing_mode": modes},
            }
        }

    def text(self) -> str:
        # JSON has no aliases: a change of one route must not change another.
        return json.dumps(self.data, indent=1)

    def findings(self) -> list[Finding]:
        return lint(self.text())


def changed(*path: str, to: Any = None) -> Callable[[Config], None]:
    """Set a value of the ext_proc filter, or remove it."""

    def change(config: Config) -> None:
        place = config.settings
        for key in path[:-1]:
            place = place[key]
        place.pop(path[-1], None)
        if to is not None:
            place[path[-1]] = to

    return change


def stay(config: Config) -> None:
    del config.manager["early_header_mutation_extensions"]


def second_ext_proc(config: Config) -> None:
    config.manager["http_filters"].insert(0, {**config.ext_proc, "name": "second"})


def foreign(config: Config) -> None:
    del config.ext_proc["disabled"]
    config.routes.insert(0, {"match": {"prefix": "/app"}, "route": {"cluster": "app"}})
    config.data["static_resources"]["clusters"].append({"name": "app", "type": "EDS"})


def foreign_catch_all(config: Config) -> None:
    foreign(config)
    config.routes.append({"match": {"prefix": "/"}, "route": {"cluster": "app"}})
    del config.routes[0]


def ext_proc_on_no_route(config: Config) -> None:
    for route in config.routes:
        route.pop("typed_per_filter_config", None)


def hidden(config: Config) -> None:
    config.routes.insert(0, {"match": {"prefix": "/"}, "route": {"cluster": "fallback"}})


def no_retry(config: Config) -> None:
    del config.route("chosen")["route"]["retry_policy"]


def no_second(config: Config) -> None:
    first = {**config.clusters["first-candidate"], "name": "chosen"}
    clusters = config.data["static_resources"]["clusters"]
    clusters[clusters.index(config.clusters["chosen"])] = first


def no_reset(config: Config) -> None:
    config.route("chosen")["route"]["retry_policy"]["retry_on"] = "connect-failure"


def route_value(name: str, key: str, value: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        action = dict(config.route(name)["route"])
        action.pop(key, None)
        config.route(name)["route"] = action if value is None else {**action, key: value}

    return change


def no_idle_timeout(config: Config) -> None:
    del config.manager["stream_idle_timeout"]
    route_value("fallback", "idle_timeout", None)(config)


def garbled(config: Config) -> None:
    config.show_part(config.route("fallback"))


def end_lost(config: Config) -> None:
    config.show_part(config.route("fallback"))
    route_value("fallback", "retry_policy", None)(config)


def buffered(config: Config) -> None:
    config.settings["processing_mode"]["request_body_mode"] = "BUFFERED"
    for route in config.routes:
        del route["request_body_buffer_limit"]


def not_kept(config: Config) -> None:
    del config.route("fallback")["request_body_buffer_limit"]


def small_buffer(config: Config) -> None:
    setting = config.route("fallback")["typed_per_filter_config"]["envoy.filters.http.buffer"]
    setting["buffer"]["max_request_bytes"] = 65536


def no_large_route(config: Config) -> None:
    config.routes[:] = [one for one in config.routes if one["name"] != "large"]


def no_buffer(config: Config) -> None:
    config.manager["http_filters"].remove(config.buffer)
    for route in config.routes:
        route.get("typed_per_filter_config", {}).pop("envoy.filters.http.buffer", None)


def empty_fallback(config: Config) -> None:
    config.clusters["fallback"]["load_assignment"]["endpoints"] = []


def missing_cluster(config: Config) -> None:
    config.data["static_resources"]["clusters"].remove(config.clusters["fallback"])


def no_http2(config: Config) -> None:
    del config.clusters["extproc"]["typed_extension_protocol_options"]


def default_breakers(config: Config) -> None:
    del config.clusters["fallback"]["circuit_breakers"]


def quick_connect(config: Config) -> None:
    config.clusters["first-candidate"]["connect_timeout"] = "0.25s"


def metadata_of_clusters(config: Config) -> None:
    """Let the clusters read the target from metadata, which Envoy then drops."""
    for name in ("first-candidate", "second-candidate"):
        header = config.clusters[name]["original_dst_lb_config"]["http_header_name"]
        key = {"key": "envoy.lb", "path": [{"key": header}]}
        config.clusters[name]["original_dst_lb_config"] = {"metadata_key": key}
    del config.settings["metadata_options"]


def guarded_elsewhere(config: Config) -> None:
    settings = {"envoy.filters.http.jwt_authn": {"requirement_name": "token"}}
    route = {"match": {"prefix": "/v1/"}, "route": {"cluster": "app"}}
    config.routes.append({**route, "typed_per_filter_config": settings})


MODE = "processing_mode"
ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT

CASES: list[tuple[Callable[[Config], None], Severity, str]] = [
    (stay, ERROR, "do not remove x-target-endpoint, x-target-endpoint-fallback"),
    (second_ext_proc, ERROR, "http_filters have 2 ext_proc filters"),
    (changed(MODE, "request_header_mode", to="SKIP"), ERROR, "request_header_mode is SKIP"),
    (changed(MODE, "response_header_mode", to="SKIP"), WARNING, "response_header_mode is SKIP"),
    (changed("response_attributes"), WARNING, "response_attributes lack upstream.address"),
    (changed(MODE, "response_trailer_mode"), WARNING, "response_trailer_mode is not SEND"),
    (changed("metadata_options"), WARNING, "do not receive envoy.lb, extproc"),
    (metadata_of_clusters, ERROR, "do not receive envoy.lb, extproc"),
    (changed("message_timeout"), WARNING, "message_timeout is 200ms, the default"),
    (changed("message_timeout", to="0.5s"), WARNING, "message_timeout is 0.5s"),
    (changed("max_message_timeout"), HINT, "max_message_timeout is missing"),
    (changed("max_message_timeout", to="30s"), HINT, "max_message_timeout is 30s"),
    (changed("grpc_service", "timeout", to="30s"), ERROR, "grpc_service has a timeout"),
    (changed("failure_mode_allow"), WARNING, "failure_mode_allow is not set"),
    (changed("failure_mode_allow", to=False), HINT, "failure_mode_allow is false"),
    (changed("route_cache_action", to="RETAIN"), ERROR, "the route is not selected again"),
    (small_buffer, WARNING, "the buffer filter accepts at most 65,536 bytes"),
    (changed(MODE, "request_body_mode"), WARNING, "request_body_mode is NONE"),
    (
        changed("send_body_without_waiting_for_header_response"),
        ERROR,
        "STREAMED without send_body_without_waiting_for_header_response",
    ),
    (no_buffer, WARNING, "bodies reach the sidecar in pieces"),
    (buffered, ERROR, "request_body_mode is BUFFERED with a limit of 32,768 bytes"),
    (end_lost, ERROR, "slightly larger than the buffer of 8,388,608 bytes"),
    (garbled, ERROR, "the route has retries, and request_body_mode is BUFFERED_PARTIAL"),
    (no_large_route, WARNING, "no route for bodies larger than 8,388,608 bytes"),
    (not_kept, WARNING, "no request_body_buffer_limit"),
    (foreign, ERROR, "ext_proc is on for a route of another service"),
    (foreign_catch_all, ERROR, "ext_proc is on for a route of another service"),
    (ext_proc_on_no_route, ERROR, "ext_proc is on for no route"),
    (hidden, ERROR, "comes after a route for every path"),
    (guarded_elsewhere, WARNING, "no setting for envoy.filters.http.jwt_authn"),
    (no_retry, ERROR, "no retry on connect-failure"),
    (no_second, ERROR, "the cluster has one address"),
    (no_reset, HINT, "retry_on lacks reset"),
    (route_value("chosen", "timeout", None), ERROR, "timeout is 15s, the default"),
    (route_value("fallback", "timeout", "60s"), ERROR, "timeout is 60s"),
    (no_idle_timeout, WARNING, "a stream may be idle for 300s"),
    (missing_cluster, ERROR, "cluster fallback does not exist"),
    (empty_fallback, ERROR, "has no endpoints"),
    (no_http2, ERROR, "has no HTTP/2"),
    (default_breakers, WARNING, "circuit breakers allow max_connections 1,024"),
    (quick_connect, WARNING, "connect_timeout is 0.25s"),
]


@pytest.mark.parametrize(
    ("change", "severity", "problem"), CASES, ids=[problem for _, _, problem in CASES]
)
def test_rule_finds_the_changed_setting(
    change: Callable[[Config], None], severity: Severity, problem: str
) -> None:
    config = Config()
    assert config.findings() == []
    change(config)
    found = [one for one in config.findings() if problem in one.problem]
    assert found, [str(one) for one in config.findings()]
    assert {one.severity for one in found} == {severity}
    assert all(one.why and one.fix and one.where and one.line > 0 for one in found)


def test_every_rule_has_a_case() -> None:
    broken = set()
    for change, _, problem in CASES:
        config = Config()
        change(config)
        (subject,) = subjects(parse(config.text()))
        broken |= {rule for rule in RULES for one in rule(subject) if problem in one.problem}
    assert broken == set(RULES)


def test_the_recommended_configuration_has_no_finding() -> None:
    assert lint(envoy_configuration(RECOMMENDED).read_text()) == []
    assert lint(yaml.safe_dump(envoy_of_base())) == []


@pytest.mark.parametrize("path", envoy_configurations(), ids=lambda path: path.name)
def test_variant_has_only_its_documented_hints(path: Path) -> None:
    expected = {
        "endpoint-picker.yaml": {"failure_mode_allow is false", "retry_on lacks reset"},
        "fail-closed.yaml": {"failure_mode_allow is false"},
    }
    found = lint(path.read_text())
    assert {one.problem for one in found} == expected.get(path.name, set())
    assert {one.severity for one in found} <= {Severity.HINT}


def test_configuration_without_ext_proc_is_an_error() -> None:
    (found,) = lint("static_resources: {listeners: []}\n")
    assert found.severity is Severity.ERROR
    assert found.problem == "no static listener has an ext_proc filter"


def test_line_has_place_problem_cost_and_fix() -> None:
    config = Config()
    quick_connect(config)
    (found,) = config.findings()
    assert str(found) == (
        f"line {found.line}: warning: cluster first-candidate: connect_timeout is 0.25s: in a "
        "burst, Envoy handles new connections late, and a lost SYN is repeated only after a "
        "second, so connections to healthy endpoints fail; fix: set connect_timeout: 2s"
    )
