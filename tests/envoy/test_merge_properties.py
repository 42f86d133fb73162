"""Merging into any layout: the user's values stay, and a second run changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from typing import Any

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from extproc.envoy.lint import Severity, lint
from extproc.envoy.locate import ROUTING_HEADERS
from extproc.envoy.problems import ConfigurationError
from extproc.envoy.tree import parse
from tests.envoy.texts import CLUSTER, CORS, JSON_LOG, ROUTER, listener, merged
from tests.extent import extent

PATHS = ("/app", "/v1/", "/v1/models", "/api/v1", "/rerank", "/")
WORD = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)

ROUTES = st.builds(
    lambda kind, path, headers, name: {
        **({"name": name} if name else {}),
        "match": {kind: path, **headers},
        "route": {"cluster": "app"},
    },
    st.sampled_from(["prefix", "path"]),
    st.sampled_from(PATHS),
    st.sampled_from([{}, {"headers": [{"name": "x-a", "present_match": True}]}]),
    st.sampled_from(["", "mine"]),
)
CLUSTERS = st.lists(
    st.sampled_from(["fallback", "chosen", "extproc", "first-candidate", "other"]),
    unique=True,
    max_size=3,
)


@st.composite
def configurations(draw: st.DrawFn) -> Any:
    """Draw a configuration with one or two listeners that share their routes."""
    routes = draw(st.lists(ROUTES, max_size=4))
    log = draw(st.sampled_from(["", JSON_LOG]))
    filters = draw(st.sampled_from([ROUTER, CORS + ROUTER]))
    names = ["tcp", "quic"] if draw(st.booleans()) else ["tcp"]
    listeners = [yaml.safe_load(listener(name=name, filters=filters, log=log))[0] for name in names]
    for one in listeners:
        config = one["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
        config["virtual_hosts"][0]["routes"] = routes
    clusters = "".join(CLUSTER.format(name=name) for name in ["app", *draw(CLUSTERS)])
    return {"static_resources": {"listeners": listeners, "clusters": yaml.safe_load(clusters)}}


LAYOUTS = st.sampled_from(
    [
        lambda data: yaml.safe_dump(data, sort_keys=False),
        lambda data: yaml.safe_dump(data, sort_keys=True, indent=4),
        lambda data: yaml.safe_dump(data, default_flow_style=None, sort_keys=False),
        lambda data: yaml.safe_dump(data, default_flow_style=True, width=10**6),
        lambda data: json.dumps(data),
        lambda data: json.dumps(data, indent=2),
    ]
)

PREFIXES = st.sampled_from([[], ["/team"], ["/", "/a/b"]])


@settings(max_examples=extent(6, 30))
@given(configurations(), LAYOUTS, PREFIXES)
def test_users_values_stay_and_a_second_run_changes_nothing(
    data: Any, layout: Any, prefixes: list[str]
) -> None:
    text = layout(data)
    once = merged_if_possible(text, prefixes=prefixes)
    assert without_pieces(parse(once).data(), data) == data
    assert merged(once, prefixes=prefixes) == once
    assert merged(once) == once
    errors = [one for one in lint(once) if one.severity is Severity.ERROR]
    assert errors == []


@settings(max_examples=extent(6, 20))
@given(configurations(), st.lists(WORD, min_size=1, max_size=6))
def test_every_line_and_comment_stays_in_its_order(data: Any, comments: list[str]) -> None:
    lines = yaml.safe_dump(data, sort_keys=False).splitlines()
    for number, comment in enumerate(comments):
        at = (number * 7 + len(comment) * 13) % len(lines)
        lines[at] += f" # {comment}"
        lines.insert(at, f"    # {comment}")
    text = "\n".join(lines) + "\n"
    after = iter(merged_if_possible(text).splitlines())
    # An empty list has to give way to the routes.
    assert all(line in after for line in text.splitlines() if "[]" not in line)


def merged_if_possible(text: str, **options: Any) -> str:
    """Return the text with the pieces. Skip routes that no new routes can replace."""
    try:
        return merged(text, **options)
    except ConfigurationError as error:
        assume("only if they meet further conditions" not in str(error))
        assume("none of your routes forwards LLM requests below it" not in str(error))
        raise


def without_pieces(data: Any, before: Any) -> Any:
    """Remove the pieces from a configuration."""
    found = deepcopy(data)
    names = {one["name"] for one in before["static_resources"]["clusters"]}
    resources = found["static_resources"]
    resources["clusters"] = [one for one in resources["clusters"] if one["name"] in names]
    for one in resources["listeners"]:
        manager = one["filter_chains"][0]["filters"][0]["typed_config"]
        (extension,) = manager.pop("early_header_mutation_extensions")
        removed = {entry["remove"] for entry in extension["typed_config"]["mutations"]}
        assert removed == set(ROUTING_HEADERS)
        assert len(manager.pop("local_reply_config")["mappers"]) == 4
        manager["http_filters"] = [f for f in manager["http_filters"] if not f.get("disabled")]
        host = manager["route_config"]["virtual_hosts"][0]
        host["routes"] = [r for r in host["routes"] if r["route"]["cluster"] in names]
        for log in manager.get("access_log", []):
            fields = log["typed_config"]["log_format"]["json_format"]
            for key in [key for key, value in fields.items() if "(extproc:" in value]:
                del fields[key]
    return found


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, "x", 5, True, [], {}, ["x"], {"a": "b"}, [{}], [None], ""]
)


@settings(max_examples=extent(6, 20))
@given(configurations(), LAYOUTS, st.lists(st.tuples(st.integers(0), JUNK), max_size=3))
def test_invalid_configuration_is_refused_or_merged(
    data: Any, layout: Any, changes: list[tuple[int, Any]]
) -> None:
    """Values of any type may be anywhere: Envoy refuses them, but the tool must not fail."""
    whole = parse(merged_if_possible(layout(data))).data()
    for text in (layout(with_junk(deepcopy(data), changes)), layout(with_junk(whole, changes))):
        lint(text)
        with suppress(ConfigurationError):
            merged(text)


def with_junk(data: Any, changes: list[tuple[int, Any]]) -> Any:
    """Put a value at the numbered position in the document."""
    for number, value in changes:
        places = list(places_in(data))
        container, key = places[number % len(places)]
        container[key] = deepcopy(value)
    return data


def places_in(data: Any) -> Iterator[tuple[Any, Any]]:
    pairs = list(data.items() if isinstance(data, dict) else enumerate(data))
    for key, value in pairs:
        yield data, key
        if isinstance(value, dict | list):
            yield from places_in(value)
