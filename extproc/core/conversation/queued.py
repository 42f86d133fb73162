"""The events of a request that waits for room on an endpoint.

They wait with it, and are handled in their order after the decision.
"""

from __future__ import annotations

from extproc.core.conversation.events import BodyMode, Event, Proceed, Replies
from extproc.core.conversation.phase import Phase
from extproc.core.conversation.stream import Stream

MOST_HELD_BYTES = 4 * 2**20
"""Bytes of a body that the sidecar holds (FULL_DUPLEX_STREAMED). A request with more of them is
dispatched although no endpoint has room. In other modes, Envoy holds the body."""


def on_event_while_queued(stream: Stream, event: Event) -> Replies:
    """Let an event wait."""
    queued = stream.queued
    assert queued is not None
    if stream.modes.request is not BodyMode.DUPLEX:
        stream.later.append(event._replace(body=b""))  # its reply does not depend on the body
        return stream.longer_timeout(queued.waiter)
    stream.later.append(event)
    held = sum(len(one.body) for one in stream.later)
    if held > MOST_HELD_BYTES and stream.flow is not None:
        stream.flow.force(queued.waiter)
    return ()


def on_response_while_queued(stream: Stream, event: Event) -> Replies:
    """Leave the queue, because Envoy itself responded to the request."""
    leave(stream)
    stream.refused_earlier = True
    is_duplex = stream.modes.request is BodyMode.DUPLEX
    stream.phase = Phase.PASSED if is_duplex else Phase.ROUTED
    return (Proceed(event.kind),)


def leave(stream: Stream) -> None:
    """Forget the request. A second call does nothing."""
    queued, stream.queued, stream.send = stream.queued, None, None
    if queued is not None and stream.flow is not None:
        stream.flow.cancel(queued.waiter)
    stream.later.clear()
