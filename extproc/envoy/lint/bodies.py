"""Rules for request bodies: modes that hide the model, lose an end or garble a retry."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.envoy.lint.finding import Finding, error, warning
from extproc.envoy.lint.subject import MOST_BODY, Route, Subject, number
from extproc.envoy.nodes import Node

_TIMES = 4
"""A body that overflows a buffer must have at least this many times its size (docs/envoy.md)."""


def body_not_sent(subject: Subject) -> Iterator[Finding]:
    for route in _shown(subject, "NONE"):
        yield warning(
            route.node,
            _where(subject, route),
            "request_body_mode is NONE",
            "the sidecar sees neither the model nor the prompt: it ignores the prefix, and it "
            "decides only if one model is configured or the header x-model names one",
            _STREAMED,
        )


def body_streamed_after_headers(subject: Subject) -> Iterator[Finding]:
    early = subject.config.text("send_body_without_waiting_for_header_response") == "true"
    for route in _shown(subject, "STREAMED"):
        if not early:
            yield error(
                route.node,
                _where(subject, route),
                "request_body_mode is STREAMED without "
                "send_body_without_waiting_for_header_response",
                "the body arrives after the headers were sent upstream, which is too late for a "
                "decision: the sidecar responds 500",
                "set send_body_without_waiting_for_header_response: true",
            )
            return


def body_streamed_in_pieces(subject: Subject) -> Iterator[Finding]:
    """Report a missing buffer filter: message_timeout then includes the wait for slow clients."""
    unbuffered = [r for r in _shown(subject, "STREAMED") if not subject.buffers(r)]
    for route in unbuffered:
        if _least_length(route.node) <= 0:
            yield warning(
                route.node,
                _where(subject, route),
                "bodies reach the sidecar in pieces: no buffer filter before ext_proc is on",
                "message_timeout starts with the headers, so requests of slow clients get no "
                "decision",
                f"put a buffer filter with max_request_bytes: {MOST_BODY} before ext_proc",
            )
            return


def body_refused(subject: Subject) -> Iterator[Finding]:
    """Report BUFFERED with a small limit, which is the size of the largest body."""
    for route in _shown(subject, "BUFFERED"):
        if subject.held(route) < MOST_BODY:
            yield error(
                route.node,
                _where(subject, route),
                f"request_body_mode is BUFFERED with a limit of {subject.held(route):,} bytes",
                "Envoy responds 413 to larger bodies, such as prompts with images or documents",
                f"set request_body_buffer_limit: {MOST_BODY} on the route, or {_STREAMED}",
            )


def body_end_lost(subject: Subject) -> Iterator[Finding]:
    for route in _shown(subject, "BUFFERED_PARTIAL"):
        least = _TIMES * subject.held(route)
        if _least_length(route.node) < least:
            yield error(
                route.node,
                _where(subject, route),
                "request_body_mode is BUFFERED_PARTIAL for bodies slightly larger than the "
                f"buffer of {subject.held(route):,} bytes",
                "Envoy 1.38 to 1.40 lose the end of such a body, and the request hangs",
                f"match only a content-length of at least {least}, or {_STREAMED}",
            )


def retries_repeat_body(subject: Subject) -> Iterator[Finding]:
    for route in _shown(subject, "BUFFERED_PARTIAL"):
        retries = route.node.at("route.retry_policy") or route.host.get("retry_policy")
        if retries is not None:
            yield error(
                retries,
                _where(subject, route),
                "the route has retries, and request_body_mode is BUFFERED_PARTIAL",
                "a retry sends the first part of a large body twice",
                f"remove retry_policy here, or {_STREAMED}",
            )


def large_bodies_refused(subject: Subject) -> Iterator[Finding]:
    """Report a missing route for bodies beyond the buffer filter's limit."""
    routes = subject.fallbacks or subject.targets
    refusing = [one for one in routes if subject.buffers(one)]
    passing = [one for one in routes if not subject.buffers(one)]
    if refusing and not passing:
        yield warning(
            refusing[0].node,
            _where(subject, refusing[0]),
            f"no route for bodies larger than {subject.buffers(refusing[0]):,} bytes",
            "the buffer filter responds 413 to them",
            "add a route before it that matches a larger content-length and disables the buffer",
        )


def body_not_kept(subject: Subject) -> Iterator[Finding]:
    """Report a small buffer limit: Envoy can retry only a request whose whole body it has."""
    for route in subject.llm_routes:
        limit = number(route.node, "request_body_buffer_limit", 0)
        large = _least_length(route.node) > MOST_BODY
        if limit < MOST_BODY and not large and _retries(route):
            yield warning(
                route.node,
                _where(subject, route),
                f"request_body_buffer_limit is {limit:,}"
                if limit
                else "no request_body_buffer_limit",
                "Envoy does not retry a request whose body is larger than the listener's buffer",
                f"set request_body_buffer_limit: {MOST_BODY}",
            )


_STREAMED = (
    "set request_body_mode: STREAMED and send_body_without_waiting_for_header_response: true, with "
    "a buffer filter before ext_proc"
)


def _shown(subject: Subject, mode: str) -> list[Route]:
    """Return the routes on which ext_proc is on with this body mode."""
    routes = subject.fallbacks or subject.targets
    return [one for one in routes if subject.has_ext_proc(one) and subject.body_mode(one) == mode]


def _least_length(route: Node) -> int:
    """Return the least content-length that a route matches, or -1 if it matches any."""
    for header in route.list("match.headers"):
        if header.text("name").lower() == "content-length":
            return number(header, "range_match.start", -1)
    return -1


def _retries(route: Route) -> bool:
    return (route.node.at("route.retry_policy") or route.host.get("retry_policy")) is not None


def _where(subject: Subject, route: Route) -> str:
    return f"{subject.where}, {route.label}"
