"""Each request keeps exactly the settings of the route that forwards it before the merge."""

from __future__ import annotations

import re
from functools import cache
from textwrap import indent
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from extproc.core.request.paths import INFERENCE_PATHS
from extproc.envoy import envoy_configuration
from extproc.envoy.lint import lint
from extproc.envoy.merge import ConfigurationError, merge
from tests.envoy.requests import selected, settings
from tests.envoy.texts import (
    APP,
    CATCH_ALL,
    ENDPOINTS,
    configuration,
    listener,
    manager,
    merged,
    names,
    routes,
)
from tests.extent import extent

NEW = ["chosen", "chosen", "large", "large", "fallback", "fallback"]
RECOMMENDED = routes(envoy_configuration().read_text())
PATHS = [
    path.replace("*", "id")
    for path in (*INFERENCE_PATHS, "/v1/models", "/v1/models/llama")
    if selected(RECOMMENDED, path.replace("*", "id"))
]
SENT: list[dict[str, str]] = [
    {},
    {"content_length": "9000000"},
    {"x_target_endpoint": "10.0.0.1:8000"},
    {"x_target_endpoint": "10.0.0.1:8000", "x_target_endpoint_fallback": "10.0.0.2:8000"},
    {"x_tier": "gold"},
]

RBAC = "envoy.filters.http.rbac"
OPEN = f"  typed_per_filter_config: {{{RBAC}: {{disabled: true}}}}\n"
GUARDED = f"  typed_per_filter_config: {{{RBAC}: {{rbac: {{rules: {{}}}}}}}}\n"
SECRET = "  request_headers_to_add: [{header: {key: authorization, value: Bearer sk-1}}]\n"


def route(match: str, more: str = "", action: str = "") -> str:
    return f"- match: {{{match}}}\n  route: {{cluster: app{action}}}\n{more}"


def with_first(text: str, more: str) -> str:
    """Return a merged configuration with one more route in front."""
    first = re.search(r"routes:\n( *)", text)
    assert first is not None
    return (
        text[: first.end(1)].rstrip(" ")
        + indent(more, first[1])
        + text[first.end(1) - len(first[1]) :]
    )


LAYOUTS = {
    "public models": route("prefix: /v1/models", OPEN) + CATCH_ALL,
    "public embeddings": APP + route("path: /v1/embeddings", OPEN) + CATCH_ALL,
    "public catch-all": route("prefix: /v1/chat/completions") + CATCH_ALL + OPEN,
    "protected chat": route("path_separated_prefix: /v1/chat", GUARDED) + CATCH_ALL,
    "three groups": route("prefix: /v1/models", OPEN) + route("prefix: /v1", GUARDED) + CATCH_ALL,
    "equal neighbors": route("prefix: /v1/models", OPEN) + route("prefix: /v1/") + CATCH_ALL,
    "only one route": APP + route("prefix: /v1/embeddings", OPEN),
    "a secret": route("prefix: /v1/embeddings", SECRET) + CATCH_ALL,
    "engine path": route("prefix: /v1/") + route("prefix: /tokenize", GUARDED) + CATCH_ALL,
    "regular expression": route('safe_regex: {regex: "/v1/(chat|audio)/.*"}', GUARDED) + CATCH_ALL,
    "any case": route("prefix: /V1/Models, case_sensitive: false", OPEN) + CATCH_ALL,
    "rate limits": route("prefix: /v1/", "", ", rate_limits: [{actions: []}]") + CATCH_ALL,
    "limits of the host": route("prefix: /v1/", "", ", include_vh_rate_limits: true") + CATCH_ALL,
    "cors": route("prefix: /v1/", "", ", cors: {allow_methods: GET}") + CATCH_ALL,
    "mirror": route("path: /v1/completions", "", ", request_mirror_policies: [{cluster: app}]")
    + CATCH_ALL,
    "metadata": CATCH_ALL + "  metadata: {filter_metadata: {a: {b: c}}}\n",
    "refusal between": route("prefix: /v1/chat")
    + "- match: {prefix: /v1/audio}\n  direct_response: {status: 403}\n"
    + CATCH_ALL,
    "condition between": route("prefix: /v1/chat")
    + route("prefix: /, headers: [{name: x-tier, present_match: true}]", GUARDED)
    + CATCH_ALL,
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_request_keeps_its_settings(layout: str) -> None:
    text = configuration([listener(layout)])
    after = merged(text)
    assert_same_settings(text, after, "")
    assert merged(after) == after
    assert not [one for one in lint(after) if "no setting for" in one.problem]


@pytest.mark.parametrize("layout", ["public models", "protected chat", "condition between"])
def test_every_request_below_a_prefix_keeps_its_settings(layout: str) -> None:
    text = configuration([listener(LAYOUTS[layout].replace("prefix: /v1", "prefix: /team/v1"))])
    after = merged(text, prefixes=["/", "/team"])
    assert_same_settings(text, after, "")
    assert_same_settings(text, after, "/team")
    decided = selected(routes(after), "/team/v1/messages", x_target_endpoint="10.0.0.1:8000")
    assert decided["route"]["regex_rewrite"]["pattern"] == {"regex": "^/team/"}
    assert merged(after) == after


def assert_same_settings(text: str, after: str, prefix: str) -> None:
    old, new = routes(text), routes(after)
    for path in (f"{prefix}{one}{query}" for one in PATHS for query in ("", "?a=/v1/models")):
        for sent in SENT:
            before = selected(old, path, **sent)
            found = selected(new, path, **sent)
            assert (before is None) == (found is None), (path, sent)
            if before is not None:
                assert settings(found) == settings(before), (path, sent)
                assert ("direct_response" in found) == ("direct_response" in before)


MATCHES = (
    "prefix: /",
    "prefix: /v1",
    "prefix: /v1/models",
    "path: /v1/embeddings",
    "path_separated_prefix: /v1/chat",
    "prefix: /tokenize",
    "path: /V1/Score, case_sensitive: false",
    'safe_regex: {regex: "/v1/(models|messages)(/.*)?"}',
    'safe_regex: {regex: "/v1/[a-z]+"}',
    "prefix: /, headers: [{name: x-tier, present_match: true}]",
)
ROUTES = st.one_of(
    st.builds(route, st.sampled_from(MATCHES), st.sampled_from(["", OPEN, GUARDED, SECRET])),
    st.sampled_from(MATCHES).map("- match: {{{}}}\n  direct_response: {{status: 403}}\n".format),
)


@settings_of_test(max_examples=extent(6, 200))
@given(st.lists(ROUTES, min_size=1, max_size=5), st.lists(ROUTES, max_size=1))
def test_every_request_keeps_its_settings_in_any_order(first: list[str], later: list[str]) -> None:
    """The command may also refuse. A second run comes after a new route in front."""
    text = configuration([listener("".join(first))])
    try:
        after = merged(text)
    except ConfigurationError:
        return
    # A route for /tokenize alone may belong to another service.
    versioned = [path for path in PATHS if path.startswith("/v")]
    if any("route" in (selected(routes(text), path) or {}) for path in versioned):
        assert_same_settings(text, after, "")
    assert merged(after) == after
    changed = with_first(after, "".join(later))
    try:
        again = merged(changed)
    except ConfigurationError:
        return
    assert_keeps_settings(changed, again)


def assert_keeps_settings(text: str, after: str) -> None:
    old, new = routes(text), routes(after)
    for path in PATHS:
        for sent in SENT[:2]:
            before = selected(old, path, **sent) or {}
            assert settings(selected(new, path, **sent) or {}) == settings(before), path


class TestGroups:
    def test_each_has_new_routes_before_its_own_route(self) -> None:
        after = merged(configuration([listener(LAYOUTS["three groups"])]))
        assert names(routes(after)) == [*NEW, "/v1/models", *NEW, "/v1", *NEW, "/"]

    def test_equal_neighbors_of_the_catch_all_share_the_new_routes(self) -> None:
        after = merged(configuration([listener(LAYOUTS["equal neighbors"])]))
        assert names(routes(after)) == [*NEW, "/v1/models", *NEW, "/v1/", "/"]

    def test_a_route_added_in_front_gets_new_routes_of_its_own(self) -> None:
        text = merged(configuration([listener(CATCH_ALL)]))
        after = merged(with_first(text, route("prefix: /v1/models", OPEN)))
        assert names(routes(after)) == [*NEW, "/v1/models", *NEW, "/"]
        assert settings(selected(routes(after), "/v1/models")) != {}
        assert settings(selected(routes(after), "/v1/messages")) == {}

    def test_updates_keep_the_settings_of_each(self) -> None:
        new = merged(configuration([listener(LAYOUTS["three groups"])]))
        lines = new.splitlines(keepends=True)
        old = "".join(line for line in lines if "retry_policy: {retry_on" not in line)
        assert old != new
        assert yaml.safe_load(merged(old)) == yaml.safe_load(new)

    def test_without_a_catch_all_serve_no_other_path(self) -> None:
        text = configuration([listener(LAYOUTS["only one route"])])
        result = merge(text, endpoints=ENDPOINTS)
        assert selected(routes(result.text), "/v1/messages") is None
        assert any("serve only the LLM requests" in note for note in result.notes)

    def test_credentials_for_the_model_servers_are_noted(self) -> None:
        text = configuration([listener(LAYOUTS["a secret"])])
        notes = merge(text, endpoints=ENDPOINTS).notes
        assert any("its header authorization now goes to the model servers" in n for n in notes)


class TestRefused:
    def refused(self, layout: str) -> str:
        text = configuration([listener(layout)])
        with pytest.raises(ConfigurationError) as error:
            merged(text)
        return str(error.value)

    def test_complex_pattern_with_settings_of_its_own(self) -> None:
        message = self.refused(route('safe_regex: {regex: "/v1/.*/c.*"}', GUARDED) + CATCH_ALL)
        assert message.startswith("the route in line 17 forwards LLM requests, and its path")
        assert "write it as one route for each `prefix` or `path`" in message

    def test_weighted_cluster_with_settings(self) -> None:
        weighted = (
            "- match: {prefix: /}\n  route:\n    weighted_clusters:\n      clusters:\n"
            f"      - {{name: app, weight: 1, typed_per_filter_config: {{{RBAC}: {{}}}}}}\n"
        )
        assert "a weighted cluster has typed_per_filter_config of its own" in self.refused(weighted)

    def test_prefix_that_no_route_forwards(self) -> None:
        text = configuration([listener(route("prefix: /v1/"))])
        with pytest.raises(ConfigurationError, match="--prefix /team: none of your routes"):
            merged(text, prefixes=["/", "/team"])

    def test_only_routes_with_conditions(self) -> None:
        message = self.refused(route("prefix: /v1/, headers: [{name: x-token}]") + APP)
        assert "forwards LLM requests only if they meet further conditions" in message

    def test_catch_all_that_responds_itself_with_settings(self) -> None:
        closed = "- match: {prefix: /}\n  direct_response: {status: 404}\n" + OPEN
        message = self.refused(APP + closed)
        assert f"responds to LLM requests now, with settings for {RBAC}" in message

    def test_catch_all_added_in_front_with_other_settings(self) -> None:
        text = with_first(merged(configuration()), CATCH_ALL + "  metadata: {a: {b: c}}\n")
        with pytest.raises(ConfigurationError, match=r"different settings \(metadata\): move it"):
            merged(text)

    def test_update_of_routes_with_different_settings(self) -> None:
        text = merged(configuration())
        start = text.index("typed_per_filter_config: &extproc_body_shown")
        at = text.index("envoy.filters.http.buffer:\n", start)
        margin = " " * (at - text.rindex("\n", 0, at) - 1)
        text = f"{text[:at]}{RBAC}: {{disabled: true}}\n{margin}{text[at:]}"
        assert merged(text) == text
        old = "".join(one for one in text.splitlines(keepends=True) if "retry_policy: {" not in one)
        with pytest.raises(ConfigurationError, match="routes for LLMs to update, but have differe"):
            merged(old)


@cache
def routes_below(prefix: str) -> list[Any]:
    """Return the routes that decide requests below a prefix."""
    return routes(merged(configuration(), prefixes=[prefix] if prefix else []))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_of_the_recommended_configuration_gets_a_decision(path: str) -> None:
    for prefix in ("", "/team"):
        after = routes_below(prefix)
        for end in ("", "/", "?a=b"):
            found = selected(after, f"{prefix}{path}{end}")
            assert found["name"] == "fallback"
            assert "envoy.filters.http.ext_proc" in found["typed_per_filter_config"]
        assert selected(after, f"{prefix}{path}", content_length="9000000")["name"] == "large"


@pytest.mark.parametrize(
    "path", ["/api/rerank", "/api/v1/messages", "/v3/score", "/v1/x/tokenize", "/items?a=/rerank"]
)
def test_paths_of_other_services_get_no_decision(path: str) -> None:
    assert names([selected(routes(merged(configuration())), path)]) == ["/"]


class TestMatcher:
    def test_is_refused(self) -> None:
        text = configuration([listener("")]).replace("routes:", "matcher: {matcher_list: {}}")
        with pytest.raises(ConfigurationError, match=r"`matcher` \(line 16\), and Envoy allows"):
            merged(text)

    def test_counts_as_a_virtual_host_that_forwards(self) -> None:
        matcher = listener("", name="m").replace("routes:", "matcher: {matcher_list: {}}")
        with pytest.raises(ConfigurationError, match="m/site, edge/site; choose one"):
            merged(configuration([matcher, listener()]))


def test_second_listener_with_the_same_routes_repeats_no_note() -> None:
    layout: Any = route("prefix: /v1/models", OPEN) + CATCH_ALL
    text = configuration([listener(layout, name="tcp"), listener(layout, name="quic")])
    after = merged(text)
    assert routes(after, 0) == routes(after, 1)
    assert len(manager(after, 1)["http_filters"]) == 3
