"""Rules for the filters of a listener: the early removal, ext_proc, the buffer."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.envoy.lint.finding import Finding, error, hint, warning
from extproc.envoy.lint.subject import MOST_BODY, Subject, headers_read, seconds
from extproc.envoy.locate import EXT_PROC, ROUTING_HEADERS, of_kind, reads_target
from extproc.envoy.merge.early_removal import removed_early

INTO = "run `extproc envoy-config --into` on this file"
_MESSAGE_TIMEOUT = 1.0
_MAX_MESSAGE_TIMEOUT = 65.0
"""Seconds: the default of `maxWaitSeconds`, and the time that the sidecar adds."""
_RECEIVED = "metadata_options.receiving_namespaces.untyped"
_FULL_DUPLEX = "FULL_DUPLEX_STREAMED"


def routing_headers_not_removed(subject: Subject) -> Iterator[Finding]:
    """Report routing headers that clients can send: they choose an address inside the network."""
    read = {
        name for one in subject.root.list("static_resources.clusters") for name in headers_read(one)
    }
    if any(reads_target(route.node) for route in subject.routes):
        read.add(ROUTING_HEADERS[0])
    missing = sorted(read - removed_early(subject.manager.node))
    if missing:
        yield error(
            subject.manager.node,
            subject.where,
            f"early_header_mutation_extensions do not remove {', '.join(missing)}",
            "while the sidecar is down, a client that sends this header chooses the address to "
            "which Envoy connects (server-side request forgery)",
            f"add `- remove: {missing[0]}` there, because a header_mutation filter would be too "
            "late",
        )


def several_ext_proc_filters(subject: Subject) -> Iterator[Finding]:
    found = of_kind(subject.manager.filters(), EXT_PROC)
    if len(found) > 1:
        yield error(
            found[1],
            subject.where,
            f"http_filters have {len(found)} ext_proc filters",
            "two ext_proc filters in one chain corrupt bodies",
            "give LLM requests a listener of their own",
        )


def headers_not_sent(subject: Subject) -> Iterator[Finding]:
    if _mode(subject, "request_header_mode") == "SKIP":
        yield error(
            subject.config,
            _filter(subject),
            "request_header_mode is SKIP",
            "Envoy selects the endpoint before it calls the sidecar",
            "set request_header_mode: SEND",
        )


def response_headers_not_sent(subject: Subject) -> Iterator[Finding]:
    if _mode(subject, "response_header_mode") == "SKIP":
        yield warning(
            subject.config,
            _filter(subject),
            "response_header_mode is SKIP",
            "the sidecar cannot see which endpoints fail, so it keeps choosing dead ones",
            "set response_header_mode: SEND",
        )


def response_attributes_missing(subject: Subject) -> Iterator[Finding]:
    found = subject.config.get("response_attributes")
    names = [one.data() for one in subject.config.list("response_attributes")]
    wanted = ("upstream.address", "upstream.request_attempt_count", "response.code_details")
    missing = [one for one in wanted if one not in names]
    if missing:
        yield warning(
            found or subject.config,
            _filter(subject),
            f"response_attributes lack {', '.join(missing)}",
            "the sidecar cannot see which endpoint failed or served a retry, so it does not avoid "
            "dead endpoints, and in-flight counts become wrong",
            f"set response_attributes: [{', '.join(wanted)}]",
        )


def response_trailers_not_sent(subject: Subject) -> Iterator[Finding]:
    if _mode(subject, "response_trailer_mode") != "SEND":
        yield warning(
            subject.config,
            _filter(subject),
            "response_trailer_mode is not SEND",
            "Envoy 1.37 and 1.38 end the gRPC stream at the response headers, so in-flight counts "
            "are too low",
            "set response_trailer_mode: SEND",
        )


def metadata_dropped(subject: Subject) -> Iterator[Finding]:
    found = subject.config.at(_RECEIVED)
    names = [one.data() for one in subject.config.list(_RECEIVED)]
    missing = [one for one in ("envoy.lb", "extproc") if one not in names]
    if missing:
        by_metadata = "envoy.lb" in missing and subject.target_clusters and not _by_header(subject)
        yield (error if by_metadata else warning)(
            found or subject.config,
            _filter(subject),
            f"metadata_options do not receive {', '.join(missing)}",
            "Envoy drops the decision's metadata, so the access log shows no decision, and "
            "clusters that read the host from metadata find no host",
            "set metadata_options: {receiving_namespaces: {untyped: [envoy.lb, extproc]}}",
        )


def message_timeout_short(subject: Subject) -> Iterator[Finding]:
    text = subject.config.text("message_timeout")
    value = seconds(text) if text else 0.2
    if value is not None and value < _MESSAGE_TIMEOUT:
        yield warning(
            subject.config.get("message_timeout") or subject.config,
            _filter(subject),
            f"message_timeout is {text or '200ms, the default'}",
            "in a burst, requests wait longer than this for the sidecar, and get no decision",
            "set message_timeout: 2s",
        )


def waits_cut_short(subject: Subject) -> Iterator[Finding]:
    text = subject.config.text("max_message_timeout")
    value = seconds(text) if text else 0.0
    if _mode(subject, "request_body_mode") == _FULL_DUPLEX:
        return  # Envoy waits without a timeout
    if value is not None and value < _MAX_MESSAGE_TIMEOUT:
        yield hint(
            subject.config.get("max_message_timeout") or subject.config,
            _filter(subject),
            f"max_message_timeout is {text or 'missing'}",
            "with flow control (flowControl), requests that wait longer than this go to the "
            "fallback without a decision, or fail if failure_mode_allow is false",
            "set max_message_timeout: 300s",
        )


def stream_limited(subject: Subject) -> Iterator[Finding]:
    found = subject.config.at("grpc_service.timeout")
    if found is not None and seconds(subject.config.text("grpc_service.timeout")) != 0:
        yield error(
            found,
            _filter(subject),
            "grpc_service has a timeout",
            "the gRPC stream lasts as long as the request, so longer responses are missing in the "
            "in-flight counts, and are cut if failure_mode_allow is false",
            "remove it: message_timeout already limits the wait for the sidecar",
        )


def fails_closed(subject: Subject) -> Iterator[Finding]:
    found = subject.config.get("failure_mode_allow")
    if found is None:
        yield warning(
            subject.config,
            _filter(subject),
            "failure_mode_allow is not set, which means false",
            _CLOSED,
            "set failure_mode_allow: true, or set it to false if you want this",
        )
    elif subject.config.text("failure_mode_allow") == "false":
        yield hint(
            found,
            _filter(subject),
            "failure_mode_allow is false",
            _CLOSED,
            "set failure_mode_allow: true, unless you want this",
        )


_CLOSED = "if the sidecar dies, running streams are cut, and requests fail until it is back"


def route_not_selected_again(subject: Subject) -> Iterator[Finding]:
    retained = subject.config.text("route_cache_action") == "RETAIN"
    retained = retained or subject.config.text("disable_clear_route_cache") == "true"
    by_header = any(reads_target(route.node) for route in subject.routes)
    if retained and by_header:
        yield error(
            subject.config,
            _filter(subject),
            "the route is not selected again after the decision",
            "the route for requests with x-target-endpoint is never selected, so decisions have "
            "no effect",
            "remove route_cache_action and disable_clear_route_cache",
        )


def buffer_small(subject: Subject) -> Iterator[Finding]:
    """Report a buffer filter that refuses bodies below 8 MiB."""
    for route in subject.fallbacks or subject.targets:
        limit = subject.buffers(route)
        if 0 < limit < MOST_BODY:
            yield warning(
                subject.buffer or route.node,
                f"{subject.where}, {route.label}",
                f"the buffer filter accepts at most {limit:,} bytes",
                "Envoy responds 413 to larger bodies, such as prompts with images or documents",
                f"set max_request_bytes: {MOST_BODY}",
            )
            return


def _by_header(subject: Subject) -> bool:
    return any(headers_read(one) for one in subject.root.list("static_resources.clusters"))


def _mode(subject: Subject, name: str) -> str:
    return subject.config.text(f"processing_mode.{name}")


def _filter(subject: Subject) -> str:
    return f"{subject.where}, {subject.ext_proc.text('name')}"
