"""The replies to the parts of a request's body, and to its trailers."""

from __future__ import annotations

from extproc.core.conversation.events import BodyMode, Event, Kind, Proceed, Replies, chunks
from extproc.core.conversation.head import Head
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.replies import CONTINUE, LEAVE_OUT, with_body
from extproc.core.conversation.request import Request
from extproc.core.conversation.stream import Stream
from extproc.core.request.refusals import UnsupportedBodyMode
from extproc.core.routing.resolved_request import ResolvedRequest

_SMALL_BYTES = 16_384
"""Size up to which any body is kept while its request waits."""


def on_body_alone(stream: Stream, event: Event) -> Replies:
    """Decide a request whose headers Envoy did not show, so that no reply to them could wait."""
    if stream.modes.request is not BodyMode.BUFFERED:
        raise UnsupportedBodyMode()
    stream.request = Request(stream.router)
    return on_request_body(stream, event)


def on_request_body(stream: Stream, event: Event) -> Replies:
    """Decide by the body, or its head, that comes after the reply to the headers."""
    request, body, complete = stream.request, event.body, event.end_of_stream
    request.allow_only(event.subset)
    resolved = request.resolve(body, complete=complete)
    if complete:
        stream.prompt_bytes = _prompt_bytes(resolved)
    keeps_body = _keeps_body(resolved, len(body))
    kept = body if keeps_body else b""

    def finish(reply: Proceed) -> Replies:
        decision = reply.decision
        if decision is not None and decision.changes_body:
            edited = request.edited(kept, decision)
            if edited != kept:
                reply = with_body(reply, edited, complete=complete)
        return (reply,)

    return stream.decide(event.kind, resolved, finish=finish, keeps_body=keeps_body)


def on_request_without_body(stream: Stream, event: Event) -> Replies:
    """Decide a request whose trailers come without a body."""
    return stream.decide(event.kind, stream.request.resolve(b"", complete=True))


def on_awaited_body(stream: Stream, event: Event) -> Replies:
    """Add a part of the body that the headers' reply waits for, and decide if it suffices."""
    stream.request.allow_only(event.subset)
    head = stream.body_head()
    if event.end_of_stream:
        resolved = head.end(event.body)
        stream.prompt_bytes = _prompt_bytes(resolved)
        return _decide_awaited(stream, head, resolved, head.parts + 1)
    head.hold(event.body)
    # Trailers may follow, but Envoy sends them only after the replies to the body.
    if stream.names_modes and head.is_whole():
        return _decide_whole(stream, head)
    early = head.resolve()
    return () if early is None else _decide_awaited(stream, head, early, head.parts)


def on_awaited_trailers(stream: Stream, event: Event) -> Replies:
    """Decide by the body that came before its trailers."""
    head = stream.body_head()
    if stream.names_modes:
        return _decide_whole(stream, head)
    return _decide_awaited(stream, head, head.end(), head.parts, (Proceed(event.kind),))


def on_held_body(stream: Stream, event: Event) -> Replies:
    """Hold a part of the body, or decide and give everything that was held back."""
    stream.request.allow_only(event.subset)
    head = stream.body_head()
    if event.end_of_stream:
        return _decide_held(stream, head, head.end(event.body), Phase.PASSED)
    early = head.add(event.body)  # raises a refusal early
    if early is None or not head.is_full:
        return ()  # trailers may follow: see `_decide_whole`
    return _decide_held(stream, head, early, Phase.PASSING)


def on_held_trailers(stream: Stream, _event: Event) -> Replies:
    """Decide by the body that came before its trailers, and give it back."""
    return _decide_whole(stream, stream.body_head())


def on_body(stream: Stream, event: Event) -> Replies:
    """Give a part of the body back."""
    if event.end_of_stream:
        stream.phase = Phase.PASSED
    return chunks(event.kind, event.body, end_of_stream=event.end_of_stream)


def on_trailers(stream: Stream, event: Event) -> Replies:
    """Give the trailers back."""
    stream.phase = Phase.PASSED
    return (Proceed(event.kind),)


def _decide_awaited(
    stream: Stream, head: Head, resolved: ResolvedRequest, parts: int, trailers: Replies = ()
) -> Replies:
    """Return the headers' reply, and one for each part of the body that waits for it."""
    stream.head = None
    keeps_body = _keeps_body(resolved, head.size)
    kept = head if keeps_body else None

    def finish(reply: Proceed) -> Replies:
        decision = reply.decision
        if kept is None or decision is None or not decision.changes_body or not parts:
            return (reply, *CONTINUE * parts, *trailers)
        # The first part becomes the whole, and the others become empty.
        whole = Proceed(Kind.REQUEST_BODY, body=kept.edited(decision))
        return (reply, whole, *LEAVE_OUT * (parts - 1), *trailers)

    return stream.decide(Kind.REQUEST_HEADERS, resolved, finish=finish, keeps_body=keeps_body)


def _decide_whole(stream: Stream, head: Head) -> Replies:
    """Return the headers' reply with the whole body, because trailers follow the body, or may.

    On a route with retries, Envoy sends the body of a request with trailers twice if the body
    passes in replies of its own.
    """
    resolved = head.end()
    stream.head = None
    stream.prompt_bytes = _prompt_bytes(resolved)

    def finish(reply: Proceed) -> Replies:
        return (reply._replace(whole_body=_as_served(head, reply)),)

    return stream.decide(Kind.REQUEST_HEADERS, resolved, Phase.PASSED, finish)


def _decide_held(stream: Stream, head: Head, resolved: ResolvedRequest, phase: Phase) -> Replies:
    """Return the headers' reply, and all of the body that was held."""
    stream.head = None
    is_whole = phase is Phase.PASSED
    if is_whole:
        stream.prompt_bytes = _prompt_bytes(resolved)

    def finish(reply: Proceed) -> Replies:
        held = _as_served(head, reply)
        return (reply, *chunks(Kind.REQUEST_BODY, held, end_of_stream=is_whole))

    return stream.decide(Kind.REQUEST_HEADERS, resolved, phase, finish)


def _as_served(head: Head, reply: Proceed) -> bytes:
    """Return the bytes of the body that were held, as the servers must get them."""
    decision = reply.decision
    if decision is not None and decision.changes_body:
        return head.edited(decision)
    return head.held


def _keeps_body(resolved: ResolvedRequest, size: int) -> bool:
    """Return True if a body is kept while its request waits, which may take minutes.

    A small body is kept for the case that its model gets another name meanwhile.
    """
    return resolved.changes_body or size <= _SMALL_BYTES


def _prompt_bytes(resolved: ResolvedRequest) -> int:
    """Return the size of the prompt; 0 if not all of it was read."""
    prompt = resolved.prompt
    return prompt.bytes if prompt is not None and prompt.is_complete else 0
