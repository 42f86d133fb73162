"""The reply to request headers: list models, pass, decide, or wait for the body."""

from __future__ import annotations

from extproc.core.conversation.events import (
    ROUTING_HEADERS,
    BodyMode,
    Event,
    Kind,
    Modes,
    Proceed,
    Replies,
)
from extproc.core.conversation.listing import Listing
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.replies import models_listed, provisional
from extproc.core.conversation.request import Request
from extproc.core.conversation.request_headers import api_without_path, header_text
from extproc.core.conversation.stream import UNKNOWN_MODES, Stream
from extproc.core.conversation.verdict import Listed, Passed
from extproc.core.request.paths import (
    ANTHROPIC_PATH,
    ANTHROPIC_VERSION,
    BODILESS_METHODS,
    RESPONSES_PATH,
    Api,
    Route,
    match,
    without_query,
)
from extproc.core.request.refusals import InvalidRequest, UnknownPath, UnsupportedBodyMode
from extproc.core.request.request_id import request_id_of

_AHEAD = Modes(BodyMode.AHEAD)


def on_request_headers(stream: Stream, event: Event) -> Replies:
    """Reply to the request's headers, by its path, its method and the body mode."""
    headers = event.headers
    stream.request_id = request_id_of(headers)
    if ":path" not in headers:
        return _on_headers_without_path(stream, event)
    path, method = header_text(headers, ":path"), header_text(headers, ":method")
    route = match(path, method)
    if route is None:
        return _on_unknown_path(stream, event, path, method)
    if route.api is Api.MODELS:
        return _list_models(stream, route, anthropic=ANTHROPIC_VERSION in headers)
    stream.anthropic = route.is_anthropic
    stream.request = request = Request(
        stream.router,
        route.api,
        headers,
        event.subset,
        creates_response=route.path == RESPONSES_PATH,
    )
    if route.api is Api.BARE or method in BODILESS_METHODS:
        return _on_bare_request(stream, event, route, path, method)
    if event.end_of_stream:
        resolved = request.resolve(b"", complete=True)
        return stream.decide(event.kind, resolved, _phase_after_headers(stream, event))
    return _await_body(stream, event.kind)


def _on_headers_without_path(stream: Stream, event: Event) -> Replies:
    """Serve a gateway that knows which paths exist, and asks for an endpoint only.

    NGINX Gateway Fabric sends no pseudo headers and no modes. It sends the whole body without
    waiting for a reply, and reads the endpoint from the reply to the headers. So that reply waits.
    """
    api = api_without_path(event.headers)
    stream.request = request = Request(stream.router, api, event.headers, event.subset)
    if event.end_of_stream:
        resolved = request.resolve_unseen()
        return stream.decide(event.kind, resolved, _phase_after_headers(stream, event))
    if stream.modes is UNKNOWN_MODES:
        stream.modes = _AHEAD
    return _await_body(stream, event.kind)


def _await_body(stream: Stream, kind: Kind) -> Replies:
    """Return the reply to the headers of a request with a body, or none yet."""
    mode = stream.modes.request
    if mode is BodyMode.BUFFERED:
        stream.phase = Phase.READING
        return (provisional(kind, stream.request.provisional(stream.rng)),)
    if mode is BodyMode.AHEAD and stream.request.is_whole(b"")[0]:  # only trailers follow
        return stream.decide(kind, stream.request.resolve(b"", complete=True))
    if mode is BodyMode.AHEAD or mode is BodyMode.DUPLEX:
        stream.phase = Phase.WAITING if mode is BodyMode.AHEAD else Phase.HOLDING
        return ()
    if mode is BodyMode.NONE:
        return stream.decide(kind, stream.request.resolve_unseen())
    raise UnsupportedBodyMode()


def _on_bare_request(stream: Stream, event: Event, route: Route, path: str, method: str) -> Replies:
    """Decide by the headers alone; a body, if there is one, passes unchanged."""
    if route.api is not Api.BARE and method != "OPTIONS":
        raise InvalidRequest(f"{method} is not a method of {route.path}: use POST.")
    resolved = None
    if route.stored_id and route.path.startswith(RESPONSES_PATH):
        resolved = stream.request.resolve_stored(route.stored_id)
    resolved = resolved or stream.request.resolve_bare(path, method)
    return stream.decide(event.kind, resolved, _phase_after_headers(stream, event))


def _on_unknown_path(stream: Stream, event: Event, path: str, method: str) -> Replies:
    if not stream.pass_unknown:
        stream.anthropic = ANTHROPIC_PATH in path
        raise UnknownPath(method, without_query(path))
    stream.verdict = Passed()
    stream.phase = _phase_after_headers(stream, event)
    removed = tuple(name for name in ROUTING_HEADERS if name in event.headers)
    # Envoy may have chosen the route by such a header.
    return (Proceed(event.kind, reroute=bool(removed), remove_headers=removed),)


def _list_models(stream: Stream, route: Route, *, anthropic: bool) -> Replies:
    stream.anthropic = anthropic
    router = stream.router
    listing = Listing(router.catalog, router.fleet.context_lengths, anthropic=anthropic)
    body = listing.one(route.stored_id) if route.stored_id else listing.all()
    stream.phase = Phase.CLOSED
    stream.verdict = Listed()
    return (models_listed(stream.id_headers(), body),)


def _phase_after_headers(stream: Stream, event: Event) -> Phase:
    """Return the phase of a request that is decided before its body."""
    if stream.modes.request is not BodyMode.DUPLEX:
        return Phase.ROUTED
    return Phase.PASSED if event.end_of_stream else Phase.PASSING
