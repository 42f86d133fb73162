"""Finds settings of an Envoy configuration that lose requests or decisions.

A rule is a function that takes one listener with an ext_proc filter and yields findings. Each
finding has the problem, its cost, and the change that fixes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from extproc.envoy.lint import bodies, clusters, filters, routes
from extproc.envoy.lint.finding import Finding, Severity, error
from extproc.envoy.lint.subject import Subject, subjects
from extproc.envoy.tree import parse

__all__ = ["RULES", "Finding", "Severity", "lint"]

Rule = Callable[[Subject], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    filters.routing_headers_not_removed,
    filters.several_ext_proc_filters,
    filters.headers_not_sent,
    filters.response_headers_not_sent,
    filters.response_attributes_missing,
    filters.response_trailers_not_sent,
    filters.metadata_dropped,
    filters.message_timeout_short,
    filters.waits_cut_short,
    filters.stream_limited,
    filters.fails_closed,
    filters.route_not_selected_again,
    filters.buffer_small,
    bodies.body_not_sent,
    bodies.body_streamed_after_headers,
    bodies.body_streamed_in_pieces,
    bodies.body_refused,
    bodies.body_end_lost,
    bodies.retries_repeat_body,
    bodies.large_bodies_refused,
    bodies.body_not_kept,
    routes.ext_proc_on_foreign_route,
    routes.ext_proc_on_no_route,
    routes.route_hidden,
    routes.filter_setting_missing,
    routes.no_second_candidate,
    routes.timeout_short,
    routes.idle_timeout_short,
    clusters.cluster_missing,
    clusters.fallback_empty,
    clusters.sidecar_without_http2,
    clusters.breakers_at_defaults,
    clusters.connect_timeout_short,
)


def lint(text: str) -> list[Finding]:
    """Return the findings, in the order of the lines. Raises YamlError."""
    root = parse(text)
    listeners = subjects(root)
    if not listeners:
        return [
            error(
                root,
                "listeners",
                "no static listener has an ext_proc filter",
                "Envoy never calls the sidecar, so no request gets a decision",
                filters.INTO,
            )
        ]
    found = [finding for subject in listeners for rule in RULES for finding in rule(subject)]
    # Listeners may share clusters.
    return sorted(dict.fromkeys(found), key=lambda one: one.line)
