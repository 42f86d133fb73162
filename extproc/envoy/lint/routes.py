"""Rules for routes: other services, the order, retries, timeouts."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.envoy.lint.finding import Finding, error, hint, warning
from extproc.envoy.lint.subject import Route, Subject, seconds
from extproc.envoy.locate import names_second
from extproc.envoy.merge.paths import is_catch_all

_LONG = 600.0
"""Seconds that a request may wait in an engine's queue before its first byte."""


def foreign_routes_asked(subject: Subject) -> Iterator[Finding]:
    for route in subject.foreign:
        yield error(
            route.node,
            f"{subject.where}, {route.label}",
            "ext_proc is on for a route of another service",
            "the sidecar answers 404 unknown_path to its requests, or chooses a model server",
            "`disabled: true` at the filter in http_filters, and an ExtProcPerRoute with "
            "`overrides: {}` on the routes for LLMs",
        )


def nothing_asked(subject: Subject) -> Iterator[Finding]:
    if subject.routes and not subject.asking:
        yield error(
            subject.ext_proc,
            subject.where,
            "ext_proc is on for no route",
            "nothing is decided",
            "an ExtProcPerRoute with `overrides: {}` on the routes for LLMs",
        )


def route_hidden(subject: Subject) -> Iterator[Finding]:
    """A catch-all before the routes for LLMs takes their requests."""
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
                "Envoy takes the first route that matches, so this one is never taken",
                "move it before that route",
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
                "a chosen endpoint that is dead costs the client its request",
                'retry_policy: {retry_on: "connect-failure,refused-stream,reset", num_retries: 1}',
            )
        elif not _has_second(subject, route):
            yield error(
                route.node,
                f"{subject.where}, {route.label}",
                "the cluster has one address, so a retry asks the same endpoint again",
                "a chosen endpoint that is dead costs the client its request",
                "a composite cluster of two: one by x-target-endpoint, one by "
                "x-target-endpoint-fallback",
            )
        elif "reset" not in retried.split(","):
            yield hint(
                policy or route.node,
                f"{subject.where}, {route.label}",
                "retry_on lacks reset",
                "a request whose endpoint dies before it responds fails",
                "add reset, if a request may be computed twice",
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
                "it covers the whole response: longer streams are cut",
                "timeout: 0s",
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
                "a request that waits longer in the engine's queue, or a slow first token, is cut",
                "idle_timeout: 3600s on the route",
            )


def _needs_second(subject: Subject, route: Route) -> bool:
    """Return True if a route is for requests with a second candidate: those without one may have a
    route of their own after it.
    """
    if names_second(route.node):
        return True
    return not any(names_second(one.node) for one in subject.targets if one.host is route.host)


def _has_second(subject: Subject, route: Route) -> bool:
    found = subject.target_clusters.get(route.node.text("route.cluster"))
    if found is None:
        return True  # not a cluster of this file
    return found.get("original_dst_lb_config") is None
