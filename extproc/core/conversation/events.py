"""The events that Envoy sends a conversation, and the replies that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import NamedTuple

from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.decision import Decision

TARGET_HEADER = "x-target-endpoint"
FALLBACK_HEADER = "x-target-endpoint-fallback"
DESTINATION = "x-gateway-destination-endpoint"
"""The endpoint picker protocol's name for the target."""

ROUTING_HEADERS = (TARGET_HEADER, FALLBACK_HEADER, DESTINATION)
"""Headers that choose an endpoint: only the sidecar may set them."""

CHUNK_LIMIT = 62_000
"""The most bytes of a body in one reply, as in the endpoint picker protocol."""


class Kind(Enum):
    """The parts of an HTTP request and its response that Envoy may show."""

    __hash__ = object.__hash__  # members are looked up with each message; Enum's own is slow

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    REQUEST_TRAILERS = auto()
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    RESPONSE_TRAILERS = auto()
    UNKNOWN = auto()
    """An event of a later version of the protocol."""


class BodyMode(Enum):
    """The way in which Envoy shows a body."""

    BUFFERED = auto()
    """One event with the body or its head (BUFFERED, BUFFERED_PARTIAL), or unknown."""
    AHEAD = auto()
    """In pieces that come before the reply to the headers, and continue with their replies
    (STREAMED, with `send_body_without_waiting_for_header_response`)."""
    NONE = auto()
    """Not at all."""
    DUPLEX = auto()
    """In pieces that the sidecar streams back at any time (FULL_DUPLEX_STREAMED)."""
    OTHER = auto()
    """In pieces, after the headers have continued: too late to choose by the body."""


class Modes(NamedTuple):
    """The body modes of a stream's request and response."""

    request: BodyMode = BodyMode.BUFFERED
    response: BodyMode = BodyMode.NONE


class Event(NamedTuple):
    """One message from Envoy."""

    kind: Kind
    headers: Mapping[str, bytes] = MappingProxyType({})
    """In REQUEST_HEADERS, the headers: names in lower case, raw values."""
    body: bytes = b""
    end_of_stream: bool = False
    modes: Modes | None = None
    """The body modes, in the first event of a stream."""
    subset: tuple[str, ...] | None = None
    """The only endpoints that the gateway allows, in its own words, in REQUEST_HEADERS or the first
    REQUEST_BODY; None if it allows all."""
    served_by: str = ""
    """In RESPONSE_HEADERS, IP:PORT of the upstream that responded, if Envoy reports it. For Envoy's
    own responses, the upstream that it tried last."""
    outcome: Outcome | None = None
    """In RESPONSE_HEADERS, the outcome at that upstream."""
    attempts: int = 0
    """In RESPONSE_HEADERS, the number of attempts; 0 if Envoy does not report it."""
    load_report: bytes | None = None
    """In RESPONSE_HEADERS, the upstream's load report; None without that header."""
    media_type: str = ""
    """In RESPONSE_HEADERS, the body's type without parameters, in lower case. It is empty if the
    body is compressed."""


class Proceed(NamedTuple):
    """Continue, optionally with another target, other headers or another body."""

    kind: Kind
    target: str = ""
    """Sets `x-target-endpoint`; empty changes nothing."""
    reroute: bool = False
    """Makes Envoy choose the route again, with the target in place."""
    decision: Decision | None = None
    """Published as metadata, with the fallback candidate's header."""
    destination: str = ""
    """Sets `x-gateway-destination-endpoint`, the endpoint picker protocol's target: one address,
    or two with a comma. With a `target` but without a destination that header is removed."""
    requested: str = ""
    """Sets `x-gateway-model-name`: the model's name in the request; empty while unknown."""
    model: str = ""
    """Sets `x-gateway-base-model-name`: the configured model's name; empty while unknown."""
    set_headers: tuple[tuple[str, str], ...] = ()
    """Further headers, each overwriting what was there."""
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = None
    """In replies to a body, the bytes that replace it; None if it passes unchanged."""
    whole_body: bytes | None = None
    """In replies to headers, the whole body as the servers must get it. Envoy then takes no further
    replies to the request, and discards the parts of the body that it has shown."""
    show_response: bool = False
    """In replies to RESPONSE_HEADERS, asks for the body in pieces, for this request only. Envoy
    complies if `allow_mode_override` is set and no body comes before the reply to the headers."""


class Chunk(NamedTuple):
    """A piece of a body that is streamed back (FULL_DUPLEX_STREAMED)."""

    kind: Kind
    body: bytes
    end_of_stream: bool = False


class Immediate(NamedTuple):
    """End the HTTP request with this response from the sidecar."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    details: str


class LongerTimeout(NamedTuple):
    """Keep the request, and wait for the reply to the present event this number of seconds."""

    seconds: float


Reply = Proceed | Chunk | Immediate | LongerTimeout
Replies = tuple[Reply, ...]


def chunks(kind: Kind, body: bytes, *, end_of_stream: bool) -> tuple[Chunk, ...]:
    """Return a part of a body in pieces of the allowed size; none if it is empty."""
    if len(body) <= CHUNK_LIMIT:
        return (Chunk(kind, body, end_of_stream),) if body or end_of_stream else ()
    last = (len(body) - 1) // CHUNK_LIMIT * CHUNK_LIMIT
    return tuple(
        Chunk(kind, body[start : start + CHUNK_LIMIT], end_of_stream and start == last)
        for start in range(0, len(body), CHUNK_LIMIT)
    )
