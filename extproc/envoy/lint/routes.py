"""Rules for routes: other services, the order, retries, timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.envoy.lint.finding import Finding, error, hint, warning
from extproc.envoy.lint.subject import Route, Subject, seconds
from extproc.envoy.locate import names_second
from extproc.envoy.merge.mounted import serves
from extproc.envoy.merge.paths import is_catch_all, is_conditional, matches, samples
from extproc.envoy.merge.settings import FILTERS
from extproc.envoy.nodes import Node

_LONG = 600.0
"""Seconds that a request may wait in an engine's queue before the first byte of its response."""


def ext_proc_on_foreign_route(subject: Subject) -> Iterator[Finding]:
    for route in subject.foreign:
        yield error(
            route.node,
            f"{subject.where}, {route.label}",
            "ext_proc is on for a route of another service",
            "the sidecar responds 404 unknown_path to its requests, or routes them to a model "
            "server",
            "set `disabled: true` at the filter in http_filters, and add an ExtProcPerRoute with "
            "`overrides: {}` to the routes for LLMs",
        )


def ext_proc_on_no_route(subject: Subject) -> Iterator[Finding]:
    if subject.routes and not subject.with_ext_proc:
        yield error(
            subject.ext_proc,
            subject.where,
            "ext_proc is on for no route",
            "Envoy never calls the sidecar, so no request gets a decision",
            "add an ExtProcPerRoute with `overrides: {}` to the routes for LLMs",
        )


def route_hidden(subject: Subject) -> Iterator[Finding]:
    """Report a catch-all route before the routes for LLMs: it takes their requests."""
    for host in subject.manager.virtual_hosts():
        routes = [one for one in subject.routes if one.host is host]
        catching = [one for one in routes if is_catch_all(one.node)]
        after = routes[routes.index(catching[0]) + 1 :] if catching else []
        hidden = [one for one in after if one in subject.llm_routes]
        if hidden:
            yield error(
                hidden[0].node,
                f"{subject.where}, {hidden[0].label}",
                f"comes after a route for every path (line {catching[0].node.line})",
                "Envoy selects the first route that matches, so it never selects this one",
                "move this route before the other one",
            )


def filter_setting_missing(subject: Subject) -> Iterator[Finding]:
    """Report a filter's setting that requests would have on the route after the LLM routes."""
    reported: set[tuple[Node, str]] = set()
    ours = {one.text("name") for one in (subject.ext_proc, subject.buffer) if one is not None}
    for path in samples(""):
        found = _first_and_next(subject, path)
        if found is None:
            continue
        route, after = found
        names = after.node.entries_at(FILTERS).keys() - route.node.entries_at(FILTERS).keys()
        for name in sorted(names - ours):
            if (after.node, name) not in reported:
                reported.add((after.node, name))
                yield warning(
                    route.node,
                    f"{subject.where}, {route.label}",
                    f"no setting for {name}, but the route in line {after.node.line} has one",
                    f"it would apply to {path} without this route; if it authenticates or limits, "
                    "these requests bypass it",
                    "copy it to the routes for LLMs, or remove it from the other route",
                )


def no_second_candidate(subject: Subject) -> Iterator[Finding]:
    for route in subject.targets:
        if not _needs_second(subject, route):
            continue
        policy = route.node.at("route.retry_policy") or route.host.get("retry_policy")
        retried = policy.text("retry_on") if policy is not None else ""
        if "connect-failure" not in retried:
            yield error(
                policy or route.node,
                f"{subject.where}, {route.label}",
                "no retry on connect-failure",
                "if the chosen endpoint is dead, the request fails",
                'set retry_policy: {retry_on: "connect-failure,refused-stream,reset", '
                "num_retries: 1}",
            )
        elif not _has_second(subject, route):
            yield error(
                route.node,
                f"{subject.where}, {route.label}",
                "the cluster has one address, so a retry goes to the same endpoint",
                "if the chosen endpoint is dead, the request fails",
                "use a composite cluster of two clusters: one that reads x-target-endpoint, one "
                "that reads x-target-endpoint-fallback",
            )
        elif "reset" not in retried.split(","):
            yield hint(
                policy or route.node,
                f"{subject.where}, {route.label}",
                "retry_on lacks reset",
                "if the endpoint dies before it responds, the request fails",
                "add reset, unless no request may be computed twice",
            )


def timeout_short(subject: Subject) -> Iterator[Finding]:
    for route in subject.llm_routes:
        action = route.node.get("route")
        if action is None:
            continue
        text = action.text("timeout")
        value = seconds(text) if text else 15.0
        if value is not None and 0 < value < _LONG:
            yield error(
                action,
                f"{subject.where}, {route.label}",
                f"timeout is {text or '15s, the default'}",
                "it limits the whole response, so longer streams are cut",
                "set timeout: 0s",
            )


def idle_timeout_short(subject: Subject) -> Iterator[Finding]:
    whole = subject.manager.node.text("stream_idle_timeout") or "300s"
    for route in subject.llm_routes:
        text = route.node.text("route.idle_timeout") or whole
        value = seconds(text)
        if value is not None and 0 < value < _LONG:
            yield warning(
                route.node.get("route") or route.node,
                f"{subject.where}, {route.label}",
                f"a stream may be idle for {text}",
                "requests that wait longer for their first token, for example in the engine's "
                "queue, are cut",
                "set idle_timeout: 3600s on the route",
            )


def _needs_second(subject: Subject, route: Route) -> bool:
    """Return True if a route serves requests that have a second candidate.

    Requests without one may have a separate route after it.
    """
    if names_second(route.node):
        return True
    return not any(names_second(one.node) for one in subject.targets if one.host is route.host)


def _has_second(subject: Subject, route: Route) -> bool:
    found = subject.target_clusters.get(route.node.text("route.cluster"))
    if found is None:
        return True  # not a cluster of this file
    return found.get("original_dst_lb_config") is None


def _first_and_next(subject: Subject, path: str) -> tuple[Route, Route] | None:
    """Return the LLM route of a path, and the user's route that would serve it otherwise."""
    route = next((one for one in subject.fallbacks if serves(one.node, path)), None)
    if route is None:
        return None
    there = [one for one in subject.routes if one.host is route.host]
    later = there[there.index(route) + 1 :]
    for one in later:
        is_forwarding = one.node.get("route") is not None and not is_conditional(one.node)
        if is_forwarding and one not in subject.llm_routes and matches(one.node, path):
            return route, one
    return None
