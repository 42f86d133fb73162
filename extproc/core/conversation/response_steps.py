"""The replies to the parts of a response."""

from __future__ import annotations

from extproc.core.conversation.events import BodyMode, Event, Kind, Proceed, Replies, chunks
from extproc.core.conversation.replies import CONTENT_LENGTH
from extproc.core.conversation.stream import Stream
from extproc.core.fleet.load_report import REPORT_HEADER

_OVERRIDABLE = (BodyMode.BUFFERED, BodyMode.NONE)
"""Modes of request bodies in which Envoy lets a reply change the modes."""


def on_response_headers(stream: Stream, event: Event) -> Replies:
    """Read the response's head, and remove what only the sidecar asked for."""
    stream.visibility.response_headers = True
    response = stream.routed_response()
    if response is not None:
        response.headers(event)
    # An empty report is removed, too.
    ours = event.load_report is not None and stream.asked_for_report
    removed: tuple[str, ...] = (REPORT_HEADER,) if ours else ()
    if response is None or not response.renames:
        return (Proceed(event.kind, remove_headers=removed),)
    shown = stream.modes.response is not BodyMode.NONE
    asks = not shown and stream.modes.request in _OVERRIDABLE
    response.keeps_name = not shown and not asks
    if shown or asks:
        removed += (CONTENT_LENGTH,)  # the length changes with the name
    return (Proceed(event.kind, remove_headers=removed, show_response=asks),)


def on_response_body(stream: Stream, event: Event) -> Replies:
    """Read a part of the response's body, and give it back in FULL_DUPLEX_STREAMED mode."""
    duplex = stream.modes.response is BodyMode.DUPLEX
    if stream.response_passed:
        return () if duplex else (Proceed(event.kind),)
    stream.response_passed = event.end_of_stream
    response, body = stream.routed_response(), event.body
    if response is not None:
        response.body(event)
        body = response.changed(event)
    if duplex:
        return chunks(event.kind, body, end_of_stream=event.end_of_stream)
    return (Proceed(event.kind, body=None if body == event.body else body),)


def on_response_trailers(stream: Stream, event: Event) -> Replies:
    """Give back the trailers, after the bytes of the body that were held."""
    response = stream.response
    held = b"" if response is None or stream.response_passed else response.rest()
    if stream.modes.response is not BodyMode.DUPLEX:
        return (Proceed(event.kind),)
    return (*chunks(Kind.RESPONSE_BODY, held, end_of_stream=False), Proceed(event.kind))


def on_response_alone(stream: Stream, event: Event) -> Replies:
    """Continue with a response to a request that an earlier filter of Envoy refused."""
    stream.refused_earlier = True
    return (Proceed(event.kind),)
